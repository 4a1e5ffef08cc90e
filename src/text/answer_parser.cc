#include <variant>

#include "text/answer_machines.h"

namespace moesaic {
namespace {

using Machine =
    std::variant<ThinkMachine, HarmonyMachine, SectionMachine, DsmlMachine, GlmMachine, XtmlMachine, std::monostate>;

Machine machine_of(ChatFormat format) {
  using Style = SectionMachine::Style;
  switch (format) {
    case ChatFormat::plain: return std::monostate();
    case ChatFormat::think: return ThinkMachine();
    case ChatFormat::harmony: return HarmonyMachine();
    case ChatFormat::deepseek_v3:
    case ChatFormat::deepseek_v31: return SectionMachine(Style::deepseek);
    case ChatFormat::deepseek_v32:
    case ChatFormat::deepseek_v4: return DsmlMachine();
    case ChatFormat::kimi_k2: return SectionMachine(Style::kimi);
    case ChatFormat::kimi_k3: return XtmlMachine();
    case ChatFormat::glm: return GlmMachine();
  }
  return std::monostate();
}

}  // namespace

std::span<const AnswerMarker> answer_markers(ChatFormat format, bool tools) {
  using Style = SectionMachine::Style;
  switch (format) {
    case ChatFormat::plain: return {};
    case ChatFormat::think: return ThinkMachine::markers(tools);
    case ChatFormat::harmony: return HarmonyMachine::markers();
    case ChatFormat::deepseek_v3:
    case ChatFormat::deepseek_v31: return SectionMachine::markers(Style::deepseek);
    case ChatFormat::deepseek_v32:
    case ChatFormat::deepseek_v4: return DsmlMachine::markers(tools);
    case ChatFormat::kimi_k2: return SectionMachine::markers(Style::kimi);
    case ChatFormat::kimi_k3: return XtmlMachine::markers();
    case ChatFormat::glm: return GlmMachine::markers(tools);
  }
  return {};
}

struct AnswerParser::State {
  State(ChatFormat format, const Tokenizer& tokenizer, const Json& tools)
      : scanner(tokenizer, answer_markers(format, !tools.is_null())), machine(machine_of(format)), sink(tools) {}

  void set_up(ChatFormat format) {
    if (!scanner.has_token(kThink)) sink.think_markers_are_letters();
    if (format == ChatFormat::plain || format == ChatFormat::harmony || format == ChatFormat::kimi_k3) sink.be_exact();
  }

  void push(int32_t token, AnswerDelta& out) {
    sink.attach(out);
    bytes.clear();
    scanner.push(token, bytes);
    feed();
    markup = !sink.take_said() && !bytes.empty();  // bytes that the scanner holds may be text
  }

  void flush(AnswerDelta& out) {
    sink.attach(out);
    bytes.clear();
    scanner.flush(bytes);
    feed();
    std::visit([&](auto& m) { finish(m); }, machine);
    sink.finish();
  }

  void feed() {
    for (const char c : bytes) std::visit([&](auto& m) { feed(m, static_cast<unsigned char>(c)); }, machine);
  }

  template <typename M>
  void feed(M& m, unsigned char c) {
    m.feed(sink, c);
  }
  void feed(std::monostate, unsigned char c) { sink.text(c); }

  template <typename M>
  void finish(M& m) {
    m.finish(sink);
  }
  void finish(std::monostate) {}

  MarkerScanner scanner;
  Machine machine;
  AnswerSink sink;
  bool markup = false;
  std::string bytes;  // of the token pushed last; kept for its memory
};

std::span<const int32_t> begun_message(ChatFormat format, const Tokenizer& tokenizer, std::span<const int32_t> prompt) {
  const bool harmony = format == ChatFormat::harmony;
  const auto border = tokenizer.token_to_id(harmony ? "<|start|>" : "<|end_of_msg|>");
  for (size_t i = prompt.size(); i-- > 0;)
    if (prompt[i] == border) return prompt.subspan(harmony ? i : i + 1);
  return prompt.subspan(harmony ? prompt.size() : 0);
}

PromptThinking prompt_thinking(const Tokenizer& tokenizer, std::span<const int32_t> prompt) {
  const auto think = tokenizer.token_to_id("<think>"), end = tokenizer.token_to_id("</think>");
  if (!think || !end) {  // by its letters, at the very end
    const std::string tail = tokenizer.decode(prompt.last(std::min<size_t>(prompt.size(), 16)), false);
    if (trim_spaces(tail).ends_with("<think>")) return PromptThinking::open;
    return trim_spaces(tail).ends_with("</think>") ? PromptThinking::closed : PromptThinking::none;
  }
  for (size_t i = prompt.size(); i-- > 0;) {
    if (prompt[i] == think) return PromptThinking::open;
    if (prompt[i] == end) return PromptThinking::closed;
    if (tokenizer.is_special(prompt[i])) break;  // where a turn begins
  }
  return PromptThinking::none;
}

AnswerParser::AnswerParser(ChatFormat format, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                           const Json& tools)
    : state_(std::make_unique<State>(format, tokenizer, tools)) {
  State& s = *state_;
  s.set_up(format);
  std::span<const int32_t> begun;
  if (format == ChatFormat::harmony || format == ChatFormat::kimi_k3) begun = begun_message(format, tokenizer, prompt);
  else if (format != ChatFormat::plain && prompt_thinking(tokenizer, prompt) == PromptThinking::open) s.sink.turn(true);
  AnswerDelta said;
  for (const int32_t token : begun) s.push(token, said);
  // A call that the prompt begins is not this answer's.
  if (s.sink.calls() > 0) s = State(format, tokenizer, tools), s.set_up(format);
  s.sink.begin_answer();
  if (auto* harmony = std::get_if<HarmonyMachine>(&s.machine)) harmony->begin_answer();
}

AnswerParser::~AnswerParser() = default;
AnswerParser::AnswerParser(AnswerParser&&) noexcept = default;

void AnswerParser::push(int32_t token, AnswerDelta& out) {
  state_->push(token, out);
}

void AnswerParser::flush(AnswerDelta& out) {
  state_->flush(out);
}

bool AnswerParser::in_reasoning() const {
  return state_->sink.reasoning();
}

bool AnswerParser::in_markup() const {
  return state_->markup;
}

int AnswerParser::calls() const {
  return state_->sink.calls();
}

int AnswerParser::errors() const {
  return state_->sink.errors();
}

}  // namespace moesaic
