#include "text/tokenizer_post_processor.h"

#include "base/error.h"
#include "text/unicode.h"

namespace moesaic {
namespace {

constexpr size_t kMaxIds = 1024;  // published files add one or two

void append_ids(const JsonObject& special_tokens, const std::string& name, const TokenStrings& tokens,
                std::vector<int32_t>& out, const std::string& where) {
  const Json* token = json_find(special_tokens, name);
  const Json* ids = token != nullptr && token->is_object() ? json_find(token->get_object(), "ids") : nullptr;
  if (ids == nullptr || !ids->is_array())
    fail_data(where, "\"special_tokens\" has no ids for {}", quote_beginning(name));
  for (const Json& value : ids->get_array()) {
    const int64_t id = value.is_int64() ? value.get_int64() : -1;
    if (id < 0 || id >= tokens.size() || !tokens.get(static_cast<int32_t>(id)))
      fail_data(where, "{} has the id {}; expected the id of a token", quote_beginning(name),
                write_json(value).substr(0, 40));
    if (out.size() >= kMaxIds) fail_data(where, "adds more than {} tokens to a text", kMaxIds);
    out.push_back(static_cast<int32_t>(id));
  }
}

Surroundings parse_template(const JsonObject& object, const TokenStrings& tokens, const std::string& where) {
  const Json* single = json_find(object, "single");
  if (single == nullptr || !single->is_array()) fail_data(where, "TemplateProcessing has no list \"single\"");
  const Json* special = json_find(object, "special_tokens");
  const JsonObject none;
  const JsonObject& special_tokens = special != nullptr ? json_object(*special, where + ": special_tokens") : none;
  Surroundings result;
  bool seen_text = false;
  for (const Json& value : single->get_array()) {
    const JsonObject& item = json_object(value, where);
    if (const Json* token = json_find(item, "SpecialToken")) {
      const std::string name = json_string(json_object(*token, where), "id", where);
      append_ids(special_tokens, name, tokens, seen_text ? result.after : result.before, where);
    } else if (json_find(item, "Sequence") == nullptr || std::exchange(seen_text, true)) {
      fail_data(where, "\"single\" is {}; expected special tokens around one Sequence",
                write_json(*single).substr(0, 200));
    }
  }
  if (!seen_text) fail_data(where, "\"single\" leaves out the text itself");
  return result;
}

}  // namespace

Surroundings parse_post_processor(const Json* value, const TokenStrings& tokens, const std::string& where) {
  Surroundings result;
  if (value == nullptr) return result;
  const JsonObject& object = json_object(*value, where);
  const std::string type = json_string(object, "type", where);
  if (type == "ByteLevel") return result;  // adjusts offsets, which we do not report
  if (type == "TemplateProcessing") return parse_template(object, tokens, where);
  if (type != "Sequence")
    fail_data(where, "post-processor type {} is not supported; expected Sequence, ByteLevel or TemplateProcessing",
              quote_beginning(type));
  const Json* list = json_find(object, "processors");
  if (list == nullptr || !list->is_array()) fail_data(where, "Sequence has no list \"processors\"");
  for (const Json& item : list->get_array()) {
    const Surroundings outer = parse_post_processor(&item, tokens, where);
    result.before.insert(result.before.begin(), outer.before.begin(), outer.before.end());
    result.after.insert(result.after.end(), outer.after.begin(), outer.after.end());
    if (result.before.size() + result.after.size() > kMaxIds)
      fail_data(where, "adds more than {} tokens to a text", kMaxIds);
  }
  return result;
}

}  // namespace moesaic
