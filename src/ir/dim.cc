#include "ir/dim.h"

#include <fmt/format.h>

namespace moesaic {

int64_t ValueType::bytes(const Bounds& bounds) const {
  int64_t n = dtype_bytes(dtype);
  for (Dim d : dims) n *= bounds.of(d);
  return n;
}

std::string to_string(Dim dim) {
  if (dim.fixed()) return fmt::format("{}", dim.factor);
  const char* name = dim.symbol == Symbol::T ? "T" : "S";
  return dim.factor == 1 ? name : fmt::format("{}*{}", name, dim.factor);
}

std::string to_string(const ValueType& type) {
  std::string out = fmt::format("{}[", dtype_name(type.dtype));
  for (size_t i = 0; i < type.dims.size(); ++i) out += (i > 0 ? "," : "") + to_string(type.dims[i]);
  return out + "]";
}

}  // namespace moesaic
