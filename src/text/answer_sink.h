// AnswerSink: what every answer format has in common: text that is content or reasoning, and calls of tools whose
// arguments are written piece by piece. A format's machine drives it, one byte at a time.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "text/chat_format.h"

namespace moesaic {

// Markers reach a machine as single bytes that valid UTF-8 never has; all other bytes are text.
inline constexpr unsigned char kFirstMarker = 0xF5;
inline constexpr unsigned char kThink = 0xF5, kEndThink = 0xF6;  // the same in each format that has them
inline bool is_marker(unsigned char c) {
  return c >= kFirstMarker;
}
inline bool is_json_space(unsigned char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

std::string_view trim_spaces(std::string_view text);

// How a value that markup leaves untyped is to be read.
enum class ValueType : uint8_t {
  text,   // as it is written
  json,   // JSON, or else text
  choice  // JSON of a type that the schema lists beside string, or else text
};

class AnswerSink {
 public:
  // `tools` (array as in the chat completions API, or null) is copied.
  explicit AnswerSink(const Json& tools) : tools_(tools) {}
  void attach(AnswerDelta& out) { out_ = &out; }

  bool reasoning() const { return reasoning_; }
  int calls() const { return calls_; }
  int errors() const { return errors_; }
  void error() { ++errors_; }
  // Whether text, or arguments of a call, came since the last question; what still waits counts.
  bool take_said() { return std::exchange(said_, false); }

  // Text, by byte. Newlines wait where they may belong to the format, at the borders of reasoning and before calls, and
  // so does white space after a call.
  void text(unsigned char c);
  void text(std::string_view bytes);
  // Text is reasoning (or content) from here on; the newlines around the border go.
  void turn(bool reasoning);
  // For formats whose messages say where they begin and end: their text is exact.
  void be_exact() { exact_ = true; }
  // A marker of thinking. Where it was recognised by its letters only, it means something at the beginning (<think>) or
  // while thinking (</think>) and is text elsewhere.
  void think_marker(unsigned char c);
  void think_markers_are_letters() { think_letters_ = true; }
  void drop_newlines() { held_.clear(); }  // a call begins
  // What came so far was the prompt's.
  void begin_answer() { held_.clear(), errors_ = 0, any_text_ = false; }

  // Calls. An empty id asks for a fresh one. One at a time: begin_call ends the one before.
  void begin_call(std::string_view name, std::string_view id = {});
  bool in_call() const { return in_call_; }
  const std::string& call_name() const { return name_; }
  void end_call();
  // The arguments as the model writes them; the white space around them goes.
  void raw(unsigned char c);
  void raw(std::string_view bytes);
  // Arguments given one by one; not after raw ones. False for a key that the call already has: it keeps its first
  // value.
  bool begin_argument(std::string_view key, ValueType type);
  bool in_argument() const { return in_argument_; }
  void value(unsigned char c);
  void end_argument();
  // From the parameters of the call's tool; json where they do not say.
  ValueType declared_type(std::string_view key) const;

  // The end of the answer: what waits comes out, a call stays as it is.
  void finish();

 private:
  bool waits(unsigned char c) const;
  void release();  // what waits was text
  void emit(std::string_view bytes);
  void arguments(std::string_view bytes);
  const JsonObject* property(std::string_view key) const;
  std::string value_as_json() const;

  Json tools_;
  AnswerDelta* out_ = nullptr;
  int calls_ = 0, errors_ = 0;

  bool said_ = false;
  bool reasoning_ = false, exact_ = false, skipping_ = false, after_call_ = false, any_text_ = false,
       think_letters_ = false;
  std::string held_;

  bool in_call_ = false, any_arguments_ = false, in_argument_ = false, repeated_ = false;
  std::string name_, raw_held_, key_;
  std::set<std::string, std::less<>> keys_;
  ValueType type_ = ValueType::text;
  std::string value_;  // of an argument that is not text
};

}  // namespace moesaic
