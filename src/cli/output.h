// What commands write to stdout: failures are errors, since a full disk must not look like success.
#pragma once

#include <string_view>

#include "base/json.h"

namespace moesaic {

// Writes text and flushes it. Throws Error when it does not arrive.
void write_stdout(std::string_view text);
// Flushes what was printed by other means. Throws Error when that, or an earlier write, failed.
void flush_stdout();

// JSON has no NaN and no infinity.
Json finite_or_null(double value);

}  // namespace moesaic
