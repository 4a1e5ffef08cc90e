// Tensor: a view of contiguous row-major elements; owns nothing.
#pragma once

#include <cstddef>

#include "base/dtype.h"
#include "base/shape.h"

namespace moesaic {

struct Tensor {
  std::byte* data = nullptr;
  DType dtype = DType::none;
  Shape shape;

  int64_t bytes() const { return shape.elements() * dtype_bytes(dtype); }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
};

}  // namespace moesaic
