// One machine per family of answer formats. Each takes an answer's bytes one at a time, markers included, and tells the
// sink what they are; so nothing depends on where tokens are cut.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/answer_markers.h"
#include "text/answer_sink.h"

namespace moesaic {

// Markup that goes on for longer than this without its end is text.
inline constexpr size_t kMaxHeaderBytes = 4096;

// Text, thinking between <think> and </think>, and calls as JSON between <tool_call> and </tool_call> (Qwen3).
struct ThinkMachine {
  static std::span<const AnswerMarker> markers(bool tools);
  void feed(AnswerSink& sink, unsigned char c);
  void finish(AnswerSink& sink);

  bool in_call = false;
  std::string call;    // what came of it, up to the arguments where these are streamed
  int64_t depth = -1;  // of the brackets in the streamed arguments; -1: not yet; 0: they have ended
  bool quoted = false, escaped = false;

 private:
  void feed_call(AnswerSink& sink, unsigned char c);
  void argument(AnswerSink& sink, unsigned char c);
  void end_call(AnswerSink& sink, bool proper);
};

// gpt-oss: messages with headers (openai/harmony docs/format.md).
struct HarmonyMachine {
  static std::span<const AnswerMarker> markers();
  void feed(AnswerSink& sink, unsigned char c);
  void finish(AnswerSink& sink);
  void begin_answer();  // what came so far was the prompt's

  enum class Part : uint8_t { none, role, prompted, channel, type, body };
  Part part = Part::none;
  bool call = false;  // the body is a call's arguments
  std::string role_text, channel_text;

 private:
  void prompted(AnswerSink& sink, unsigned char c);
  void begin_body(AnswerSink& sink);
  void end_message(AnswerSink& sink);
};

// Calls between special tokens: Kimi K2 and K2.5, DeepSeek V3, R1 and V3.1.
struct SectionMachine {
  enum class Style : uint8_t { kimi, deepseek };
  explicit SectionMachine(Style s) : style(s) {}
  static std::span<const AnswerMarker> markers(Style style);
  void feed(AnswerSink& sink, unsigned char c);
  void finish(AnswerSink& sink);

  Style style;
  enum class Part : uint8_t { text, header, name, fence, arguments };
  Part part = Part::text;
  bool fenced = false;
  std::string header;  // between a call's beginning and its arguments
  std::string held;    // what may belong to the fence after fenced arguments

 private:
  void marker(AnswerSink& sink, unsigned char c);
  bool begin_call(AnswerSink& sink);  // named by `header`; false when that is no name
  void begin_arguments(AnswerSink& sink, Part next);
  void end_call(AnswerSink& sink, bool proper);
  void argument(AnswerSink& sink, unsigned char c);
  void argument_text(AnswerSink& sink, std::string_view text);
};

// DeepSeek V3.2 and V4: tags whose names begin with the token DSML.
struct DsmlMachine {
  static std::span<const AnswerMarker> markers(bool tools);
  void feed(AnswerSink& sink, unsigned char c);
  void finish(AnswerSink& sink);

  bool in_tag = false, closing = false, quoted = false, block = false, raw = false;
  std::string tag;
  std::string_view pending;  // "<" or "</", which may begin a tag

 private:
  void plain(AnswerSink& sink, unsigned char c);
  void open(AnswerSink& sink);
  void close(AnswerSink& sink);
  void parameter(AnswerSink& sink);
  void feed_tag(AnswerSink& sink, unsigned char c);
  void end_call(AnswerSink& sink);
};

// GLM 4.5 to 5: calls between tags that are tokens; values are typed by the tool's schema.
struct GlmMachine {
  static std::span<const AnswerMarker> markers(bool tools);
  void feed(AnswerSink& sink, unsigned char c);
  void finish(AnswerSink& sink);

  enum class Part : uint8_t { text, name, between, key, value };
  Part part = Part::text;
  std::string buffer;  // a name or a key

 private:
  void marker(AnswerSink& sink, unsigned char c);
  bool begin_call(AnswerSink& sink);
  void begin_value(AnswerSink& sink);
};

// Kimi K3: elements opened and closed by special tokens.
struct XtmlMachine {
  static std::span<const AnswerMarker> markers();
  void feed(AnswerSink& sink, unsigned char c);
  void finish(AnswerSink& sink);

  bool in_header = false, closing = false, raw = false;
  bool outside = false;  // of the channels: white space there is not text
  std::string header;

 private:
  void text(AnswerSink& sink, unsigned char c);
  void header_byte(AnswerSink& sink, unsigned char c);
  void open(AnswerSink& sink);
  void close(AnswerSink& sink);
  void open_argument(AnswerSink& sink);
};

// The markers of a format; without tools those of calls are left out where they are text to a model without tools.
std::span<const AnswerMarker> answer_markers(ChatFormat format, bool tools);
// Where an answer to `prompt` begins as to <think> and </think>.
enum class PromptThinking : uint8_t { none, open, closed };
PromptThinking prompt_thinking(const Tokenizer& tokenizer, std::span<const int32_t> prompt);
// The part of the prompt that belongs to the answer's message, for harmony and Kimi K3.
std::span<const int32_t> begun_message(ChatFormat format, const Tokenizer& tokenizer, std::span<const int32_t> prompt);

// The value of an attribute NAME="VALUE" in a tag's text; empty when it is not there.
std::optional<std::string> tag_attribute(std::string_view tag, std::string_view name);
// The first word of a tag's text.
std::string_view tag_name(std::string_view tag);

}  // namespace moesaic
