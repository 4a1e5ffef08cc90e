#include "weights/model_files.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

// A path too long or in a directory we may not enter is neither.
bool has_directory(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

std::optional<fs::path> env_path(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0' ? std::optional<fs::path>(text) : std::nullopt;
}

// Empty when not even HOME is set.
fs::path hub_directory() {
  if (const auto path = env_path("HF_HUB_CACHE")) return *path;
  if (const auto path = env_path("HF_HOME")) return *path / "hub";
  if (const auto path = env_path("XDG_CACHE_HOME")) return *path / "huggingface" / "hub";
  if (const auto path = env_path("HOME")) return *path / ".cache" / "huggingface" / "hub";
  return {};
}

// "name" or "organisation/name" in the letters that Hugging Face allows.
bool is_repository_name(std::string_view model) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/";
  const auto slashes = std::count(model.begin(), model.end(), '/');
  return !model.empty() && model.find_first_not_of(kLetters) == std::string_view::npos && slashes <= 1 &&
         model.front() != '/' && model.back() != '/' && model.front() != '.' &&
         model.find("..") == std::string_view::npos && model.find("/.") == std::string_view::npos;
}

fs::path cache_directory(const fs::path& hub, std::string_view model) {
  std::string name = "models--";
  for (char c : model) name += c == '/' ? std::string("--") : std::string(1, c);
  return hub / name;
}

// The commit that refs/main names; nothing without that file.
std::optional<std::string> main_commit(const fs::path& repository) {
  const fs::path ref = repository / "refs" / "main";
  if (!is_file(ref)) return std::nullopt;
  std::string commit = read_text_file(ref, 4096);
  commit.erase(commit.find_last_not_of(" \t\r\n") + 1);
  if (commit.empty() || commit.front() == '.' || commit.find('/') != std::string::npos)
    fail_data(ref.string(), "does not hold a commit; delete it and download the model again");
  return commit;
}

std::optional<fs::path> newest_directory(const fs::path& directory) {
  std::optional<fs::path> newest;
  if (!has_directory(directory)) return newest;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored))
    if (has_directory(entry.path()) && (!newest || fs::last_write_time(*newest) < entry.last_write_time()))
      newest = entry.path();
  return newest;
}

std::optional<fs::path> find_snapshot(const fs::path& repository) {
  const fs::path snapshots = repository / "snapshots";
  const std::optional<std::string> commit = main_commit(repository);
  if (!commit) return newest_directory(snapshots);
  const fs::path snapshot = snapshots / *commit;
  return has_directory(snapshot) ? std::optional(snapshot) : std::nullopt;
}

[[noreturn]] void fail_missing(const std::string& model, const std::string& message) {
  throw Error(StatusCode::not_found, message, model);
}

}  // namespace

fs::path resolve_model(const std::string& model) {
  if (has_directory(model)) return model;
  const fs::path path(model);
  if (is_file(path)) {
    if (path.filename() != "config.json") fail_missing(model, "is a file; expected the model's directory");
    return path.has_parent_path() ? path.parent_path() : fs::path(".");
  }
  if (!is_repository_name(model))
    fail_missing(model, "does not exist; expected a model directory or a name such as openai/gpt-oss-20b");
  const fs::path repository = cache_directory(hub_directory(), model);
  if (const std::optional<fs::path> snapshot = find_snapshot(repository)) return *snapshot;
  fail_missing(model, fmt::format("is neither a directory here ({}) nor a snapshot in the Hugging Face cache ({}); "
                                  "download it with: huggingface-cli download {}",
                                  fs::absolute(path).string(), repository.string(), model));
}

}  // namespace moesaic
