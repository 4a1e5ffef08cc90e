#include "weights/shards.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";

// Tensor and shard, as the index has them.
using WeightMap = std::vector<std::pair<std::string, std::string>>;

bool is_file(const fs::path& path) {
  std::error_code ignored;  // a name too long or a directory we may not enter holds no file for us
  return fs::is_regular_file(path, ignored);
}

// Up to five names, quoted, and how many more there are.
std::string list(const std::vector<std::string>& names) {
  constexpr size_t kShown = 5;
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) shown.push_back(json_quote(names[i]));
  const std::string more = names.size() > kShown ? fmt::format(" and {} more", names.size() - kShown) : "";
  return fmt::format("{}{}", fmt::join(shown, ", "), more);
}

// A shard is a plain file name: an index must not reach outside its directory.
void check_shard_name(const Json& shard, std::string_view tensor, const std::string& where) {
  const std::string_view name = shard.is_string() ? std::string_view(shard.get_string()) : std::string_view();
  const bool plain = name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
  if (!plain || !name.ends_with(".safetensors"))
    fail_data(where, "maps tensor {} to {}; expected the name of a .safetensors file in this directory",
              json_quote(tensor), write_json(shard).substr(0, 120));
}

WeightMap read_index(const fs::path& path) {
  const std::string where = path.string();
  const Json json = read_json_file(where, {.unique_keys = true});
  const Json* map = json_find(json_object(json, where), "weight_map");
  if (map == nullptr) fail_data(where, "has no \"weight_map\"");
  WeightMap weights;
  for (const auto& [tensor, shard] : json_object(*map, where + ": weight_map")) {
    check_shard_name(shard, tensor, where);
    weights.emplace_back(tensor, shard.get_string());
  }
  if (weights.empty()) fail_data(where, "maps no tensors; expected at least one");
  return weights;
}

std::vector<std::string> shard_names(const WeightMap& weights) {
  std::vector<std::string> names;
  for (const auto& [tensor, shard] : weights) names.push_back(shard);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

void check_present(const fs::path& directory, const std::vector<std::string>& shards) {
  std::vector<std::string> missing;
  for (const std::string& name : shards)
    if (!is_file(directory / name)) missing.push_back(name);
  if (!missing.empty())
    fail_data((directory / kIndexName).string(), "names {} files of which {} are missing: {}; download them again",
              shards.size(), missing.size(), fmt::join(missing, ", "));
}

std::vector<std::string> files_ending(const fs::path& directory, std::string_view ending) {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& file : fs::directory_iterator(directory, error))
    if (file.path().filename().string().ends_with(ending)) names.push_back(file.path().filename().string());
  if (error) throw Error(StatusCode::not_found, "cannot be listed: " + error.message(), directory.string());
  std::sort(names.begin(), names.end());
  return names;
}

[[noreturn]] void fail_none(const fs::path& directory) {
  std::vector<std::string> others;
  for (const char* ending : {".bin", ".gguf", ".pt", ".pth"})
    for (std::string& name : files_ending(directory, ending)) others.push_back(std::move(name));
  const std::string found = others.empty() ? "no checkpoint" : "only " + list(others);
  throw Error(StatusCode::not_found,
              fmt::format("holds {}; expected {} or {}: convert or download the checkpoint in safetensors form", found,
                          kIndexName, kSingleName),
              directory.string());
}

// "model-00003-of-00015.safetensors" is one of several; without the index nothing says which tensors are missing.
bool is_part_of_several(std::string_view name) {
  const size_t of = name.rfind("-of-");
  if (of == std::string_view::npos) return false;
  const std::string_view count = name.substr(of + 4, name.size() - of - 4 - std::string_view(".safetensors").size());
  const bool digits = !count.empty() && count.find_first_not_of("0123456789") == std::string_view::npos;
  return digits && (count.find_first_not_of('0') != count.size() - 1 || count.back() != '1');
}

std::string find_single(const fs::path& directory) {
  if (is_file(directory / kSingleName)) return kSingleName;
  const std::vector<std::string> names = files_ending(directory, ".safetensors");
  if (names.empty()) fail_none(directory);
  if (names.size() > 1 || is_part_of_several(names[0]))
    fail_data(directory.string(), "holds {} but no {}; download the index too", list(names), kIndexName);
  return names[0];
}

// Every mapped tensor is in its shard; a tensor that the index does not map is only worth a warning.
void check_map(const Shards& shards, const WeightMap& weights, const std::string& where) {
  std::vector<std::string> missing;
  for (const auto& [tensor, shard] : weights) {
    const std::optional<StoredTensor> found = shards.find(tensor);
    const bool there = found && shards.files()[static_cast<size_t>(found->shard)].path().filename() == shard;
    if (!there) missing.push_back(fmt::format("{} in {}", tensor, shard));
  }
  if (!missing.empty())
    fail_data(where, "maps {} tensors that their shards do not hold: {}", missing.size(), list(missing));
  const size_t stored = shards.names().size();
  if (stored == weights.size()) return;
  std::vector<std::string> mapped, extra;
  for (const auto& [tensor, shard] : weights) mapped.push_back(tensor);
  std::sort(mapped.begin(), mapped.end());
  for (std::string_view name : shards.names())
    if (!std::binary_search(mapped.begin(), mapped.end(), name)) extra.emplace_back(name);
  log_warn("{}: does not map {} tensors that its shards hold: {}", where, extra.size(), list(extra));
}

}  // namespace

Shards Shards::open(const fs::path& directory) {
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored))
    throw Error(StatusCode::not_found, "is not a directory; expected a checkpoint directory", directory.string());
  Shards shards;
  shards.directory_ = directory;
  const fs::path index = directory / kIndexName;
  if (!is_file(index)) {
    shards.open_files({find_single(directory)});
    return shards;
  }
  const WeightMap weights = read_index(index);
  const std::vector<std::string> names = shard_names(weights);
  check_present(directory, names);
  shards.open_files(names);
  check_map(shards, weights, index.string());
  return shards;
}

void Shards::open_files(const std::vector<std::string>& names) {
  for (const std::string& name : names) files_.push_back(SafetensorsFile::open(directory_ / name));
  index_names();
}

void Shards::index_names() {
  for (uint32_t shard = 0; shard < files_.size(); ++shard)
    for (uint32_t i = 0; i < files_[shard].tensors().size(); ++i) places_.push_back({shard, i});
  std::sort(places_.begin(), places_.end(), [&](Place a, Place b) { return entry(a).name < entry(b).name; });
  const auto twin = std::adjacent_find(places_.begin(), places_.end(),
                                       [&](Place a, Place b) { return entry(a).name == entry(b).name; });
  if (twin != places_.end())
    fail_data(directory_.string(), "holds tensor {} twice, in {} and {}; expected each tensor once",
              json_quote(entry(*twin).name), files_[twin[0].shard].path().filename().string(),
              files_[twin[1].shard].path().filename().string());
}

std::vector<std::string_view> Shards::names() const {
  std::vector<std::string_view> names;
  names.reserve(places_.size());
  for (const Place place : places_) names.push_back(entry(place).name);
  return names;
}

uint64_t Shards::total_bytes() const {
  uint64_t bytes = 0;
  for (const Place place : places_) bytes += entry(place).bytes();
  return bytes;
}

std::optional<StoredTensor> Shards::find(std::string_view name) const {
  const auto before = [&](Place place, std::string_view wanted) { return entry(place).name < wanted; };
  const auto it = std::lower_bound(places_.begin(), places_.end(), name, before);
  if (it == places_.end() || entry(*it).name != name) return std::nullopt;
  return StoredTensor{files_[it->shard].tensor(entry(*it)), static_cast<int>(it->shard), &entry(*it)};
}

StoredTensor Shards::at(std::string_view name) const {
  const std::optional<StoredTensor> found = find(name);
  if (!found) fail_data(directory_.string(), "has no tensor {}", json_quote(name));
  return *found;
}

void Shards::will_need(const StoredTensor& stored, uint64_t offset, uint64_t length) const {
  files_[static_cast<size_t>(stored.shard)].will_need(*stored.entry, offset, length);
}

void Shards::read(const std::byte* view, std::span<std::byte> to) const {
  const auto has = [&](const SafetensorsFile& file) { return file.read(view, to); };
  CHECK(std::any_of(files_.begin(), files_.end(), has), "bytes of no shard");
}

void Shards::drop(const StoredTensor& stored, uint64_t offset, uint64_t length) const {
  files_[static_cast<size_t>(stored.shard)].drop(*stored.entry, offset, length);
}

}  // namespace moesaic
