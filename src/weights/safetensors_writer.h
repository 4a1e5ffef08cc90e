// Writing safetensors files: whole tensors at once, or streamed when they do not fit in memory.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weights/safetensors.h"

namespace moesaic {

struct SafetensorsSpec {
  std::string name;
  DType dtype = DType::none;
  Shape shape;
};

// Writes `path` under a temporary name beside it and renames it when complete: readers see the old file or the new
// one, never a part. Tensors lie in declared order without gaps; the data section begins at a multiple of 8.
class SafetensorsWriter {
 public:
  // Writes the header. Throws Error(data_loss) when the declaration is not a valid file (a name twice or not UTF-8),
  // Error(internal) when the file cannot be written.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<SafetensorsSpec>& tensors,
                    const SafetensorsMetadata& metadata = {});

  // Appends bytes to tensor `name`, in as many pieces as the caller likes. Tensors come in declared order, each
  // complete before the next; tensors without elements may be skipped.
  void write(std::string_view name, std::span<const std::byte> bytes);
  // Every tensor is complete: makes the data durable and the file visible. Without it nothing remains.
  void finish();

 private:
  // A file being written; removed again unless it is renamed.
  class PartialFile {
   public:
    explicit PartialFile(std::filesystem::path target);
    ~PartialFile();
    PartialFile(const PartialFile&) = delete;
    PartialFile& operator=(const PartialFile&) = delete;

    void append(std::span<const std::byte> bytes);
    void rename();
    bool open() const { return fd_ >= 0; }
    const std::filesystem::path& target() const { return target_; }

   private:
    [[noreturn]] void fail(int error) const;

    const std::filesystem::path target_, partial_;
    int fd_ = -1;
  };

  SafetensorsHeader header_;
  PartialFile file_;
  size_t current_ = 0;    // tensor being written
  uint64_t written_ = 0;  // bytes of the data section
};

using NamedTensor = std::pair<std::string, Tensor>;

// One call for tensors in memory. The widest elements come first, then by name, so that each tensor is aligned to its
// element.
void write_safetensors(const std::filesystem::path& path, std::vector<NamedTensor> tensors,
                       const SafetensorsMetadata& metadata = {});

}  // namespace moesaic
