// Sets of code points, and their spellings as bytes: UTF-8, or UTF-8 inside a JSON string.
#pragma once

#include <utility>
#include <vector>

#include "grammar/expr.h"

namespace moesaic::grammar {

inline constexpr char32_t kLastCodePoint = 0x10FFFF;

// Ranges, both ends included; sorted and disjoint after normalize().
struct CodePoints {
  std::vector<std::pair<char32_t, char32_t>> ranges;

  void add(char32_t first, char32_t last) { ranges.emplace_back(first, last); }
  void add(const CodePoints& other) { ranges.insert(ranges.end(), other.ranges.begin(), other.ranges.end()); }
  void normalize();
  CodePoints complement() const;  // within all code points
  bool has(char32_t code) const;
};

enum class Spelling : uint8_t {
  utf8,
  json,  // as Python's json.dumps without ensure_ascii: one spelling for each character
};

// One character of the set. Surrogates are left out: no valid text has them.
ExprId one_of(Pool& pool, const CodePoints& set, Spelling spelling);
// What a repetition of such characters may use: json where the set has at least those characters.
Slice slice_of(const CodePoints& set);
// How `code` is written inside a JSON string.
std::string json_spelling(char32_t code);

}  // namespace moesaic::grammar
