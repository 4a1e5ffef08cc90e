#include "weights/safetensors_writer.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "base/json.h"

namespace moesaic {
namespace {

// Appends one member of the header; returns the end of its data.
uint64_t append_entry(std::string& json, const SafetensorsSpec& spec, uint64_t begin) {
  CHECK(spec.dtype != DType::none, "tensor {} has no dtype", spec.name);
  const uint64_t end = begin + static_cast<uint64_t>(spec.shape.elements() * dtype_bytes(spec.dtype));
  fmt::format_to(std::back_inserter(json), "{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                 json.size() > 1 ? "," : "", json_quote(spec.name), safetensors_name(spec.dtype),
                 fmt::join(spec.shape.dims(), ","), begin, end);
  return end;
}

std::string metadata_json(const SafetensorsMetadata& metadata) {
  std::string json = "\"__metadata__\":{";
  for (const auto& [key, text] : metadata)
    json += fmt::format("{}{}:{}", json.back() != '{' ? "," : "", json_quote(key), json_quote(text));
  return json + "}";
}

struct HeaderText {
  std::string bytes;  // length, JSON and padding: a multiple of 8
  uint64_t data_bytes = 0;
};

HeaderText make_header(const std::vector<SafetensorsSpec>& tensors, const SafetensorsMetadata& metadata) {
  std::string json = "{";
  if (!metadata.empty()) json += metadata_json(metadata);
  uint64_t end = 0;
  for (const SafetensorsSpec& spec : tensors) end = append_entry(json, spec, end);
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  const uint64_t length = json.size();
  std::string prefix(sizeof length, '\0');
  std::memcpy(prefix.data(), &length, sizeof length);
  return {prefix + json, end};
}

}  // namespace

SafetensorsWriter::PartialFile::PartialFile(std::filesystem::path target)
    : target_(std::move(target)), partial_(fmt::format("{}.partial-{}", target_.string(), getpid())) {
  fd_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) fail(errno);
}

SafetensorsWriter::PartialFile::~PartialFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(partial_.c_str());
}

void SafetensorsWriter::PartialFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno != EINTR) fail(errno);
    if (n > 0) bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void SafetensorsWriter::PartialFile::rename() {
  if (fsync(fd_) != 0) fail(errno);
  if (std::rename(partial_.c_str(), target_.c_str()) != 0) fail(errno);
  ::close(fd_);
  fd_ = -1;
}

void SafetensorsWriter::PartialFile::fail(int error) const {
  throw Error(StatusCode::internal, fmt::format("cannot be written: {}", std::strerror(error)), target_.string());
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, const std::vector<SafetensorsSpec>& tensors,
                                     const SafetensorsMetadata& metadata)
    : file_(path) {
  const HeaderText text = make_header(tensors, metadata);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text.bytes));
  // What we write is what we would read.
  header_ = parse_safetensors_header(bytes, bytes.size() + text.data_bytes, path.string());
  file_.append(bytes);
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  const std::vector<SafetensorsEntry>& tensors = header_.tensors;
  while (current_ < tensors.size() && tensors[current_].name != name && tensors[current_].end == written_) ++current_;
  CHECK(current_ < tensors.size() && tensors[current_].name == name, "tensor {} is not the next one", name);
  CHECK(bytes.size() <= tensors[current_].end - written_, "{} bytes for {}, which needs {}", bytes.size(), name,
        tensors[current_].end - written_);
  file_.append(bytes);
  written_ += bytes.size();
}

void SafetensorsWriter::finish() {
  CHECK(file_.open(), "{} was finished before", file_.target().string());
  const uint64_t end = header_.tensors.empty() ? 0 : header_.tensors.back().end;
  CHECK(written_ == end, "{}: {} of {} bytes of data were written", file_.target().string(), written_, end);
  file_.rename();
}

void write_safetensors(const std::filesystem::path& path, std::vector<NamedTensor> tensors,
                       const SafetensorsMetadata& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const NamedTensor& a, const NamedTensor& b) {
    return std::pair(-dtype_bits(a.second.dtype), std::string_view(a.first)) <
           std::pair(-dtype_bits(b.second.dtype), std::string_view(b.first));
  });
  std::vector<SafetensorsSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.dtype, tensor.shape});
  SafetensorsWriter writer(path, specs, metadata);
  for (const auto& [name, tensor] : tensors) writer.write(name, {tensor.data, static_cast<size_t>(tensor.bytes())});
  writer.finish();
}

}  // namespace moesaic
