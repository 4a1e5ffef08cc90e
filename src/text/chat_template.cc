#include "text/chat_template.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/mapped_file.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_lexer.h"
#include "text/jinja_syntax.h"

namespace moesaic {
namespace {

using jinja::Interpreter;
using jinja::Text;
using jinja::Value;

std::string describe(const jinja::RenderFailure& failure) {
  if (failure.raised || failure.line == 0) return failure.what();
  return fmt::format("the chat template failed on line {}: {}", failure.line, failure.what());
}

// Roles and part types name template branches, and templates build special tokens from them. A word of letters cannot
// imitate a token's punctuation; anything else stays marked as input.
bool is_plain_word(const Json& value) {
  if (!value.is_string() || value.get_string().empty() || value.get_string().size() > 32) return false;
  const auto plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return std::all_of(value.get_string().begin(), value.get_string().end(), plain);
}

Value message_value(const Json& message, jinja::Meter& meter) {
  const JsonObject* object = message.if_object();
  if (object == nullptr) return jinja::from_json(message, true, meter);
  std::vector<std::pair<Value, Value>> entries;
  for (const auto& item : *object) {
    const bool trusted = item.key() == "role" && is_plain_word(item.value());
    entries.emplace_back(jinja::make_text(jinja::decode_utf8(item.key(), true)),
                         jinja::from_json(item.value(), !trusted, meter));
  }
  return jinja::make_dict(std::move(entries), meter, true);
}

Value messages_value(const Json& messages, jinja::Meter& meter) {
  std::vector<Value> items;
  if (const JsonArray* array = messages.if_array())
    for (const Json& message : *array) items.push_back(message_value(message, meter));
  return jinja::make_sequence(std::move(items), jinja::SequenceKind::list, true);
}

void define_text(Interpreter& in, const char* name, const std::optional<std::string>& text) {
  if (text) in.define(name, jinja::make_text(jinja::decode_utf8(*text)));
}

std::vector<RenderedSegment> split_segments(const Text& text) {
  std::vector<RenderedSegment> segments;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin;
    while (end < text.size() && jinja::mark_of(text[end]) == jinja::mark_of(text[begin])) ++end;
    segments.push_back(
        {jinja::encode_utf8(jinja::TextView(text).substr(begin, end - begin)), jinja::mark_of(text[begin]) != 0});
    begin = end;
  }
  return segments;
}

// "tok", {"content": "tok", ...}, or nothing.
std::optional<std::string> special_token(const JsonObject& config, std::string_view key, const std::string& where) {
  const Json* token = json_find(config, key);
  if (token == nullptr) return std::nullopt;
  if (token->is_object()) return json_string(token->get_object(), "content", where);
  return json_string(config, key, where);
}

std::optional<std::string> configured_template(const JsonObject& config, std::string_view name,
                                               const std::string& where) {
  const Json* value = json_find(config, "chat_template");
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) return json_string(config, "chat_template", where);
  for (const Json& entry : value->get_array()) {
    const JsonObject& named = json_object(entry, where);
    if (json_string(named, "name", where) == name) return json_string(named, "template", where);
  }
  return std::nullopt;
}

}  // namespace

struct ChatTemplate::Program {
  jinja::Body body;
};

ChatTemplate ChatTemplate::parse(std::string_view source, const std::string& where) {
  ChatTemplate result;
  try {
    result.program_ = std::make_shared<const Program>(Program{jinja::parse(source)});
  } catch (const jinja::SyntaxFailure& failure) {
    fail_data(where, "the chat template cannot be used, {}", failure.what());
  }
  return result;
}

void ChatTemplate::set_special_tokens(std::optional<std::string> bos, std::optional<std::string> eos) {
  bos_token_ = std::move(bos);
  eos_token_ = std::move(eos);
}

Result<std::vector<RenderedSegment>> ChatTemplate::render(const ChatInput& input, const jinja::Limits& limits) const {
  try {
    Interpreter in(limits, input.now.value_or(std::time(nullptr)));
    in.define("messages", messages_value(input.messages, in.meter()));
    in.define("tools", jinja::from_json(input.tools, true, in.meter()));
    in.define("documents", jinja::None{});
    in.define("add_generation_prompt", input.add_generation_prompt);
    define_text(in, "bos_token", input.bos_token ? input.bos_token : bos_token_);
    define_text(in, "eos_token", input.eos_token ? input.eos_token : eos_token_);
    for (const auto& item : input.kwargs) in.define(item.key(), jinja::from_json(item.value(), true, in.meter()));
    return split_segments(in.run(program_->body));
  } catch (const jinja::RenderFailure& failure) {
    return Status(StatusCode::invalid_argument, describe(failure), "messages");
  }
}

std::optional<ChatTemplate> load_chat_template(const std::string& model_dir, std::string_view name) {
  const std::string file = model_dir + "/chat_template.jinja", config_file = model_dir + "/tokenizer_config.json";
  JsonObject config;
  if (std::filesystem::exists(config_file)) config = json_object(read_json_file(config_file), config_file);
  std::optional<ChatTemplate> result;
  if (std::filesystem::exists(file)) {
    result = ChatTemplate::parse(read_text_file(file), file);
  } else if (const auto source = configured_template(config, name, config_file)) {
    result = ChatTemplate::parse(*source, config_file);
  }
  if (result)
    result->set_special_tokens(special_token(config, "bos_token", config_file),
                               special_token(config, "eos_token", config_file));
  return result;
}

Result<std::string> render_template(std::string_view source, const Json& variables, std::optional<std::time_t> now,
                                    const jinja::Limits& limits) {
  try {
    const jinja::Body body = jinja::parse(source);
    Interpreter in(limits, now.value_or(std::time(nullptr)));
    if (const JsonObject* object = variables.if_object())
      for (const auto& item : *object) in.define(item.key(), jinja::from_json(item.value(), false, in.meter()));
    return jinja::encode_utf8(in.run(body));
  } catch (const jinja::SyntaxFailure& failure) {
    return Status(StatusCode::data_loss, failure.what());
  } catch (const jinja::RenderFailure& failure) {
    return Status(StatusCode::invalid_argument, describe(failure));
  }
}

}  // namespace moesaic
