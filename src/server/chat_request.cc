#include "server/chat_request.h"

#include <fmt/format.h>

#include <algorithm>

namespace moesaic {
namespace {

constexpr std::string_view kKnown[] = {"messages",
                                       "model",
                                       "stream",
                                       "stream_options",
                                       "temperature",
                                       "top_p",
                                       "top_k",
                                       "min_p",
                                       "presence_penalty",
                                       "frequency_penalty",
                                       "repetition_penalty",
                                       "seed",
                                       "logit_bias",
                                       "logprobs",
                                       "top_logprobs",
                                       "n",
                                       "stop",
                                       "stop_token_ids",
                                       "ignore_eos",
                                       "min_tokens",
                                       "skip_special_tokens",
                                       "include_stop_str_in_output",
                                       "max_completion_tokens",
                                       "max_tokens",
                                       "response_format",
                                       "structured_outputs",
                                       "guided_json",
                                       "guided_regex",
                                       "guided_choice",
                                       "guided_grammar",
                                       "regex",
                                       "ebnf",
                                       "json_schema",
                                       "tools",
                                       "tool_choice",
                                       "parallel_tool_calls",
                                       "reasoning_effort",
                                       "include_reasoning",
                                       "separate_reasoning",
                                       "chat_template_kwargs",
                                       "chat_template",
                                       "add_generation_prompt",
                                       "continue_final_message",
                                       "add_special_tokens",
                                       "prompt_logprobs",
                                       "return_token_ids",
                                       "return_tokens_as_token_ids",
                                       "cache_salt",
                                       "priority",
                                       "request_id",
                                       "rid",
                                       "user",
                                       "timings"};

// max_completion_tokens wins over max_tokens.
void read_max_tokens(const Fields& body, AnswerOptions& out) {
  const auto old_name = body.integer("max_tokens", 1), new_name = body.integer("max_completion_tokens", 1);
  out.max_tokens = new_name ? new_name : old_name;
  out.names = {.prompt = "messages", .max_tokens = new_name ? "max_completion_tokens" : "max_tokens"};
  if (out.max_tokens && out.request.min_tokens > *out.max_tokens)
    body.invalid("min_tokens", fmt::format("min_tokens is {}; expected at most {} = {}", out.request.min_tokens,
                                           out.names.max_tokens, *out.max_tokens));
}

void read_chat_logprobs(const Fields& body, const ModelFacts& facts, SamplingParams& out) {
  const bool wanted = body.boolean("logprobs", false);
  const int top = read_logprobs(body, "top_logprobs", facts);
  if (top >= 0 && !wanted) body.invalid("top_logprobs", "top_logprobs is only allowed together with logprobs: true");
  out.logprobs = wanted ? std::max(top, 0) : -1;
}

void read_effort(const Fields& body, const ModelFacts& facts, JsonObject& kwargs) {
  constexpr std::string_view kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  const auto effort = body.string("reasoning_effort");
  if (!effort || body.error) return;
  if (std::find(std::begin(kEfforts), std::end(kEfforts), *effort) == std::end(kEfforts))
    return body.invalid("reasoning_effort",
                        fmt::format("reasoning_effort is {}; expected none, minimal, low, medium, high, xhigh or max",
                                    json_quote(clipped(*effort))));
  apply_reasoning_effort(facts.format, *effort, kwargs);
}

void read_template(const Fields& body, const ModelFacts& facts, ChatRequest& out) {
  JsonObject defaults = facts.options.chat_template_kwargs;
  if (const JsonObject* kwargs = body.object_at("chat_template_kwargs")) out.template_kwargs = *kwargs;
  read_effort(body, facts, out.template_kwargs);
  for (const auto& item : defaults)
    if (!out.template_kwargs.contains(item.key())) out.template_kwargs[item.key()] = item.value();
  out.chat_template = body.string("chat_template");
  if (out.chat_template && !facts.options.trust_request_chat_template)
    body.invalid("chat_template",
                 "chat_template is code; this server takes none (start it with --trust-request-chat-template)");
  out.continue_final_message = body.boolean("continue_final_message", false);
  out.add_generation_prompt = body.boolean("add_generation_prompt", !out.continue_final_message);
  if (out.continue_final_message && out.add_generation_prompt)
    body.invalid("continue_final_message", "continue_final_message and add_generation_prompt exclude each other");
  out.add_special_tokens = body.boolean("add_special_tokens", false);
}

MessageRules message_rules(const ModelFacts& facts, std::function<std::string(size_t)> path) {
  const ChatFormat format = facts.format;
  return {.media = {facts.vision, facts.options.max_images, facts.options.allowed_local_media_path,
                    facts.options.allowed_media_domains},
          .developer_role =
              format == ChatFormat::harmony || format == ChatFormat::deepseek_v32 || format == ChatFormat::deepseek_v4,
          .thinking_key = format == ChatFormat::harmony,
          .path = std::move(path)};
}

}  // namespace

void read_prompt_fields(const Fields& body, const ModelFacts& facts, ChatRequest& out,
                        std::function<std::string(size_t)> path) {
  const JsonArray* messages = body.array_at("messages");
  if (messages == nullptr)
    return report(body.error, 400, "missing_required_parameter",
                  "messages is missing; expected a list such as [{\"role\": \"user\", \"content\": \"Hello\"}]",
                  "messages");
  out.tools = read_tools(body);
  read_template(body, facts, out);
  if (body.error) return;
  out.conversation = read_messages(*messages, message_rules(facts, std::move(path)), body.error);
  if (out.continue_final_message && !body.error &&
      out.conversation.messages.back().at("role").get_string() != "assistant")
    body.invalid("continue_final_message", "continue_final_message needs a last message of the assistant");
}

ChatRequest read_chat_request(const JsonObject& body, const ModelFacts& facts, ApiError& error,
                              std::function<std::string(size_t)> path) {
  const Fields fields{body, "", error};
  ChatRequest out;
  out.answer = read_answer_options(fields, facts);
  read_max_tokens(fields, out.answer);
  read_chat_logprobs(fields, facts, out.answer.request.sampling);
  out.include_reasoning = fields.boolean("include_reasoning", fields.boolean("separate_reasoning", true));
  if (!error) read_prompt_fields(fields, facts, out, std::move(path));
  out.answer.names.images = out.conversation.image_params;
  out.answer.request.chat = true;
  log_unknown_fields(body, kKnown, "/v1/chat/completions");
  return out;
}

}  // namespace moesaic
