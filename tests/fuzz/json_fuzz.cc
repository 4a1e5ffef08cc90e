// Any text is either refused with an Error or gives a value that is written and read back unchanged.
#include <cmath>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "base/json.h"

namespace moesaic {
namespace {

// Infinities are written as Python writes them and NaN is read as null, so only those options read everything back.
void check_round_trip(const Json& value, const JsonFormat& format) {
  const std::string text = write_json(value, format);
  CHECK(parse_json(text, "written", {.python_constants = true}) == value, "{}", text);
}

void check(std::string_view text, const JsonOptions& options) {
  Json value;
  try {
    value = parse_json(text, "fuzz", options);
  } catch (const Error&) {
    return;
  }
  check_round_trip(value, {});
  check_round_trip(value, {.indent = 2, .ensure_ascii = true});
  check_round_trip(value, {.sort_keys = true, .compact = true});
}

}  // namespace
}  // namespace moesaic

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moesaic;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check(text, {});
  check(text, {.python_constants = true, .unique_keys = true});
  json_quote(text, true);
  return 0;
}
