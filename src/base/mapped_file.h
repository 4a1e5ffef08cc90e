// MappedFile: a read-only memory map of a whole file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace moesaic {

class MappedFile {
 public:
  // Throws Error(not_found) when the file cannot be opened or mapped. An empty file maps to an empty span.
  static MappedFile open(const std::filesystem::path& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

  // Copies bytes of the mapping that begin at `mapped` by reading the file, which costs no page faults; false when they
  // are not of this mapping.
  bool read(const std::byte* mapped, std::span<std::byte> to) const;

  // Tells the kernel that [offset, offset+length) will be read soon, or that its pages may be dropped from this
  // process (they stay in the page cache). Dropping keeps the peak resident size near the packed weights' size.
  void will_need(size_t offset, size_t length) const;
  void drop(size_t offset, size_t length) const;

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int fd_ = -1;
};

// The whole file as text; throws Error(not_found), or Error(data_loss) when it is larger than `limit_bytes`.
std::string read_text_file(const std::filesystem::path& path, size_t limit_bytes = size_t{1} << 30);

}  // namespace moesaic
