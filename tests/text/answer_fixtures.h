// A tokenizer with the markers that a test wants, and texts cut into tokens in any way.
#pragma once

#include <map>

#include "text/chat_format.h"
#include "text/tokenizer_fixtures.h"

namespace moesaic {

// The 256 bytes, some words, and `markers` as added tokens.
class AnswerTokens {
 public:
  explicit AnswerTokens(std::vector<std::string> markers) : markers_(std::move(markers)) {
    TokenizerParts parts;
    JsonObject vocab;
    for (int byte = 0; byte < 256; ++byte) vocab[letter(static_cast<unsigned char>(byte))] = byte;
    for (const std::string& word : words()) {
      std::string name;
      for (const char c : word) name += letter(static_cast<unsigned char>(c));
      vocab[name] = static_cast<int64_t>(vocab.size());
    }
    parts.vocab = write_json(Json(vocab));
    parts.merges = "[]";
    parts.decoder = R"({"type":"ByteLevel"})";
    parts.added = "[";
    for (size_t i = 0; i < markers_.size(); ++i) parts.added += (i > 0 ? "," : "") + added_token(id(i), markers_[i]);
    parts.added += "]";
    tokenizer_ = make_tokenizer(parts);
  }

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  // Markers become their tokens; the rest is cut into bytes, or, with `rng`, into any tokens that spell it.
  std::vector<int32_t> ids(std::string_view text, Rng* rng = nullptr) const {
    std::vector<int32_t> out;
    while (!text.empty()) {
      const auto [token, size] = next(text, rng);
      out.push_back(token);
      text.remove_prefix(size);
    }
    return out;
  }
  // Text that merely looks like a marker.
  std::vector<int32_t> letters(std::string_view text) const {
    std::vector<int32_t> out;
    for (const char c : text) out.push_back(static_cast<unsigned char>(c));
    return out;
  }

 private:
  static const std::vector<std::string>& words() {
    static const std::vector<std::string> made = {
        "</",  "tool", "_calls", "\">\n", "invoke", " name=\"", "functions", ">\n",  "```",  "json", "\n\n", "{\"",
        "\"}", "\": ", "argu",   "ment",  "think",  "analysis", "final",     " to=", "call", "key",  "=\"",  "❤️"};
    return made;
  }
  static int32_t id(size_t marker) { return static_cast<int32_t>(256 + words().size() + marker); }
  // The letter that stands for a byte in byte-level vocabularies.
  static std::string letter(unsigned char byte) {
    static const std::vector<char32_t> letters = [] {
      std::vector<char32_t> made(256, 0);
      char32_t next = 256;
      for (char32_t b = 0; b < 256; ++b) {
        const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        made[b] = printable ? b : next++;
      }
      return made;
    }();
    std::string out;
    append_utf8(out, letters[byte]);
    return out;
  }
  std::pair<int32_t, size_t> next(std::string_view text, Rng* rng) const {
    for (size_t i = 0; i < markers_.size(); ++i)
      if (text.starts_with(markers_[i])) return {id(i), markers_[i].size()};
    for (size_t i = 0; rng != nullptr && i < words().size(); ++i)
      if (text.starts_with(words()[i]) && rng->below(3) != 0) return {static_cast<int32_t>(256 + i), words()[i].size()};
    return {static_cast<unsigned char>(text.front()), 1};
  }

  std::vector<std::string> markers_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

struct ParsedCall {
  std::string id, name, arguments;
  bool operator==(const ParsedCall&) const = default;
};

struct ParsedAnswer {
  std::string content, reasoning;
  std::vector<ParsedCall> calls;
  int errors = 0;

  // Fresh ids differ from run to run; only those that a model wrote are compared.
  bool operator==(const ParsedAnswer&) const = default;
};

inline void PrintTo(const ParsedAnswer& a, std::ostream* out) {
  *out << "content " << testing::PrintToString(a.content) << ", reasoning " << testing::PrintToString(a.reasoning);
  for (const ParsedCall& c : a.calls) *out << ", call " << c.id << " " << c.name << "(" << c.arguments << ")";
  *out << ", " << a.errors << " errors";
}

// Puts the deltas together as a client does, and checks what the API promises of them.
class AnswerReader {
 public:
  explicit AnswerReader(AnswerParser parser) : parser_(std::move(parser)) {}

  // The deltas of several tokens may come together, as in one step of the engine.
  void push(std::span<const int32_t> tokens) {
    AnswerDelta delta;
    for (const int32_t token : tokens) parser_.push(token, delta);
    take(delta);
  }
  ParsedAnswer finish() {
    AnswerDelta delta;
    parser_.flush(delta);
    take(delta);
    EXPECT_EQ(parser_.calls(), static_cast<int>(answer_.calls.size()));
    answer_.errors = parser_.errors();
    return answer_;
  }
  const AnswerParser& parser() const { return parser_; }
  const ParsedAnswer& so_far() const { return answer_; }

 private:
  void take(const AnswerDelta& delta) {
    EXPECT_EQ(replace_invalid_utf8(delta.content), delta.content);
    EXPECT_EQ(replace_invalid_utf8(delta.reasoning), delta.reasoning);
    answer_.content += delta.content;
    answer_.reasoning += delta.reasoning;
    for (const ToolCallDelta& call : delta.tool_calls) {
      EXPECT_EQ(replace_invalid_utf8(call.arguments), call.arguments);
      const size_t index = static_cast<size_t>(call.index);
      if (index == answer_.calls.size()) {
        EXPECT_FALSE(call.id.empty());
        EXPECT_FALSE(call.name.empty());
        EXPECT_TRUE(ids_.insert(call.id).second || !call.id.starts_with("call_")) << call.id;
        answer_.calls.push_back({call.id.starts_with("call_") ? "" : call.id, call.name, ""});
      } else {
        ASSERT_LT(index, answer_.calls.size());
        EXPECT_EQ(index + 1, answer_.calls.size()) << "a call that has ended goes on";
        EXPECT_EQ(call.id + call.name, "") << "twice";
      }
      answer_.calls[index].arguments += call.arguments;
    }
  }

  AnswerParser parser_;
  ParsedAnswer answer_;
  std::set<std::string> ids_;
};

// One format as the tests know it.
struct FormatCase {
  ChatFormat format;
  std::vector<std::string> markers;
  std::string prompt;  // its end
};

inline ParsedAnswer read_answer(const FormatCase& c, const AnswerTokens& tokens, std::span<const int32_t> ids,
                                const Json& tools, Rng* steps = nullptr) {
  AnswerReader reader(AnswerParser(c.format, tokens.tokenizer(), tokens.ids(c.prompt), tools));
  while (!ids.empty()) {
    const size_t count =
        steps == nullptr ? 1
                         : std::min(ids.size(), static_cast<size_t>(1 + steps->below(steps->below(4) == 0 ? 40 : 3)));
    reader.push(ids.first(count));
    ids = ids.subspan(count);
  }
  return reader.finish();
}

inline Json tide_tools() {
  return parse_json(R"([{"type":"function","function":{"name":"tide","parameters":{"type":"object","properties":{
    "port":{"type":"string"},"days":{"type":"integer"},"unit":{"enum":["m","ft"]},"code":{"type":["string","null"]},
    "any":{"anyOf":[{"type":"string"},{"type":"object"}]},"list":{"type":"array"}}}}}])",
                    "tools");
}

}  // namespace moesaic
