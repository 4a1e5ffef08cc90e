// Dim, Bounds and ValueType: shapes with bounded symbols.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"

namespace moesaic {

// T counts the tokens of a step, S the rows whose logits are wanted. Their values change from step to step and never
// exceed the plan's bounds; everything else about a shape is a number.
enum class Symbol : uint8_t { one, T, S };

struct Dim {
  int64_t factor = 1;
  Symbol symbol = Symbol::one;

  Dim() = default;
  Dim(int64_t n) : factor(n) {}
  Dim(Symbol s, int64_t times = 1) : factor(times), symbol(s) {}
  Dim operator*(int64_t times) const { return Dim(symbol, factor * times); }
  bool operator==(const Dim&) const = default;
  bool fixed() const { return symbol == Symbol::one; }
};

// Values of the symbols: of one step, or the largest that a plan allows.
struct Bounds {
  int64_t tokens = 0;  // T
  int64_t rows = 0;    // S

  int64_t of(Dim dim) const {
    return dim.factor * (dim.symbol == Symbol::T ? tokens : dim.symbol == Symbol::S ? rows : 1);
  }
};

struct ValueType {
  DType dtype = DType::none;
  std::vector<Dim> dims;

  bool operator==(const ValueType&) const = default;
  int rank() const { return static_cast<int>(dims.size()); }
  Dim dim(int i) const { return dims[static_cast<size_t>(i < 0 ? rank() + i : i)]; }
  int64_t bytes(const Bounds& bounds) const;
};

// "f32[T*4,2880]"
std::string to_string(const ValueType& type);
std::string to_string(Dim dim);

}  // namespace moesaic
