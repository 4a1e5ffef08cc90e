#include "weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <new>

#include "base/error.h"
#include "base/fresh_rng.h"
#include "base/temp_dir.h"
#include "weights/safetensors_writer.h"

// Counts what the whole program allocates, for the case that a refused header takes no memory.
namespace {
std::atomic<size_t> allocated_bytes{0};
}

[[gnu::noinline]] void* operator new(size_t size) {
  allocated_bytes.fetch_add(size, std::memory_order_relaxed);
  if (void* memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace moesaic {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string with_length(uint64_t length, std::string_view rest) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file.append(rest);
}

// A file with this header and so many bytes of data.
std::string file_of(std::string_view header, size_t data_bytes) {
  return with_length(header.size(), header) + std::string(data_bytes, '\1');
}

// The message of the Error, or "" when the file is accepted. Reads by mapping and by two buffered reads, which must
// agree.
std::string verdict(const std::string& bytes) {
  const TempDir dir;
  const auto path = dir.write("case.safetensors", bytes);
  std::string mapped, buffered;
  try {
    SafetensorsFile::open(path);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), StatusCode::data_loss);
    mapped = e.what();
  }
  try {
    std::ifstream in(path, std::ios::binary);
    std::string head(8, '\0');
    in.read(head.data(), 8);
    head.resize(static_cast<size_t>(in.gcount()));
    head.resize(safetensors_header_bytes(std::as_bytes(std::span(head)), bytes.size(), path.string()));
    in.read(head.data() + 8, static_cast<std::streamsize>(head.size() - 8));
    parse_safetensors_header(std::as_bytes(std::span(head)), bytes.size(), path.string());
  } catch (const Error& e) {
    buffered = e.what();
  }
  EXPECT_EQ(mapped, buffered);
  return mapped;
}

std::string entry(std::string_view name, std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape, offsets);
}

std::string one(std::string_view dtype, std::string_view shape, std::string_view offsets, size_t data_bytes) {
  return file_of("{" + entry("a", dtype, shape, offsets) + "}", data_bytes);
}

const std::string kValid = with_length(0x36, R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})") +
                           std::string("\0\0\xC0\x3F\0\0\0\xC0", 8);

TEST(Safetensors, FC011_DuplicateName) {
  const std::string header = "{" + entry("a", "F32", "[1]", "[0,4]") + "," + entry("a", "F32", "[1]", "[4,8]") + "}";
  ASSERT_EQ(header.size(), 107u);
  EXPECT_THAT(verdict(file_of(header, 8)),
              AllOf(HasSubstr("case.safetensors"), HasSubstr("\"a\""), HasSubstr("duplicate")));
  // Spelled differently, the same name; the same field twice within an entry.
  EXPECT_THAT(verdict(file_of(
                  "{" + entry("a", "F32", "[1]", "[0,4]") + "," + entry("\\u0061", "F32", "[1]", "[4,8]") + "}", 8)),
              HasSubstr("duplicate"));
  EXPECT_THAT(verdict(file_of(R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1)),
              HasSubstr("duplicate key \"dtype\""));
}

TEST(Safetensors, FC012_TruncatedFile) {
  ASSERT_EQ(kValid.size(), 70u);
  const TempDir dir;
  const SafetensorsFile file = SafetensorsFile::open(dir.write("a.safetensors", kValid));
  const Tensor a = file.tensor("a");
  float values[2];
  std::memcpy(values, a.data, sizeof values);
  EXPECT_EQ(values[0], 1.5f);
  EXPECT_EQ(values[1], -2.0f);
  const std::pair<size_t, size_t> cuts[] = {{69, 70}, {66, 70}, {62, 70}, {40, 62}, {8, 62}, {7, 8}, {0, 8}};
  for (const auto& [size, expected] : cuts)
    EXPECT_THAT(verdict(kValid.substr(0, size)),
                AllOf(HasSubstr(fmt::format("is {} bytes long", size)),
                      HasSubstr(fmt::format("expected {}", size < 62 ? "at least " : "") + std::to_string(expected))));
}

TEST(Safetensors, FC013_LongHeadersLoad) {
  for (size_t length : {99'994u, 99'999u, 100'000u, 100'001u}) {
    std::string header = "{" + entry("a", "U8", "[3]", "[0,3]") + "}";
    header.resize(length, ' ');
    EXPECT_EQ(verdict(file_of(header, 3)), "") << length;
  }
}

TEST(Safetensors, FC013_ImpossibleLengthsCostNothing) {
  for (uint64_t length : {uint64_t{100'000'001}, uint64_t{1} << 63, UINT64_MAX, UINT64_MAX - 7, uint64_t{99'999'999}}) {
    const TempDir dir;
    const auto path = dir.write("a.safetensors", with_length(length, "{\"a\":{} "));
    const size_t before = allocated_bytes;
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THROW(SafetensorsFile::open(path), Error) << length;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(50)) << length;
    EXPECT_LT(allocated_bytes - before, size_t{1} << 20) << length;
  }
}

TEST(Safetensors, FC014_BadOffsets) {
  const auto two = [](std::string_view shape, std::string_view first, std::string_view second, size_t data) {
    return file_of("{" + entry("a", "F32", shape, first) + "," + entry("b", "F32", shape, second) + "}", data);
  };
  EXPECT_THAT(verdict(one("F32", "[1]", "[4,0]", 4)),
              HasSubstr("tensor \"a\": has data_offsets [4, 0]; expected begin"));
  EXPECT_THAT(verdict(one("F32", "[2]", "[0,8]", 4)), AllOf(HasSubstr("\"a\""), HasSubstr("cut short")));
  EXPECT_THAT(verdict(two("[2]", "[0,8]", "[4,12]", 12)),
              HasSubstr("tensor \"b\" begins at data byte 4; expected 8: it overlaps tensor \"a\""));
  EXPECT_THAT(verdict(two("[1]", "[0,4]", "[8,12]", 12)),
              HasSubstr("tensor \"b\" begins at data byte 8; expected 4: there is a hole after tensor \"a\""));
  EXPECT_THAT(verdict(one("F32", "[3]", "[0,8]", 8)),
              AllOf(HasSubstr("\"a\""), HasSubstr("8 bytes"), HasSubstr("96 bits")));
  EXPECT_THAT(verdict(one("F32", "[1]", "[4,8]", 8)), HasSubstr("begins at data byte 4; expected 0"));
  EXPECT_THAT(verdict(one("F32", "[1]", "[0,4,8]", 8)), HasSubstr("3 data_offsets"));
  EXPECT_THAT(verdict(one("U8", "[0]", "[18446744073709551615,18446744073709551615]", 0)), HasSubstr("expected 0"));
}

// Every byte of the data belongs to exactly one tensor.
void expect_cover(const SafetensorsHeader& header, uint64_t file_size) {
  uint64_t end = 0;
  for (const SafetensorsEntry& tensor : header.tensors) {
    ASSERT_EQ(tensor.begin, end);
    end = tensor.end;
    ASSERT_EQ(header.find(tensor.name), &tensor);
  }
  ASSERT_EQ(header.data_begin + end, file_size);
}

TEST(Safetensors, FC014_MutatedHeaders) {
  const std::string header = "{\"__metadata__\":{\"format\":\"pt\"}," + entry("a", "F32", "[2]", "[0,8]") + "," +
                             entry("b", "U8", "[2,3]", "[8,14]") + "," + entry("c", "BF16", "[]", "[14,16]") + "}";
  const std::string valid = file_of(header, 16);
  const std::string letters = "{}[]:,\"0123456789-.eE \\uFUIB\x80\xFF";
  Rng rng = fresh_rng();
  int accepted = 0;
  for (int round = 0; round < 100'000; ++round) {
    std::string bytes = valid;
    for (int64_t edits = 1 + rng.below(3); edits > 0; --edits) {
      const size_t at = static_cast<size_t>(rng.below(static_cast<int64_t>(header.size()) + 8));
      const char letter = letters[static_cast<size_t>(rng.below(static_cast<int64_t>(letters.size())))];
      const int64_t kind = at < 8 ? 0 : rng.below(3);
      if (kind == 0) bytes[at] = at < 2 ? static_cast<char>(rng.bits()) : at < 8 ? bytes[at] : letter;
      else if (kind == 1) bytes.erase(at, 1);
      else bytes.insert(at, 1, letter);
    }
    try {
      expect_cover(parse_safetensors_header(std::as_bytes(std::span(bytes)), bytes.size(), "mutated"), bytes.size());
      ++accepted;
    } catch (const Error& e) {
      ASSERT_EQ(e.code(), StatusCode::data_loss);
    }
  }
  EXPECT_GT(accepted, 0);  // names and unused letters may change
  EXPECT_LT(accepted, 50'000);
}

TEST(Safetensors, FC015_TrailingBytesAndLies) {
  EXPECT_THAT(verdict(kValid + "x"), AllOf(HasSubstr("is 71 bytes long; expected 70"), HasSubstr("trailing")));
  EXPECT_THAT(verdict(with_length(0, "")), HasSubstr("does not begin with {"));
  EXPECT_EQ(verdict(file_of("{}", 0)), "");
  EXPECT_THAT(verdict(file_of("{}", 1)), HasSubstr("trailing"));
  EXPECT_THAT(verdict(one("F32", "[4294967296,4294967297]", "[0,17179869184]", 16)),
              AllOf(HasSubstr("overflows"), HasSubstr("\"a\""), HasSubstr("[4294967296, 4294967297]")));
  EXPECT_THAT(verdict(one("F32", "[-1]", "[0,4]", 4)), HasSubstr("\"a\": has -1 in its shape"));
  EXPECT_THAT(verdict(one("F33", "[1]", "[0,4]", 4)), HasSubstr("unknown dtype \"F33\""));
  EXPECT_THAT(verdict(file_of(R"({"__metadata__":{"format":1}})", 0)), HasSubstr("__metadata__: \"format\" is 1"));
  EXPECT_THAT(verdict(file_of(R"({"__metadata__":[]})", 0)), HasSubstr("__metadata__"));
  EXPECT_THAT(verdict(one("U8", "[1]", "[0,1]", 1).replace(10, 1, "\xFF")), HasSubstr("not valid JSON"));
}

TEST(Safetensors, OtherMalformedHeaders) {
  EXPECT_THAT(verdict(one("F32", "[1.0]", "[0,4]", 4)), HasSubstr("1.0 in its shape"));
  EXPECT_THAT(verdict(one("F32", "[1e0]", "[0,4]", 4)), HasSubstr("in its shape"));
  EXPECT_THAT(verdict(one("F32", "[\"1\"]", "[0,4]", 4)), HasSubstr("in its shape"));
  EXPECT_THAT(verdict(one("F32", "[1]", "[0,4.5]", 4)), HasSubstr("4.5 in its data_offsets"));
  EXPECT_THAT(verdict(one("F32", "1", "[0,4]", 4)), HasSubstr("no array \"shape\""));
  EXPECT_THAT(verdict(one("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]", 1)), HasSubstr("9 dimensions; expected at most 8"));
  EXPECT_EQ(verdict(one("U8", "[1,1,1,1,1,1,1,1]", "[0,1]", 1)), "");
  EXPECT_THAT(verdict(one("U8", "[9223372036854775808]", "[0,1]", 1)), HasSubstr("overflows"));
  EXPECT_THAT(verdict(one("U8", "[4294967296,4294967296,0]", "[0,0]", 0)), HasSubstr("overflows"));
  EXPECT_THAT(verdict(file_of(R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1)), HasSubstr("\"dtype\" is missing"));
  EXPECT_THAT(verdict(file_of(R"({"a":[]})", 0)), HasSubstr("expected a JSON object"));
  EXPECT_THAT(verdict(file_of("[]", 0)), HasSubstr("does not begin with {"));
  EXPECT_THAT(verdict(file_of(" {}", 0)), HasSubstr("does not begin with {"));
  EXPECT_THAT(verdict(file_of("{} x", 0)), HasSubstr("text after"));
  EXPECT_THAT(verdict(file_of("{", 0)), HasSubstr("ends early"));
  EXPECT_THAT(verdict(file_of("{" + entry(std::string(5000, 'n'), "U8", "[1]", "[0,1]") + "}", 1)),
              HasSubstr("name of 5000 bytes"));
}

TEST(Safetensors, FC017_ZeroElementTensorsAndScalars) {
  const TempDir dir;
  const std::string header =
      "{" + entry("empty", "F32", "[0,4]", "[0,0]") + "," + entry("a", "F32", "[1]", "[0,4]") + "}";
  const SafetensorsFile file = SafetensorsFile::open(dir.write("a.safetensors", file_of(header, 4)));
  EXPECT_EQ(file.tensor("empty").bytes(), 0);
  EXPECT_EQ(file.tensor("a").bytes(), 4);
  EXPECT_EQ(file.tensor("a").data[3], std::byte{1});
  file.drop(*file.find("empty"));
  const SafetensorsFile scalar =
      SafetensorsFile::open(dir.write("s.safetensors", file_of("{" + entry("s", "F32", "[]", "[0,4]") + "}", 4)));
  EXPECT_EQ(scalar.tensor("s").shape.elements(), 1);
  EXPECT_EQ(scalar.tensor("s").shape.rank(), 0);
}

TEST(Safetensors, EveryDtypeOfTheFormatHasItsSize) {
  const std::pair<const char*, int> kTypes[] = {
      {"BOOL", 8},        {"U8", 8},   {"I8", 8},      {"I16", 16},    {"U16", 16},    {"I32", 32},
      {"U32", 32},        {"I64", 64}, {"U64", 64},    {"F16", 16},    {"BF16", 16},   {"F32", 32},
      {"F64", 64},        {"C64", 64}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
      {"F8_E5M2FNUZ", 8}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}};
  for (const auto& [name, bits] : kTypes) {
    const std::string good = one(name, "[4,2]", fmt::format("[0,{}]", bits), static_cast<size_t>(bits));
    const std::string bad = one(name, "[4,2]", fmt::format("[0,{}]", bits + 1), static_cast<size_t>(bits) + 1);
    EXPECT_EQ(verdict(good), "") << name;
    EXPECT_THAT(verdict(bad), HasSubstr(fmt::format("expected {} bits", bits * 8))) << name;
  }
  EXPECT_THAT(verdict(one("F4", "[3]", "[0,1]", 1)), HasSubstr("expected 12 bits"));
}

TEST(Safetensors, ForeignDtypesAreListedButNotViewed) {
  const TempDir dir;
  const SafetensorsFile file = SafetensorsFile::open(dir.write("a.safetensors", one("F6_E2M3", "[4]", "[0,3]", 3)));
  const SafetensorsEntry* a = file.find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->dtype, DType::none);
  EXPECT_EQ(a->dtype_name, "F6_E2M3");
  EXPECT_EQ(a->bytes(), 3u);
  EXPECT_THROW(file.tensor("a"), Error);
  EXPECT_THROW(file.tensor("b"), Error);
  EXPECT_EQ(file.find("b"), nullptr);
}

struct Stored {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<NamedTensor> tensors;
};

Stored random_tensors(Rng& rng, int count) {
  constexpr DType kTypes[] = {DType::u8, DType::bf16, DType::f32, DType::i64, DType::e4m3, DType::e8m0, DType::boolean};
  Stored stored;
  for (int i = 0; i < count; ++i) {
    std::vector<int64_t> dims(static_cast<size_t>(rng.below(4)));
    for (int64_t& dim : dims) dim = rng.below(6);
    Tensor tensor{nullptr, kTypes[rng.below(std::size(kTypes))], Shape(std::span<const int64_t>(dims))};
    std::vector<std::byte>& bytes = stored.bytes.emplace_back(static_cast<size_t>(tensor.bytes()));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.bits());
    tensor.data = bytes.data();
    stored.tensors.emplace_back(fmt::format("layer.{}.\"é\n\u4e2d.{}", rng.below(100), i), tensor);
  }
  return stored;
}

void expect_stored(const SafetensorsFile& file, const std::vector<NamedTensor>& tensors) {
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const auto& [name, want] : tensors) {
    const Tensor got = file.tensor(name);
    EXPECT_EQ(got.dtype, want.dtype);
    EXPECT_EQ(got.shape, want.shape);
    const size_t bytes = static_cast<size_t>(want.bytes());
    EXPECT_EQ(bytes > 0 ? std::memcmp(got.data, want.data, bytes) : 0, 0) << name;
  }
}

TEST(SafetensorsWriter, RoundTripIsExactAndAligned) {
  Rng rng = fresh_rng();
  const TempDir dir;
  for (int round = 0; round < 50; ++round) {
    const Stored stored = random_tensors(rng, static_cast<int>(rng.below(12)));
    const SafetensorsMetadata metadata = {{"format", "pt"}, {"note", "a \"quoted\" \\ line\n"}};
    write_safetensors(dir.path() / "m.safetensors", stored.tensors, metadata);
    const SafetensorsFile file = SafetensorsFile::open(dir.path() / "m.safetensors");
    expect_stored(file, stored.tensors);
    EXPECT_EQ(file.metadata(), metadata);
    for (const SafetensorsEntry& tensor : file.tensors())
      EXPECT_EQ(reinterpret_cast<uintptr_t>(file.tensor(tensor).data) % static_cast<size_t>(dtype_bytes(tensor.dtype)),
                0u);
  }
}

TEST(SafetensorsWriter, StreamsInDeclaredOrder) {
  Rng rng = fresh_rng();
  const TempDir dir;
  const auto path = dir.path() / "m.safetensors";
  for (int round = 0; round < 50; ++round) {
    const Stored stored = random_tensors(rng, 1 + static_cast<int>(rng.below(8)));
    std::vector<SafetensorsSpec> specs;
    for (const auto& [name, tensor] : stored.tensors) specs.push_back({name, tensor.dtype, tensor.shape});
    SafetensorsWriter writer(path, specs);
    for (const auto& [name, tensor] : stored.tensors) {
      std::span<const std::byte> left(tensor.data, static_cast<size_t>(tensor.bytes()));
      while (!left.empty()) {
        const size_t piece = 1 + static_cast<size_t>(rng.below(static_cast<int64_t>(left.size())));
        writer.write(name, left.first(piece));
        left = left.subspan(piece);
      }
    }
    writer.finish();
    const SafetensorsFile file = SafetensorsFile::open(path);
    expect_stored(file, stored.tensors);
    for (size_t i = 0; i < specs.size(); ++i) EXPECT_EQ(file.tensors()[i].name, specs[i].name);
  }
}

TEST(SafetensorsWriter, AnUnfinishedFileNeverAppears) {
  const TempDir dir;
  const auto path = dir.path() / "m.safetensors";
  std::byte bytes[4] = {};
  write_safetensors(path, {{"old", {bytes, DType::u8, {4}}}});
  {
    SafetensorsWriter writer(path, {{"new", DType::u8, {4}}});
    writer.write("new", std::span(bytes, 2));
  }
  EXPECT_NE(SafetensorsFile::open(path).find("old"), nullptr);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

TEST(SafetensorsWriter, RefusesWhatItCouldNotReadAndWhereItCannotWrite) {
  const TempDir dir;
  const std::vector<SafetensorsSpec> twice = {{"a", DType::u8, {1}}, {"a", DType::u8, {1}}};
  EXPECT_THROW(SafetensorsWriter(dir.path() / "m.safetensors", twice), Error);
  EXPECT_THROW(SafetensorsWriter(dir.path() / "m.safetensors", {{"\xFF", DType::u8, {1}}}), Error);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  EXPECT_THROW(SafetensorsWriter(dir.path() / "none" / "m.safetensors", {}), Error);
}

TEST(SafetensorsWriterDeathTest, MissingAndMisplacedDataAreBugs) {
  const TempDir dir;
  const auto path = dir.path() / "m.safetensors";
  std::byte bytes[8] = {};
  SafetensorsWriter writer(path, {{"a", DType::u8, {4}}, {"b", DType::u8, {4}}});
  EXPECT_DEATH(writer.write("b", bytes), "not the next");
  EXPECT_DEATH(writer.write("a", bytes), "needs 4");
  EXPECT_DEATH(writer.finish(), "0 of 8 bytes");
}

TEST(SafetensorsFile, DroppedPagesReadTheSameAgain) {
  Rng rng = fresh_rng();
  const TempDir dir;
  std::vector<std::byte> data(1 << 20);
  for (std::byte& byte : data) byte = static_cast<std::byte>(rng.bits());
  write_safetensors(dir.path() / "m.safetensors", {{"w", {data.data(), DType::u8, {1 << 20}}}});
  SafetensorsFile moved;
  {
    SafetensorsFile file = SafetensorsFile::open(dir.path() / "m.safetensors");
    moved = std::move(file);
  }
  const SafetensorsEntry& w = *moved.find("w");
  moved.will_need(w, 5000, 100'000);
  moved.drop(w);
  moved.drop(w, 1 << 19);
  moved.drop(w, UINT64_MAX, UINT64_MAX);
  EXPECT_EQ(std::memcmp(moved.tensor(w).data, data.data(), data.size()), 0);
}

}  // namespace
}  // namespace moesaic
