// Reading safetensors files: one validator for every read path, and a mapped file with tensor views.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/mapped_file.h"
#include "base/shape.h"
#include "base/tensor.h"

namespace moesaic {

// Texts stored under "__metadata__", in the order of the header.
using SafetensorsMetadata = std::vector<std::pair<std::string, std::string>>;

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::none;    // none: a type of the format that this engine does not compute with (F4, C64, ...)
  std::string_view dtype_name;  // as the header spells it, a literal
  Shape shape;
  uint64_t begin = 0, end = 0;  // bytes from the start of the data section

  uint64_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // in the order of their data; they cover the data section exactly
  SafetensorsMetadata metadata;
  uint64_t data_begin = 0;  // bytes before the data section: 8 and the header's length

  // The entry called `name`, or null.
  const SafetensorsEntry* find(std::string_view name) const;

  std::vector<uint32_t> by_name;  // indices into `tensors`, sorted by name
};

// The largest header that is read, the limit of the format's own reader.
constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

// How many bytes the length prefix and the header take. `prefix` is the start of a file of `file_size` bytes: 8 bytes
// or more, or the whole file when it is shorter. Throws Error(data_loss) when the declared length cannot be true.
uint64_t safetensors_header_bytes(std::span<const std::byte> prefix, uint64_t file_size, const std::string& where);

// Parses and validates a header: names, dtypes and shapes, and that the tensors cover the rest of the file without
// holes, overlaps or slack. `prefix_and_header` holds at least safetensors_header_bytes() bytes; more are ignored.
// Reads nothing else, so that a mapped and a buffered file get the same verdict. Throws Error(data_loss) naming
// `where`, the tensor, what was found and what was expected.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> prefix_and_header, uint64_t file_size,
                                           const std::string& where);

// A validated file in memory. Views stay valid as long as this object, wherever it is moved.
class SafetensorsFile {
 public:
  // Throws Error(not_found) when it cannot be read, Error(data_loss) when it is not a valid file.
  static SafetensorsFile open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  // MappedFile::read of bytes that a tensor views.
  bool read(const std::byte* view, std::span<std::byte> to) const { return file_.read(view, to); }
  const std::vector<SafetensorsEntry>& tensors() const { return header_.tensors; }
  const SafetensorsMetadata& metadata() const { return header_.metadata; }
  const SafetensorsEntry* find(std::string_view name) const { return header_.find(name); }

  // A view of the mapping. The memory is read-only, although Tensor's pointer is not const. The format promises no
  // alignment at all, not even to the element: read with unaligned loads or memcpy. The view's dtype is none for a
  // type this engine does not compute with.
  Tensor tensor(const SafetensorsEntry& entry) const;
  // Throws Error(data_loss) when there is no such tensor or its type is not one this engine computes with.
  Tensor tensor(std::string_view name) const;

  // Read-ahead and release of bytes [offset, offset + length) of a tensor; a range past its end is cut. Pages shared
  // with a neighbouring tensor stay.
  void will_need(const SafetensorsEntry& entry, uint64_t offset = 0, uint64_t length = UINT64_MAX) const;
  void drop(const SafetensorsEntry& entry, uint64_t offset = 0, uint64_t length = UINT64_MAX) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
};

}  // namespace moesaic
