// A file of flags, for `moesaic serve --config`: the part of YAML that lists of flags need.
#pragma once

#include <string>
#include <vector>

namespace moesaic {

// "max-model-len: 4096" is {"max-model-len", {"4096"}}; lists give several values. Underscores in names become dashes.
struct ConfigEntry {
  std::string name;
  std::vector<std::string> values;
  bool list = false;
};

// Reads "key: value", "key: [a, b]" and "key:" with "- value" lines below, with comments and quotes. Throws Error
// naming `where` and the line for anything else.
std::vector<ConfigEntry> parse_config(const std::string& text, const std::string& where);

}  // namespace moesaic
