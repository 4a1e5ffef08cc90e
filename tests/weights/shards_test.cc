#include "weights/shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "base/fresh_rng.h"
#include "base/log.h"
#include "base/temp_dir.h"
#include "weights/safetensors_writer.h"

namespace moesaic {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";

// A shard whose tensors are one byte each: the last letter of their name.
void write_shard(const TempDir& dir, const std::string& file, const std::vector<std::string>& names) {
  std::vector<std::byte> bytes;
  for (const std::string& name : names) bytes.push_back(static_cast<std::byte>(name.back()));
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < names.size(); ++i) tensors.emplace_back(names[i], Tensor{&bytes[i], DType::u8, {1}});
  write_safetensors(dir.path() / file, tensors);
}

void write_index(const TempDir& dir, const std::string& map) {
  dir.write(kIndex, "{\"metadata\":{\"total_size\":1},\"weight_map\":" + map + "}");
}

std::string failure(const TempDir& dir, StatusCode code = StatusCode::data_loss) {
  try {
    Shards::open(dir.path());
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    return e.what();
  }
  return "accepted";
}

const std::string kTwo = fmt::format(R"({{"x":"{}","y":"{}"}})", kFirst, kSecond);

TEST(Shards, TensorsOverTwoFiles) {
  const TempDir dir;
  write_shard(dir, kFirst, {"x"});
  write_shard(dir, kSecond, {"y"});
  write_index(dir, kTwo);
  Shards opened = Shards::open(dir.path());
  const Shards shards = std::move(opened);
  EXPECT_THAT(shards.names(), ElementsAre("x", "y"));
  EXPECT_EQ(shards.total_bytes(), 2u);
  const StoredTensor y = shards.at("y");
  EXPECT_EQ(y.tensor.data[0], std::byte{'y'});
  EXPECT_EQ(shards.files()[static_cast<size_t>(y.shard)].path().filename(), kSecond);
  EXPECT_EQ(y.dtype(), DType::u8);
  EXPECT_EQ(y.shape(), Shape({1}));
  EXPECT_EQ(y.bytes(), 1u);
  shards.will_need(y);
  shards.drop(y, 0, 1);
  EXPECT_EQ(y.tensor.data[0], std::byte{'y'});
  EXPECT_FALSE(shards.find("z").has_value());
  EXPECT_THROW(shards.at("z"), Error);
}

TEST(Shards, FC016_MissingShardsAreListed) {
  const TempDir dir;
  write_shard(dir, kFirst, {"x"});
  write_index(dir, kTwo);
  EXPECT_THAT(failure(dir), AllOf(HasSubstr(kSecond), Not(HasSubstr(kFirst))));
  // An interrupted download in a cache of links leaves a link to nothing.
  std::filesystem::create_symlink(dir.path() / "nothing", dir.path() / kSecond);
  EXPECT_THAT(failure(dir), HasSubstr(kSecond));
}

TEST(Shards, FC012_EveryShardIsValidatedAtOpen) {
  const TempDir dir;
  write_shard(dir, kFirst, {"x"});
  write_shard(dir, kSecond, {"y"});
  write_index(dir, kTwo);
  const auto second = dir.path() / kSecond;
  std::filesystem::resize_file(second, std::filesystem::file_size(second) - 1);
  EXPECT_THAT(failure(dir), AllOf(HasSubstr(kSecond), HasSubstr("cut short")));
}

TEST(Shards, MappedTensorMustBeInItsShard) {
  const TempDir dir;
  write_shard(dir, kFirst, {"x", "y"});
  write_shard(dir, kSecond, {"z"});
  write_index(dir, kTwo);  // y lies in the first shard, not in the second
  EXPECT_THAT(failure(dir), AllOf(HasSubstr("maps 1 tensors"), HasSubstr("y in " + std::string(kSecond))));
}

TEST(Shards, UnmappedTensorIsOnlyAWarning) {
  const TempDir dir;
  write_shard(dir, kFirst, {"x", "extra"});
  write_shard(dir, kSecond, {"y"});
  write_index(dir, kTwo);
  set_log_level(LogLevel::warn);
  testing::internal::CaptureStderr();
  const Shards shards = Shards::open(dir.path());
  EXPECT_THAT(testing::internal::GetCapturedStderr(), AllOf(HasSubstr("\"extra\""), HasSubstr("1 tensors")));
  EXPECT_TRUE(shards.find("extra").has_value());
}

TEST(Shards, TheSameTensorInTwoShards) {
  const TempDir dir;
  write_shard(dir, kFirst, {"x"});
  write_shard(dir, kSecond, {"x", "y"});
  write_index(dir, kTwo);
  EXPECT_THAT(failure(dir), AllOf(HasSubstr("\"x\" twice"), HasSubstr(kFirst), HasSubstr(kSecond)));
}

TEST(Shards, ShardNamesStayInTheDirectory) {
  const TempDir dir;
  write_shard(dir, "model.safetensors", {"x"});
  for (const char* name : {"\"../model.safetensors\"", "\"/etc/model.safetensors\"", "\"a\\\\b.safetensors\"", "\"..\"",
                           "\"\"", "\"weights.bin\"", "\"a\\u0000.safetensors\"", "7", "null"}) {
    write_index(dir, fmt::format(R"({{"x":{}}})", name));
    EXPECT_THAT(failure(dir), HasSubstr("maps tensor \"x\" to")) << name;
  }
  write_index(dir, fmt::format(R"({{"x":"{}.safetensors"}})", std::string(5000, 'n')));
  EXPECT_THAT(failure(dir), HasSubstr("missing"));
}

TEST(Shards, MalformedIndex) {
  const TempDir dir;
  write_shard(dir, "model.safetensors", {"x"});
  dir.write(kIndex, "{}");
  EXPECT_THAT(failure(dir), HasSubstr("no \"weight_map\""));
  write_index(dir, "[]");
  EXPECT_THAT(failure(dir), HasSubstr("expected a JSON object"));
  write_index(dir, "{}");
  EXPECT_THAT(failure(dir), HasSubstr("maps no tensors"));
  write_index(dir, R"({"x":"model.safetensors","x":"model.safetensors"})");
  EXPECT_THAT(failure(dir), HasSubstr("duplicate key \"x\""));
  dir.write(kIndex, "{\"weight_map\"");
  EXPECT_THAT(failure(dir), HasSubstr("ends early"));
}

TEST(Shards, WithoutAnIndex) {
  const TempDir single;
  write_shard(single, "model.safetensors", {"x"});
  write_shard(single, "other.safetensors", {"y"});
  EXPECT_THAT(Shards::open(single.path()).names(), ElementsAre("x"));
  const TempDir named;
  write_shard(named, "anything-00001-of-00001.safetensors", {"y"});
  EXPECT_THAT(Shards::open(named.path()).names(), ElementsAre("y"));
  const TempDir part;
  write_shard(part, kFirst, {"x"});
  EXPECT_THAT(failure(part), AllOf(HasSubstr(kFirst), HasSubstr("download the index")));
  write_shard(part, kSecond, {"y"});
  EXPECT_THAT(failure(part), AllOf(HasSubstr(kSecond), HasSubstr("download the index")));
}

TEST(Shards, NoCheckpointAtAll) {
  const TempDir dir;
  EXPECT_THAT(failure(dir, StatusCode::not_found), HasSubstr("holds no checkpoint"));
  dir.write("pytorch_model.bin", "x");
  dir.write("model.gguf", "x");
  EXPECT_THAT(failure(dir, StatusCode::not_found),
              AllOf(HasSubstr("only \"pytorch_model.bin\", \"model.gguf\""), HasSubstr("safetensors form")));
  std::filesystem::remove_all(dir.path());
  EXPECT_THAT(failure(dir, StatusCode::not_found), HasSubstr("not a directory"));
}

TEST(Shards, ManyTensorsInRandomShards) {
  Rng rng = fresh_rng();
  const TempDir dir;
  std::vector<std::vector<std::string>> files(5);
  std::string map = "{";
  for (int i = 0; i < 500; ++i) {
    const size_t file = static_cast<size_t>(rng.below(5));
    files[file].push_back(fmt::format("model.layers.{}.w{}", i, static_cast<char>('a' + rng.below(26))));
    map += fmt::format("{}\"{}\":\"m{}.safetensors\"", map.size() > 1 ? "," : "", files[file].back(), file);
  }
  for (size_t file = 0; file < files.size(); ++file)
    write_shard(dir, fmt::format("m{}.safetensors", file), files[file]);
  write_index(dir, map + "}");
  const Shards shards = Shards::open(dir.path());
  const std::vector<std::string_view> names = shards.names();
  EXPECT_EQ(names.size(), 500u);
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  for (size_t file = 0; file < files.size(); ++file)
    for (const std::string& name : files[file]) {
      const StoredTensor stored = shards.at(name);
      EXPECT_EQ(stored.tensor.data[0], static_cast<std::byte>(name.back())) << name;
      EXPECT_EQ(shards.files()[static_cast<size_t>(stored.shard)].path().filename(),
                fmt::format("m{}.safetensors", file));
    }
}

}  // namespace
}  // namespace moesaic
