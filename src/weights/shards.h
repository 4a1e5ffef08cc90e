// Shards: the tensors of a checkpoint directory, over one safetensors file or many.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weights/safetensors.h"

namespace moesaic {

// A tensor where it lies in its shard.
struct StoredTensor {
  Tensor tensor;  // a read-only, possibly unaligned view of the mapping (see SafetensorsFile::tensor)
  int shard = 0;  // index into Shards::files()
  const SafetensorsEntry* entry = nullptr;

  std::string_view name() const { return entry->name; }
  DType dtype() const { return entry->dtype; }  // none: not a type this engine computes with
  const Shape& shape() const { return entry->shape; }
  uint64_t bytes() const { return entry->bytes(); }
};

// Movable; views and entries stay valid as long as it lives. Reading from several threads is fine.
class Shards {
 public:
  // Opens the files of model.safetensors.index.json, else model.safetensors, else the only *.safetensors file, and
  // validates every header before any data is read. Throws Error(not_found) when there is no checkpoint,
  // Error(data_loss) when shards are missing, invalid or contradict the index or each other.
  static Shards open(const std::filesystem::path& directory);

  const std::filesystem::path& directory() const { return directory_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }
  // Every tensor's name, sorted.
  std::vector<std::string_view> names() const;
  // Bytes of all tensors.
  uint64_t total_bytes() const;

  std::optional<StoredTensor> find(std::string_view name) const;
  // As find(), but throws Error(data_loss) when there is no such tensor.
  StoredTensor at(std::string_view name) const;

  // Copies bytes of a tensor's view, from any thread, without faulting its pages in.
  void read(const std::byte* view, std::span<std::byte> to) const;

  // Read-ahead and release of bytes [offset, offset + length) of a tensor; a range past its end is cut.
  void will_need(const StoredTensor& stored, uint64_t offset = 0, uint64_t length = UINT64_MAX) const;
  void drop(const StoredTensor& stored, uint64_t offset = 0, uint64_t length = UINT64_MAX) const;

 private:
  struct Place {
    uint32_t shard, index;  // files_[shard].tensors()[index]
  };

  const SafetensorsEntry& entry(Place place) const { return files_[place.shard].tensors()[place.index]; }
  void open_files(const std::vector<std::string>& names);
  void index_names();

  std::filesystem::path directory_;
  std::vector<SafetensorsFile> files_;
  std::vector<Place> places_;  // sorted by name
};

}  // namespace moesaic
