#include "text/answer_machines.h"

namespace moesaic {

std::string_view tag_name(std::string_view tag) {
  tag = trim_spaces(tag);
  return tag.substr(0, tag.find_first_of(" \n\t"));
}

std::optional<std::string> tag_attribute(std::string_view tag, std::string_view name) {
  // Attributes in order, so that a value which looks like an attribute is not taken for one.
  size_t at = tag.find_first_of(" \n\t");
  while (at != std::string_view::npos) {
    at = tag.find_first_not_of(" \n\t", at);
    const size_t equals = tag.find("=\"", at);
    if (at == std::string_view::npos || equals == std::string_view::npos) break;
    const size_t end = tag.find('"', equals + 2);
    if (end == std::string_view::npos) break;
    if (tag.substr(at, equals - at) == name) return std::string(tag.substr(equals + 2, end - equals - 2));
    at = end + 1;
  }
  return std::nullopt;
}

}  // namespace moesaic
