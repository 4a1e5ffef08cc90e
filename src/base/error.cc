#include "base/error.h"

#include <cstdio>
#include <cstdlib>

namespace moesaic {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s%s%s\nThis is a bug in moesaic; please report it with this line.\n",
               file, line, condition, message.empty() ? "" : ": ", message.c_str());
  std::abort();
}

}  // namespace moesaic
