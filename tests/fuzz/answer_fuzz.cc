// Any answer of a chat format comes apart the same way however it is cut into tokens and steps; nothing throws, texts
// are UTF-8, and calls begin once and in order. One target for each format: MOESAIC_FUZZED_FORMAT.
//
// Input: a byte of choices (prompt, tools, markers as tokens or as letters), a byte that seeds the cuts, the answer.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"
#include "text/chat_format.h"
#include "text/unicode.h"

namespace moesaic {
namespace {

constexpr ChatFormat kFormat = ChatFormat::MOESAIC_FUZZED_FORMAT;
constexpr std::string_view kWords[] = {
    "</",  "tool", "_calls", "\">\n",  "invoke", " name=\"", "```",      "json", "\n\n",
    "{\"", "\"}",  "\": ",   "functi", "argu",   "think",    "analysis", " to=", "\xE2\x9D"};

std::vector<std::string> markers() {
  std::vector<std::string> out = {"<think>", "</think>", "<|eos|>"};
  const auto add = [&](std::initializer_list<const char*> more) { out.insert(out.end(), more.begin(), more.end()); };
  switch (kFormat) {
    case ChatFormat::plain: break;
    case ChatFormat::think: add({"<tool_call>", "</tool_call>"}); break;
    case ChatFormat::harmony:
      add({"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>"});
      break;
    case ChatFormat::deepseek_v3:
    case ChatFormat::deepseek_v31:
      add({"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
           "<｜tool▁sep｜>"});
      break;
    case ChatFormat::deepseek_v32:
    case ChatFormat::deepseek_v4: add({"｜DSML｜"}); break;
    case ChatFormat::kimi_k2:
      add({"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
           "<|tool_call_argument_begin|>", "<|tool_call_end|>"});
      break;
    case ChatFormat::kimi_k3: add({"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"}); break;
    case ChatFormat::glm:
      add({"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"});
      break;
  }
  return out;
}

std::string prompt_end(bool begun) {
  if (kFormat == ChatFormat::harmony) return begun ? "<|start|>assistant<|channel|>analysis<|message|>" : "";
  if (kFormat == ChatFormat::kimi_k3) return begun ? "<|open|>message<|sep|><|open|>think<|sep|>" : "";
  return begun ? "<think>" : "";
}

const Json& tide_tools() {
  static const Json tools = parse_json(
      R"([{"type": "function", "function": {"name": "tide", "parameters": {"type": "object", "properties": {
      "port": {"type": "string"}, "days": {"type": "integer"}, "any": {"anyOf": [{"type": "string"}, {"type": "object"}]},
      "list": {"type": "array"}}}}}])",
      "tools");
  return tools;
}

// The letter that stands for a byte in byte-level vocabularies.
std::string letter(unsigned char byte) {
  const auto printable = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; };
  char32_t code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += !printable(b);
  }
  std::string out;
  append_utf8(out, code);
  return out;
}

// Ids: the 256 bytes, the words, the markers.
std::unique_ptr<Tokenizer> make_tokenizer(const std::vector<std::string>& markers) {
  JsonObject vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[letter(static_cast<unsigned char>(byte))] = byte;
  for (const std::string_view word : kWords) {
    std::string name;
    for (const char c : word) name += letter(static_cast<unsigned char>(c));
    vocab[name] = static_cast<int64_t>(vocab.size());
  }
  JsonArray added;
  for (const std::string& marker : markers)
    added.push_back(JsonObject{{"id", static_cast<int64_t>(vocab.size() + added.size())},
                               {"content", marker},
                               {"special", true},
                               {"normalized", false}});
  return parse_tokenizer(
      write_json(JsonObject{{"added_tokens", added},
                            {"decoder", JsonObject{{"type", "ByteLevel"}}},
                            {"model", JsonObject{{"type", "BPE"}, {"vocab", vocab}, {"merges", JsonArray()}}}}),
      "fuzz");
}

struct Words {
  std::vector<std::string> markers;
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(markers);

  // Markers that are tokens become these; the rest is cut into bytes, or into any tokens that spell it.
  std::vector<int32_t> ids(std::string_view text, Rng* rng) const {
    std::vector<int32_t> out;
    while (!text.empty()) {
      const auto [token, size] = next(text, rng);
      out.push_back(token);
      text.remove_prefix(size);
    }
    return out;
  }
  std::pair<int32_t, size_t> next(std::string_view text, Rng* rng) const {
    constexpr size_t kFirst = 256 + std::size(kWords);
    for (size_t i = 0; i < markers.size(); ++i)
      if (text.starts_with(markers[i])) return {static_cast<int32_t>(kFirst + i), markers[i].size()};
    for (size_t i = 0; rng != nullptr && i < std::size(kWords); ++i)
      if (text.starts_with(kWords[i]) && rng->below(3) != 0) return {static_cast<int32_t>(256 + i), kWords[i].size()};
    return {static_cast<unsigned char>(text.front()), 1};
  }
};

struct Parts {
  std::string content, reasoning;
  std::vector<std::array<std::string, 2>> calls;  // name, arguments
  int errors = 0;
  bool operator==(const Parts&) const = default;
};

void take(const AnswerDelta& delta, Parts& parts) {
  const auto append = [](std::string& to, const std::string& text) {
    CHECK(replace_invalid_utf8(text) == text, "not UTF-8");
    to += text;
  };
  append(parts.content, delta.content);
  append(parts.reasoning, delta.reasoning);
  for (const ToolCallDelta& call : delta.tool_calls) {
    const auto index = static_cast<size_t>(call.index);
    const bool begins = index == parts.calls.size();
    CHECK(begins || index + 1 == parts.calls.size(), "call {} of {}", index, parts.calls.size());
    CHECK(begins == !call.id.empty() && begins == !call.name.empty(), "call {} is named at its beginning", index);
    if (begins) parts.calls.push_back({call.name, ""});
    append(parts.calls[index][1], call.arguments);
  }
}

Parts parse(const Words& words, std::string_view prompt, const std::vector<int32_t>& ids, const Json& tools, Rng* rng) {
  AnswerParser parser(kFormat, *words.tokenizer, words.ids(prompt, nullptr), tools);
  Parts parts;
  AnswerDelta delta;
  for (const int32_t id : ids) {
    parser.push(id, delta);
    if (rng != nullptr && rng->below(3) != 0) continue;
    take(delta, parts);
    delta = {};
  }
  parser.flush(delta);
  take(delta, parts);
  CHECK(parser.calls() == static_cast<int>(parts.calls.size()), "{} calls", parser.calls());
  parts.errors = parser.errors();
  return parts;
}

void check(std::string_view input) {
  static const Words tokens{markers()}, letters{{"<|eos|>"}};
  if (input.size() < 2) return;
  const auto choices = static_cast<unsigned char>(input[0]);
  Rng rng(static_cast<unsigned char>(input[1]));
  const Words& words = (choices & 4) != 0 ? letters : tokens;
  const std::string prompt = prompt_end((choices & 1) != 0);
  const Json tools = (choices & 2) != 0 ? Json() : tide_tools();
  const std::vector<int32_t> whole = words.ids(input.substr(2), nullptr), cut = words.ids(input.substr(2), &rng);
  CHECK(parse(words, prompt, whole, tools, nullptr) == parse(words, prompt, cut, tools, &rng), "cut otherwise");
}

}  // namespace
}  // namespace moesaic

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  moesaic::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
