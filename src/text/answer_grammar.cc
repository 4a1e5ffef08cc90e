#include "text/answer_grammar.h"

#include <fmt/format.h>

#include "text/answer_machines.h"

namespace moesaic {
namespace {

struct Tool {
  std::string name;
  Json parameters;
};

// The tools that may be called.
Result<std::vector<Tool>> callable_tools(const AnswerShape& shape) {
  std::vector<Tool> out;
  const JsonArray* tools = shape.tools.if_array();
  for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
    const JsonObject* tool = (*tools)[i].if_object();
    const Json* function = tool == nullptr ? nullptr : json_find(*tool, "function");
    const Json* name =
        function == nullptr || !function->is_object() ? nullptr : json_find(function->get_object(), "name");
    if (name == nullptr || !name->is_string())
      return Status(
          StatusCode::invalid_argument,
          fmt::format("tools[{}] has no function with a name: expected {{\"type\": \"function\", \"function\": "
                      "{{\"name\": ...}}}}",
                      i),
          fmt::format("tools[{}]", i));
    if (!shape.tool.empty() && name->get_string() != shape.tool) continue;
    const Json* parameters = json_find(function->get_object(), "parameters");
    out.push_back({std::string(name->get_string()), parameters == nullptr ? Json() : *parameters});
  }
  if (!shape.calls_required || !out.empty()) return out;
  const std::string what = shape.tool.empty() ? "a call is required, but there are no tools: send tools"
                                              : "tool_choice names the tool \"" + shape.tool +
                                                    "\", which is not among the tools: send it, or choose another";
  return Status(StatusCode::invalid_argument, what, shape.tool.empty() ? "tools" : "tool_choice");
}

std::string dsml_argument(GrammarRules& rules, std::string_view key, std::string_view type, std::string_view value) {
  const std::string dsml = rules.marker("｜DSML｜");
  return fmt::format(R"("<" {} "parameter name=\"" {} "\" string=\"{}\">" {} "</" {} "parameter>\n")", dsml, key,
                     type == "string", value, dsml);
}

std::string glm_argument(GrammarRules& rules, std::string_view key, std::string_view, std::string_view value) {
  return fmt::format(R"({} {} {} "\n"? {} {} {} "\n"?)", rules.marker("<arg_key>"), key, rules.marker("</arg_key>"),
                     rules.marker("<arg_value>"), value, rules.marker("</arg_value>"));
}

std::string xtml_argument(GrammarRules& rules, std::string_view key, std::string_view type, std::string_view value) {
  const std::string open = rules.marker("<|open|>"), separator = rules.marker("<|sep|>");
  return fmt::format(R"({} "argument key=\"" {} "\" type=\"{}\"" {} {} {} "argument" {})", open, key, type, separator,
                     value, rules.marker("<|close|>"), separator);
}

// Writes the grammar of one answer.
struct AnswerGrammar {
  ChatFormat format;
  const AnswerShape& shape;
  GrammarRules rules;

  std::string m(std::string_view name) const { return rules.marker(name); }
  bool is(std::initializer_list<ChatFormat> formats) const {
    return std::find(formats.begin(), formats.end(), format) != formats.end();
  }

  // One call of a tool; `name` is a rule name that is free.
  std::string call(const std::string& name, const Tool& tool) {
    const std::string tool_name = tool.name;
    const std::string json = rules.json_arguments(tool.parameters);
    switch (format) {
      case ChatFormat::harmony:
        return fmt::format(R"({} {} (" " {} "json")? {} {})", m("<|channel|>"),
                           grammar_literal("commentary to=functions." + tool_name), m("<|constrain|>"),
                           m("<|message|>"), json);
      case ChatFormat::kimi_k2:
        return fmt::format("{} {} [0-9]{{1,4}} {} {} {}", m("<|tool_call_begin|>"),
                           grammar_literal("functions." + tool_name + ":"), m("<|tool_call_argument_begin|>"), json,
                           m("<|tool_call_end|>"));
      case ChatFormat::deepseek_v3:
        return fmt::format(R"({} "function" {} {} {} "\n```" {})", m("<｜tool▁call▁begin｜>"), m("<｜tool▁sep｜>"),
                           grammar_literal(tool_name + "\n```json\n"), json, m("<｜tool▁call▁end｜>"));
      case ChatFormat::deepseek_v31:
        return fmt::format("{} {} {} {} {}", m("<｜tool▁call▁begin｜>"), grammar_literal(tool_name),
                           m("<｜tool▁sep｜>"), json, m("<｜tool▁call▁end｜>"));
      case ChatFormat::deepseek_v32:
      case ChatFormat::deepseek_v4: {
        const std::string dsml = m("｜DSML｜");
        return fmt::format(R"("<" {} {} {} "\n"? "</" {} "invoke>\n")", dsml,
                           grammar_literal("invoke name=\"" + tool_name + "\">\n"),
                           listed_arguments(rules, name, tool.parameters, "｜DSML｜", dsml_argument), dsml);
      }
      case ChatFormat::glm:
        return fmt::format(R"({} {} "\n"? {} {})", m("<tool_call>"), grammar_literal(tool_name),
                           listed_arguments(rules, name, tool.parameters, "</arg_value>", glm_argument),
                           m("</tool_call>"));
      case ChatFormat::kimi_k3:
        return fmt::format(R"({0} {1} [0-9]{{1,3}} "\"" {2} {3} {4} "call" {2})", m("<|open|>"),
                           grammar_literal("call tool=\"" + xtml_attribute(tool_name) + "\" index=\""), m("<|sep|>"),
                           listed_arguments(rules, name, tool.parameters, "<|close|>", xtml_argument), m("<|close|>"));
      default:
        return fmt::format(R"({} {} {} "}}\n" {})", m("<tool_call>"),
                           grammar_literal("\n{\"name\": " + json_quote(tool_name) + ", \"arguments\": "), json,
                           m("</tool_call>"));
    }
  }

  static std::string xtml_attribute(std::string_view value) {
    std::string out;
    for (const char c : value) out += c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
    return out;
  }

  // All calls of the answer, with what stands around them.
  std::string calls(const std::vector<Tool>& tools) {
    std::string any;
    for (size_t i = 0; i < tools.size(); ++i) {
      const std::string name = fmt::format("call-{}", i);
      rules.add(name, call(name, tools[i]));
      any += (any.empty() ? "" : " | ") + name;
    }
    rules.add("call", any);
    const char* between = format == ChatFormat::deepseek_v3 || format == ChatFormat::think ? "\"\\n\" "
                          : format == ChatFormat::glm                                      ? "\"\\n\"? "
                                                                                           : "";
    // The end of a call ends gpt-oss's answer.
    const bool several = shape.parallel && format != ChatFormat::harmony;
    return around_calls(several ? fmt::format("call ({}call)*", between) : "call");
  }

  std::string around_calls(const std::string& list) const {
    switch (format) {
      case ChatFormat::kimi_k2:
        return m("<|tool_calls_section_begin|>") + " " + list + " " + m("<|tool_calls_section_end|>");
      case ChatFormat::deepseek_v3:
      case ChatFormat::deepseek_v31: return m("<｜tool▁calls▁begin｜>") + " " + list + " " + m("<｜tool▁calls▁end｜>");
      case ChatFormat::deepseek_v32:
      case ChatFormat::deepseek_v4: {
        const char* block = format == ChatFormat::deepseek_v4 ? "tool_calls" : "function_calls";
        return fmt::format(R"("\n"{{0,2}} "<" {0} "{1}>\n" {2} "</" {0} "{1}>")", m("｜DSML｜"), block, list);
      }
      case ChatFormat::kimi_k3:
        return fmt::format(R"({0} "tools" {1} {2} {3} "tools" {1} {3} "message" {1})", m("<|open|>"), m("<|sep|>"),
                           list, m("<|close|>"));
      case ChatFormat::glm:
      case ChatFormat::think: return "\"\\n\"{0,2} " + list;
      default: return list;
    }
  }

  // The text of the answer. The markers after it are optional where an end-of-answer token may stand instead.
  std::string content(const std::string& text) const {
    if (format != ChatFormat::harmony) return text;
    return fmt::format(R"({} "final" (" "? {} "json")? {} {})", m("<|channel|>"), m("<|constrain|>"), m("<|message|>"),
                       text);
  }

  std::string root(std::span<const int32_t> prompt, const Tokenizer& tokenizer, const std::string& text,
                   const std::string& called) {
    if (format == ChatFormat::harmony) return harmony_root(prompt, tokenizer, text, called);
    if (format == ChatFormat::kimi_k3) return xtml_root(prompt, tokenizer, text, called);
    const std::string answer = either(text, called);
    const std::string thinking = rules.text_before("</think>") + " " + m("</think>") + " \"\\n\"{0,2} ";
    switch (prompt_thinking(tokenizer, prompt)) {
      case PromptThinking::open: return thinking + answer;
      case PromptThinking::none:
        return may_think(tokenizer) ? "(" + m("<think>") + " " + thinking + ")? " + answer : answer;
      case PromptThinking::closed: break;
    }
    return answer;
  }

  static std::string either(const std::string& a, const std::string& b) {
    if (a.empty() || b.empty()) return a + b;
    return "(" + a + " | " + b + ")";
  }

  bool may_think(const Tokenizer& tokenizer) const { return tokenizer.token_to_id("<think>").has_value(); }

  std::string harmony_root(std::span<const int32_t> prompt, const Tokenizer& tokenizer, const std::string& text,
                           const std::string& called) {
    const std::string next = m("<|end|>") + " " + m("<|start|>") + " \"assistant\" ";
    rules.add("thought", fmt::format(R"({} "analysis" {} %text {})", m("<|channel|>"), m("<|message|>"), next));
    const std::string answer = either(text.empty() ? "" : content(text), called);
    const std::span<const int32_t> begun = begun_message(format, tokenizer, prompt);
    const auto body = tokenizer.token_to_id("<|message|>");
    if (!body || std::find(begun.begin(), begun.end(), *body) == begun.end()) return "thought* " + answer;
    if (AnswerParser(format, tokenizer, prompt, {}).in_reasoning()) return "%text " + next + "thought* " + answer;
    return text.empty() ? next + answer : text;
  }

  std::string xtml_root(std::span<const int32_t> prompt, const Tokenizer& tokenizer, const std::string& text,
                        const std::string& called) {
    const std::string open = m("<|open|>"), close = m("<|close|>"), separator = m("<|sep|>");
    const std::string end_response = close + " \"response\" " + separator + " ";
    const std::string begin_response = open + " \"response\" " + separator + " ";
    const std::string end_message = close + " \"message\" " + separator;
    // Inside the response; the calls follow an empty one.
    std::string inside;
    if (!text.empty()) inside = text + " " + end_response + end_message;
    if (!called.empty()) inside = either(inside, end_response + called);
    const std::string answer = begin_response + inside;
    const std::string thinking = "%text " + close + " \"think\" " + separator + " ";
    switch (open_element(tokenizer, prompt)) {
      case Element::think: return thinking + answer;
      case Element::response: return inside;
      case Element::message: break;
    }
    return "(" + open + " \"think\" " + separator + " " + thinking + ")? " + answer;
  }

  enum class Element : uint8_t { message, think, response };
  Element open_element(const Tokenizer& tokenizer, std::span<const int32_t> prompt) const {
    const std::string text = tokenizer.decode(begun_message(format, tokenizer, prompt), false);
    const auto open = [&](std::string_view name) {
      const size_t begin = text.rfind(fmt::format("<|open|>{}<|sep|>", name));
      return begin != std::string::npos && text.find(fmt::format("<|close|>{}", name), begin) == std::string::npos;
    };
    return open("response") ? Element::response : open("think") ? Element::think : Element::message;
  }
};

}  // namespace

Result<GrammarSource> answer_grammar(ChatFormat format, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                                     const AnswerShape& shape) {
  if (format == ChatFormat::plain && shape.calls_required)
    return Status(StatusCode::invalid_argument,
                  "this model has no format for tool calls: leave tool_choice out, or serve a model that calls tools",
                  "tool_choice");
  if (!shape.content && !shape.calls_required)
    return Status(StatusCode::invalid_argument, "nothing to enforce: neither a format of the text nor a call");
  if (format == ChatFormat::plain) return *shape.content;
  Result<std::vector<Tool>> tools = callable_tools(shape);
  if (!tools.ok()) return tools.status();

  AnswerGrammar grammar{format, shape, GrammarRules(tokenizer)};
  std::string user_rules, text, called;
  if (!shape.calls_required) {
    Result<std::string> embedded = embed_source(*shape.content, user_rules);
    if (!embedded.ok()) return embedded.status();
    grammar.rules.add("content", *embedded);
    text = "content";
  }
  if (!tools->empty()) {
    grammar.rules.add("calls", grammar.calls(*tools));
    called = "calls";
  }
  const std::string root = grammar.root(prompt, tokenizer, text, called);
  return GrammarSource{GrammarSource::Kind::grammar, "root ::= " + root + "\n" + grammar.rules.text() + user_rules};
}

}  // namespace moesaic
