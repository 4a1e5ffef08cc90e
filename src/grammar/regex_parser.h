// Regular expressions (the common part of ECMAScript's and Python's syntax) as expressions over bytes.
#pragma once

#include <optional>
#include <string_view>
#include <utility>

#include "grammar/code_points.h"

namespace moesaic::grammar {

enum class Anchoring : uint8_t {
  full,    // the whole text must match, as with Python's fullmatch
  search,  // a part of the text must match, as JSON schema's `pattern` says
};

// Throws Error(invalid_argument) that says what is wrong and at which byte. `what` names the expression in messages.
ExprId parse_regex(Pool& pool, std::string_view pattern, Spelling spelling, Anchoring anchoring, std::string_view what);

// The set between [ and ], `at` just behind the [; leaves `at` behind the ]. Shared with grammar text.
CodePoints parse_class(std::string_view text, size_t& at, std::string_view what);

// The character that an escape stands for, `at` behind the backslash and before the end; nothing when there is none.
std::optional<char32_t> escaped_character(std::string_view text, size_t& at, bool in_class);
// What {m}, {m,}, {,n} and {m,n} say, `at` on the brace; nothing and no move where it is an ordinary brace.
std::optional<std::pair<int64_t, int64_t>> repetition_bounds(std::string_view text, size_t& at);

}  // namespace moesaic::grammar
