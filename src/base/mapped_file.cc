#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/error.h"

namespace moesaic {
namespace {

[[noreturn]] void fail_open(const std::filesystem::path& path, int error) {
  throw Error(StatusCode::not_found, fmt::format("cannot be read: {}", std::strerror(error)), path.string());
}

// madvise wants page-aligned addresses: rounds the range inwards (drop) or outwards (will_need).
void advise(const std::byte* data, size_t size, size_t offset, size_t length, int advice, bool inwards) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  size_t begin = offset, end = std::min(offset, size) + std::min(length, size - std::min(offset, size));
  if (inwards) {
    begin = (begin + page - 1) / page * page;
    end = end == size ? end : end / page * page;
  } else {
    begin = begin / page * page;
  }
  if (begin < end) madvise(const_cast<std::byte*>(data) + begin, end - begin, advice);
}

}  // namespace

MappedFile MappedFile::open(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail_open(path, errno);
  struct stat info {};
  const int stat_error = fstat(fd, &info) != 0 ? errno : 0;
  if (stat_error != 0 || !S_ISREG(info.st_mode)) {
    const int error = stat_error != 0 ? stat_error : S_ISDIR(info.st_mode) ? EISDIR : EINVAL;
    ::close(fd);
    fail_open(path, error);
  }
  MappedFile file;
  file.path_ = path;
  file.size_ = static_cast<size_t>(info.st_size);
  if (file.size_ > 0) {
    void* data = mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd, 0);
    const int error = errno;
    if (data == MAP_FAILED) {
      ::close(fd);
      fail_open(path, error);
    }
    file.data_ = static_cast<const std::byte*>(data);
    file.fd_ = fd;
  } else {
    ::close(fd);
  }
  return file;
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  munmap(const_cast<std::byte*>(data_), size_);
  ::close(fd_);
}

bool MappedFile::read(const std::byte* mapped, std::span<std::byte> to) const {
  if (mapped < data_ || mapped + to.size() > data_ + size_) return false;
  for (size_t done = 0; done < to.size();) {
    const ssize_t count = pread(fd_, to.data() + done, to.size() - done, (mapped - data_) + static_cast<off_t>(done));
    if (count <= 0) {  // as a read of the mapping would, but without a name for what went wrong
      std::memcpy(to.data() + done, mapped + done, to.size() - done);
      break;
    }
    done += static_cast<size_t>(count);
  }
  return true;
}

void MappedFile::will_need(size_t offset, size_t length) const {
  if (data_ != nullptr) advise(data_, size_, offset, length, MADV_WILLNEED, false);
}

void MappedFile::drop(size_t offset, size_t length) const {
  if (data_ != nullptr) advise(data_, size_, offset, length, MADV_DONTNEED, true);
}

std::string read_text_file(const std::filesystem::path& path, size_t limit_bytes) {
  const MappedFile file = MappedFile::open(path);
  if (file.bytes().size() > limit_bytes)
    fail_data(path.string(), "is {} bytes long; expected at most {}", file.bytes().size(), limit_bytes);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace moesaic
