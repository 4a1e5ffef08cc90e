#include "cli/config_file.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"

namespace moesaic {
namespace {

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// A comment begins with # at the line's start or behind a space, outside quotes.
std::string_view without_comment(std::string_view line) {
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote != 0) quote = c == quote ? 0 : quote;
    else if (c == '"' || c == '\'') quote = c;
    else if (c == '#' && (i == 0 || line[i - 1] == ' ' || line[i - 1] == '\t')) return line.substr(0, i);
  }
  return line;
}

struct Reader {
  std::string where;
  size_t number = 0;  // of the line

  [[noreturn]] void fail(std::string_view line, const char* expected) const {
    fail_data(where, "line {} is \"{}\"; expected {}", number, line, expected);
  }

  std::string unquote(std::string_view text) const {
    if (text.empty() || (text[0] != '"' && text[0] != '\'')) return std::string(text);
    if (text.size() < 2 || text.back() != text[0]) fail(text, "a closing quote at its end");
    std::string out;
    const std::string_view inner = text.substr(1, text.size() - 2);
    for (size_t i = 0; i < inner.size(); ++i) {
      const bool escaped = (text[0] == '"' && inner[i] == '\\') || (text[0] == '\'' && inner[i] == '\'');
      if (escaped && ++i == inner.size()) fail(text, "a character behind the last one");
      out += inner[i];
    }
    return out;
  }

  // What stands between the brackets, split at commas outside quotes.
  std::vector<std::string> inline_list(std::string_view text) const {
    if (text.back() != ']') fail(text, "a list that ends with ] on its line");
    text = text.substr(1, text.size() - 2);
    std::vector<std::string> items;
    char quote = 0;
    for (size_t begin = 0, i = 0; i <= text.size(); ++i) {
      const char c = i < text.size() ? text[i] : ',';
      if (quote != 0) quote = c == quote ? 0 : quote;
      else if (c == '"' || c == '\'') quote = c;
      else if (c == ',') {
        if (const auto item = trim(text.substr(begin, i - begin)); !item.empty()) items.push_back(unquote(item));
        begin = i + 1;
      }
    }
    return items;
  }

  ConfigEntry entry(std::string_view line) const {
    const size_t colon = line.find(':');
    const bool splits = colon != std::string_view::npos && (colon + 1 == line.size() || line[colon + 1] == ' ');
    if (!splits || colon == 0) fail(line, "\"flag: value\", with flags as on the command line without their dashes");
    ConfigEntry entry{.name = unquote(trim(line.substr(0, colon))), .values = {}};
    std::replace(entry.name.begin(), entry.name.end(), '_', '-');
    const std::string_view value = trim(line.substr(colon + 1));
    entry.list = value.empty() || value[0] == '[';
    if (value.empty()) return entry;
    if (value[0] == '|' || value[0] == '>' || value[0] == '&' || value[0] == '*')
      fail(line, "a value on one line; YAML's blocks and references are not read");
    if (entry.list) entry.values = inline_list(value);
    else entry.values = {unquote(value)};
    return entry;
  }
};

}  // namespace

std::vector<ConfigEntry> parse_config(const std::string& text, const std::string& where) {
  std::vector<ConfigEntry> entries;
  Reader reader{where};
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view raw = without_comment(std::string_view(text).substr(begin, end - begin));
    const std::string_view line = trim(raw);
    begin = end + 1;
    ++reader.number;
    if (line.empty() || line == "---") continue;
    if (line == "-" || line.starts_with("- ")) {
      if (entries.empty() || !entries.back().list) reader.fail(line, "a line \"flag:\" above it");
      entries.back().values.push_back(reader.unquote(trim(line.substr(1))));
      continue;
    }
    if (raw[0] == ' ' || raw[0] == '\t') reader.fail(line, "no indentation: flags have no flags below them");
    entries.push_back(reader.entry(line));
  }
  for (const ConfigEntry& entry : entries)
    if (entry.list && entry.values.empty()) fail_data(where, "\"{}\" has no value", entry.name);
  return entries;
}

}  // namespace moesaic
