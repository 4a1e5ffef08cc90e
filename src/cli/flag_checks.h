// Checks of flags whose messages a person can read; CLI11's own name the largest double.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>

namespace moesaic {

inline bool is_number(const std::string& text, double& value) {
  char* end = nullptr;
  value = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0';
}

inline const CLI::Validator kAboveZero(
    [](std::string& text) {
      double value = 0;
      return is_number(text, value) && value > 0 ? "" : "found " + text + "; expected a number above 0";
    },
    "POSITIVE");

inline const CLI::Validator kZeroOrMore(
    [](std::string& text) {
      double value = 0;
      return is_number(text, value) && value >= 0 ? "" : "found " + text + "; expected 0 or more";
    },
    "NONNEGATIVE");

}  // namespace moesaic
