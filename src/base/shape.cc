#include "base/shape.h"

#include <fmt/ranges.h>

namespace moesaic {

std::string to_string(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape.dims(), ", "));
}

}  // namespace moesaic
