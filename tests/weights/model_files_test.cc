#include "weights/model_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "base/error.h"
#include "base/temp_dir.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// No cache unless a test names one; the environment is restored afterwards.
class ResolveModel : public testing::Test {
 protected:
  ResolveModel() {
    for (size_t i = 0; i < std::size(kVariables); ++i) {
      if (const char* value = std::getenv(kVariables[i])) saved_[i] = value;
      unsetenv(kVariables[i]);
    }
    setenv("HOME", (dir.path() / "home").c_str(), 1);
  }
  ~ResolveModel() override {
    for (size_t i = 0; i < std::size(kVariables); ++i)
      saved_[i] ? setenv(kVariables[i], saved_[i]->c_str(), 1) : unsetenv(kVariables[i]);
  }

  // A snapshot in a cache; returns its directory.
  fs::path snapshot(const fs::path& hub, const std::string& commit) const {
    return dir.write(hub / "models--openai--gpt-oss-20b" / "snapshots" / commit / "config.json", "{}").parent_path();
  }
  void main_is(const fs::path& hub, const std::string& commit) const {
    dir.write(hub / "models--openai--gpt-oss-20b" / "refs" / "main", commit);
  }
  static std::string failure(const std::string& model) {
    try {
      return resolve_model(model).string();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), StatusCode::not_found) << e.what();
      return e.what();
    }
  }

  static constexpr const char* kVariables[] = {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"};
  static constexpr const char* kName = "openai/gpt-oss-20b";
  const TempDir dir;

 private:
  std::optional<std::string> saved_[std::size(kVariables)];
};

TEST_F(ResolveModel, DirectoryAndConfigPath) {
  const fs::path config = dir.write("m/config.json", "{}");
  EXPECT_EQ(resolve_model((dir.path() / "m").string()), dir.path() / "m");
  EXPECT_EQ(resolve_model(config.string()), dir.path() / "m");
  EXPECT_THAT(failure(dir.write("m/other.json", "{}").string()), HasSubstr("expected the model's directory"));
}

TEST_F(ResolveModel, CacheLocationsInOrder) {
  const fs::path home = snapshot("home/.cache/huggingface/hub", "aa");
  const fs::path xdg = snapshot("xdg/huggingface/hub", "bb");
  const fs::path hf_home = snapshot("hf/hub", "cc");
  const fs::path hub = snapshot("hub", "dd");
  EXPECT_EQ(resolve_model(kName), home);
  setenv("XDG_CACHE_HOME", (dir.path() / "xdg").c_str(), 1);
  EXPECT_EQ(resolve_model(kName), xdg);
  setenv("HF_HOME", (dir.path() / "hf").c_str(), 1);
  EXPECT_EQ(resolve_model(kName), hf_home);
  setenv("HF_HUB_CACHE", (dir.path() / "hub").c_str(), 1);
  EXPECT_EQ(resolve_model(kName), hub);
  setenv("HF_HUB_CACHE", "", 1);
  EXPECT_EQ(resolve_model(kName), hf_home);
}

TEST_F(ResolveModel, MainOrElseTheNewestSnapshot) {
  const fs::path hub = "home/.cache/huggingface/hub";
  const fs::path first = snapshot(hub, "first"), second = snapshot(hub, "second");
  const auto now = fs::file_time_type::clock::now();
  fs::last_write_time(first, now);
  fs::last_write_time(second, now - std::chrono::hours(1));
  EXPECT_EQ(resolve_model(kName), first);
  fs::last_write_time(second, now + std::chrono::hours(1));
  EXPECT_EQ(resolve_model(kName), second);
  main_is(hub, "first\n");
  EXPECT_EQ(resolve_model(kName), first);
  main_is(hub, "gone");
  EXPECT_THAT(failure(kName), HasSubstr("huggingface-cli download"));
  main_is(hub, "../../elsewhere");
  EXPECT_THROW(resolve_model(kName), Error);
}

TEST_F(ResolveModel, FailureSaysWhereItLookedAndHowToDownload) {
  EXPECT_THAT(failure(kName), AllOf(HasSubstr("huggingface-cli download openai/gpt-oss-20b"),
                                    HasSubstr((dir.path() / "home/.cache/huggingface/hub").string()),
                                    HasSubstr((fs::current_path() / kName).string())));
}

TEST_F(ResolveModel, OtherPathsAreNotNames) {
  for (const std::string model : {"", "/no/such/dir", "./x", "../x", "a/b/c", "a/../b", "a b/c", "a/.b", "x/", "~/x"})
    EXPECT_THAT(failure(model), HasSubstr("does not exist")) << model;
  EXPECT_THAT(failure(std::string(5000, 'x')), HasSubstr("huggingface-cli"));
}

}  // namespace
}  // namespace moesaic
