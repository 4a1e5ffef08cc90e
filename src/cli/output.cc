#include "cli/output.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace moesaic {

void write_stdout(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  flush_stdout();
}

void flush_stdout() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  const int error = errno;
  throw Error(StatusCode::internal,
              fmt::format("stdout cannot be written: {}", std::strerror(error != 0 ? error : EIO)));
}

Json finite_or_null(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

}  // namespace moesaic
