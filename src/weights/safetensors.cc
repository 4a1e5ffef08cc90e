#include "weights/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "base/json.h"

namespace moesaic {
namespace {

constexpr uint64_t kPrefix = 8;  // bytes of the header's length
constexpr size_t kMaxName = 4096;
constexpr uint64_t kMaxDim = INT64_MAX;

struct ForeignType {
  std::string_view name;
  int bits;
};

// Types of the format that we do not compute with: sized, so that the file still validates.
constexpr std::array kForeignTypes = {ForeignType{"C64", 64},        ForeignType{"F8_E4M3FNUZ", 8},
                                      ForeignType{"F8_E5M2FNUZ", 8}, ForeignType{"F6_E2M3", 6},
                                      ForeignType{"F6_E3M2", 6},     ForeignType{"F4", 4}};

// Reads one entry of the header; `where` names the file and the tensor.
class EntryParser {
 public:
  EntryParser(std::string_view name, const std::string& file)
      : name_(name), where_(fmt::format("{}: tensor {}", file, json_quote(name.substr(0, 200)))) {}

  SafetensorsEntry parse(const Json& value) const {
    if (name_.size() > kMaxName)
      fail_data(where_, "has a name of {} bytes; expected at most {}", name_.size(), kMaxName);
    const JsonObject& fields = json_object(value, where_);
    SafetensorsEntry entry;
    entry.name = name_;
    const int bits = read_dtype(fields, entry);
    entry.shape = read_shape(fields);
    read_offsets(fields, entry);
    check_size(entry, bits);
    return entry;
  }

 private:
  // Returns the width of an element in bits.
  int read_dtype(const JsonObject& fields, SafetensorsEntry& entry) const {
    const std::string name = json_string(fields, "dtype", where_);
    if (const std::optional<DType> dtype = parse_safetensors_dtype(name)) {
      entry.dtype = *dtype;
      entry.dtype_name = safetensors_name(*dtype);
      return dtype_bits(*dtype);
    }
    const auto same = [&](const ForeignType& type) { return type.name == name; };
    const auto found = std::find_if(kForeignTypes.begin(), kForeignTypes.end(), same);
    if (found == kForeignTypes.end()) fail_data(where_, "has the unknown dtype {}", json_quote(name.substr(0, 80)));
    entry.dtype_name = found->name;
    return found->bits;
  }

  Shape read_shape(const JsonObject& fields) const {
    const JsonArray& dims = read_array(fields, "shape");
    if (dims.size() > Shape::kMaxRank)
      fail_data(where_, "has {} dimensions; expected at most {}", dims.size(), Shape::kMaxRank);
    std::array<int64_t, Shape::kMaxRank> out{};
    for (size_t i = 0; i < dims.size(); ++i) {
      const uint64_t dim = read_count(dims[i], "shape");
      if (dim > kMaxDim) fail_data(where_, "has a dimension of {}, which overflows 63 bits", dim);
      out[i] = static_cast<int64_t>(dim);
    }
    return Shape(std::span<const int64_t>(out.data(), dims.size()));
  }

  void read_offsets(const JsonObject& fields, SafetensorsEntry& entry) const {
    const JsonArray& offsets = read_array(fields, "data_offsets");
    if (offsets.size() != 2) fail_data(where_, "has {} data_offsets; expected [begin, end]", offsets.size());
    entry.begin = read_count(offsets[0], "data_offsets");
    entry.end = read_count(offsets[1], "data_offsets");
    if (entry.begin > entry.end)
      fail_data(where_, "has data_offsets [{}, {}]; expected begin <= end", entry.begin, entry.end);
  }

  // Shape and dtype must fill the offsets to the bit.
  void check_size(const SafetensorsEntry& entry, int bits) const {
    int64_t total_bits = bits;
    for (int64_t dim : entry.shape.dims())
      if (__builtin_mul_overflow(total_bits, dim, &total_bits))
        fail_data(where_, "has shape {}, whose size in bits overflows 63 bits", to_string(entry.shape));
    const uint64_t expected = static_cast<uint64_t>(total_bits) / 8;
    if (total_bits % 8 != 0 || expected != entry.bytes())
      fail_data(where_, "has {} bytes of data (data_offsets [{}, {}]); expected {} bits for {} {}", entry.bytes(),
                entry.begin, entry.end, total_bits, entry.dtype_name, to_string(entry.shape));
  }

  const JsonArray& read_array(const JsonObject& fields, std::string_view key) const {
    const Json* value = json_find(fields, key);
    if (value == nullptr || !value->is_array()) fail_data(where_, "has no array \"{}\"", key);
    return value->get_array();
  }

  uint64_t read_count(const Json& value, std::string_view key) const {
    if (value.is_uint64()) return value.get_uint64();
    if (value.is_int64() && value.get_int64() >= 0) return static_cast<uint64_t>(value.get_int64());
    fail_data(where_, "has {} in its {}; expected whole numbers from 0", write_json(value).substr(0, 80), key);
  }

  const std::string_view name_;
  const std::string where_;
};

SafetensorsMetadata read_metadata(const Json& value, const std::string& where) {
  const std::string name = where + ": __metadata__";
  SafetensorsMetadata metadata;
  for (const auto& [key, text] : json_object(value, name)) {
    if (!text.is_string())
      fail_data(name, "{} is {}; expected a string", json_quote(key), write_json(text).substr(0, 80));
    metadata.emplace_back(key, text.get_string());
  }
  return metadata;
}

// Empty tensors at one place keep the header's order.
void sort_by_data(std::vector<SafetensorsEntry>& tensors) {
  std::vector<std::tuple<uint64_t, uint64_t, size_t>> order;
  for (const SafetensorsEntry& entry : tensors) order.emplace_back(entry.begin, entry.end, order.size());
  std::sort(order.begin(), order.end());
  std::vector<SafetensorsEntry> sorted;
  sorted.reserve(tensors.size());
  for (const auto& [begin, end, index] : order) sorted.push_back(std::move(tensors[index]));
  tensors = std::move(sorted);
}

// Every tensor begins where the one before it ended, and the last ends with the file.
void check_cover(const SafetensorsHeader& header, uint64_t file_size, const std::string& where) {
  uint64_t end = 0;
  std::string_view previous;
  for (const SafetensorsEntry& entry : header.tensors) {
    if (entry.begin != end)
      fail_data(where, "tensor {} begins at data byte {}; expected {}: {} tensor {}", json_quote(entry.name),
                entry.begin, end, entry.begin > end ? "there is a hole after" : "it overlaps", json_quote(previous));
    end = entry.end;
    previous = entry.name;
  }
  const uint64_t data = file_size - header.data_begin;
  if (end == data) return;
  fail_data(where, "is {} bytes long; expected {}, where the data of tensor {} ends: {}", file_size,
            header.data_begin + std::min(end, UINT64_MAX - header.data_begin), json_quote(previous),
            end > data ? "the file is cut short, copy or download it again" : "there are trailing bytes");
}

void index_names(SafetensorsHeader& header) {
  header.by_name.resize(header.tensors.size());
  std::iota(header.by_name.begin(), header.by_name.end(), 0u);
  const auto earlier = [&](uint32_t a, uint32_t b) { return header.tensors[a].name < header.tensors[b].name; };
  std::sort(header.by_name.begin(), header.by_name.end(), earlier);
}

uint64_t load_u64(const std::byte* data) {
  static_assert(std::endian::native == std::endian::little);
  uint64_t value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

}  // namespace

const SafetensorsEntry* SafetensorsHeader::find(std::string_view name) const {
  const auto before = [&](uint32_t index, std::string_view wanted) { return tensors[index].name < wanted; };
  const auto it = std::lower_bound(by_name.begin(), by_name.end(), name, before);
  return it != by_name.end() && tensors[*it].name == name ? &tensors[*it] : nullptr;
}

uint64_t safetensors_header_bytes(std::span<const std::byte> prefix, uint64_t file_size, const std::string& where) {
  if (file_size < kPrefix) fail_data(where, "is {} bytes long; expected at least {}", file_size, kPrefix);
  CHECK(prefix.size() >= kPrefix, "{} bytes of a prefix", prefix.size());
  const uint64_t length = load_u64(prefix.data());
  if (length > kMaxSafetensorsHeader)
    fail_data(where, "declares a header of {} bytes; expected at most {}: not a safetensors file", length,
              kMaxSafetensorsHeader);
  if (length > file_size - kPrefix)
    fail_data(where, "is {} bytes long; expected at least {} for its header: it is cut short or not a safetensors file",
              file_size, length + kPrefix);
  return length + kPrefix;
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> prefix_and_header, uint64_t file_size,
                                           const std::string& where) {
  SafetensorsHeader header;
  header.data_begin = safetensors_header_bytes(prefix_and_header, file_size, where);
  CHECK(prefix_and_header.size() >= header.data_begin, "{} of {} bytes", prefix_and_header.size(), header.data_begin);
  const std::string_view text(reinterpret_cast<const char*>(prefix_and_header.data()) + kPrefix,
                              header.data_begin - kPrefix);
  if (!text.starts_with('{')) fail_data(where, "has a header that does not begin with {{: not a safetensors file");
  const std::string name = where + ": header";
  const Json json = parse_json(text, name, {.unique_keys = true, .max_depth = 8});
  for (const auto& [key, value] : json_object(json, name)) {
    if (key == "__metadata__") header.metadata = read_metadata(value, where);
    else header.tensors.push_back(EntryParser(key, where).parse(value));
  }
  sort_by_data(header.tensors);
  check_cover(header, file_size, where);
  index_names(header);
  return header;
}

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  SafetensorsFile file;
  file.file_ = MappedFile::open(path);
  const std::span<const std::byte> bytes = file.file_.bytes();
  file.header_ = parse_safetensors_header(bytes, bytes.size(), path.string());
  return file;
}

Tensor SafetensorsFile::tensor(const SafetensorsEntry& entry) const {
  const std::byte* data = file_.bytes().data() + header_.data_begin + entry.begin;
  return {const_cast<std::byte*>(data), entry.dtype, entry.shape};
}

Tensor SafetensorsFile::tensor(std::string_view name) const {
  const SafetensorsEntry* entry = find(name);
  if (entry == nullptr) fail_data(path().string(), "has no tensor {}", json_quote(name));
  if (entry->dtype == DType::none)
    fail_data(path().string(), "tensor {} is {}, a type this engine does not compute with", json_quote(name),
              entry->dtype_name);
  return tensor(*entry);
}

void SafetensorsFile::will_need(const SafetensorsEntry& entry, uint64_t offset, uint64_t length) const {
  offset = std::min(offset, entry.bytes());
  file_.will_need(header_.data_begin + entry.begin + offset, std::min(length, entry.bytes() - offset));
}

void SafetensorsFile::drop(const SafetensorsEntry& entry, uint64_t offset, uint64_t length) const {
  offset = std::min(offset, entry.bytes());
  file_.drop(header_.data_begin + entry.begin + offset, std::min(length, entry.bytes() - offset));
}

}  // namespace moesaic
