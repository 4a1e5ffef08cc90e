// Any bytes are either refused with an Error or give tensors that cover the data section exactly.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "base/error.h"
#include "weights/safetensors.h"

namespace moesaic {
namespace {

void check_cover(const SafetensorsHeader& header, uint64_t file_size) {
  uint64_t end = 0;
  for (const SafetensorsEntry& tensor : header.tensors) {
    CHECK(tensor.begin == end && tensor.end >= tensor.begin, "{}", tensor.name);
    CHECK(header.find(tensor.name) == &tensor, "{}", tensor.name);
    if (tensor.dtype != DType::none)
      CHECK(Tensor({nullptr, tensor.dtype, tensor.shape}).bytes() == static_cast<int64_t>(tensor.bytes()));
    end = tensor.end;
  }
  CHECK(header.data_begin + end == file_size, "{} {} {}", header.data_begin, end, file_size);
}

}  // namespace
}  // namespace moesaic

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moesaic;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  try {
    check_cover(parse_safetensors_header(bytes, size, "fuzz"), size);
  } catch (const Error&) {
  }
  return 0;
}
