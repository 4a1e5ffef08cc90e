// Shape: up to 8 dimensions, innermost last, no allocation.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "base/error.h"

namespace moesaic {

class Shape {
 public:
  static constexpr int kMaxRank = 8;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const int64_t> dims) {
    CHECK(dims.size() <= kMaxRank, "rank {}", dims.size());
    for (int64_t d : dims) dims_[rank_++] = d;
  }

  int rank() const { return rank_; }
  // Negative indices count from the end: shape[-1] is the innermost dimension.
  int64_t operator[](int i) const { return dims_[i < 0 ? rank_ + i : i]; }
  std::span<const int64_t> dims() const { return {dims_.data(), static_cast<size_t>(rank_)}; }
  int64_t elements() const {
    int64_t n = 1;
    for (int64_t d : dims()) n *= d;
    return n;
  }
  bool operator==(const Shape& other) const {
    return std::equal(dims().begin(), dims().end(), other.dims().begin(), other.dims().end());
  }

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

// "[8, 64, 96]"
std::string to_string(const Shape& shape);

}  // namespace moesaic
