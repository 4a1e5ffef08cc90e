#include "server/completion_request.h"

#include <fmt/format.h>

#include <algorithm>

namespace moesaic {
namespace {

constexpr std::string_view kKnown[] = {"prompt",
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
                                       "n",
                                       "best_of",
                                       "stop",
                                       "stop_token_ids",
                                       "ignore_eos",
                                       "min_tokens",
                                       "skip_special_tokens",
                                       "include_stop_str_in_output",
                                       "max_tokens",
                                       "echo",
                                       "response_format",
                                       "structured_outputs",
                                       "guided_json",
                                       "guided_regex",
                                       "guided_choice",
                                       "guided_grammar",
                                       "regex",
                                       "ebnf",
                                       "json_schema",
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

constexpr const char* kPrompt = "a string, an array of strings, an array of token ids, or an array of such arrays";

void read_prompt_item(const Json& item, size_t index, const ModelFacts& facts, CompletionRequest& out,
                      ApiError& error) {
  const std::string param = fmt::format("prompt[{}]", index);
  if (item.is_string()) out.prompts.emplace_back(std::string(item.get_string()));
  else if (item.is_array()) out.prompts.emplace_back(read_token_ids(item.get_array(), facts.vocab, param, error));
  else report(error, 400, "invalid_type", fmt::format("{} is {}; expected {}", param, json_kind(item), kPrompt), param);
}

void read_prompt_array(const JsonArray& items, const Fields& body, const ModelFacts& facts, CompletionRequest& out) {
  if (items.empty()) return body.invalid("prompt", "prompt is an empty array; expected at least one prompt or token");
  if (items[0].is_number()) {
    out.prompts.emplace_back(read_token_ids(items, facts.vocab, "prompt", body.error));
    return;
  }
  if (items.size() > kMaxPrompts)
    return body.invalid("prompt", fmt::format("there are {} prompts; expected at most {}", items.size(), kMaxPrompts));
  for (size_t i = 0; i < items.size() && !body.error; ++i) read_prompt_item(items[i], i, facts, out, body.error);
}

void read_prompts(const Fields& body, const ModelFacts& facts, CompletionRequest& out) {
  const Json* prompt = body.find("prompt");
  if (prompt == nullptr)
    return report(body.error, 400, "missing_required_parameter", fmt::format("prompt is missing; expected {}", kPrompt),
                  "prompt");
  if (prompt->is_array()) return read_prompt_array(prompt->get_array(), body, facts, out);
  if (!prompt->is_string()) return body.wrong_type("prompt", *prompt, kPrompt);
  out.prompts.emplace_back(std::string(prompt->get_string()));
}

void read_length(const Fields& body, CompletionRequest& out) {
  AnswerOptions& answer = out.answer;
  answer.names = {.prompt = "prompt", .max_tokens = "max_tokens"};
  answer.max_tokens = body.integer("max_tokens", 0);
  out.echo = body.boolean("echo", false);
  out.score_only = answer.max_tokens == 0;
  if (out.score_only && !out.echo)
    body.invalid("max_tokens", "max_tokens is 0, which needs echo: true (the prompt is scored); expected at least 1");
  const int64_t most = answer.max_tokens.value_or(kDefaultCompletionTokens);
  if (answer.request.min_tokens > most)
    body.invalid("min_tokens",
                 fmt::format("min_tokens is {}; expected at most max_tokens = {}", answer.request.min_tokens, most));
}

void read_completion_logprobs(const Fields& body, const ModelFacts& facts, CompletionRequest& out) {
  Request& request = out.answer.request;
  request.sampling.logprobs = read_logprobs(body, "logprobs", facts);
  if (out.echo) request.prompt_logprobs = std::max(request.prompt_logprobs, request.sampling.logprobs);
  request.score_only = out.score_only;
  if (out.score_only) request.prompt_logprobs = std::max(request.prompt_logprobs, 0);  // what scoring is for
}

void refuse_old_fields(const Fields& body, int n) {
  if (body.find("suffix") != nullptr && !body.string("suffix").value_or("").empty())
    report(body.error, 400, "unsupported_parameter",
           "suffix needs a model that fills in the middle, which this one does not; leave it out", "suffix");
  const auto best_of = body.integer("best_of", 1);
  if (best_of && *best_of != n)
    body.invalid("best_of", fmt::format("best_of is {}; expected the value of n, which is {}", *best_of, n));
}

}  // namespace

std::vector<int32_t> read_token_ids(const JsonArray& ids, int64_t vocab, const std::string& param, ApiError& error) {
  std::vector<int32_t> out;
  if (ids.empty()) report(error, 400, "invalid_value", param + " is empty; expected at least one token id", param);
  for (const Json& item : ids) {
    const auto id = whole_number(item);
    if (!item.is_number())
      report(error, 400, "invalid_type", fmt::format("{} holds {}; expected token ids", param, json_kind(item)), param);
    else if (!id || *id < 0 || *id >= vocab)
      report(
          error, 400, "invalid_value",
          fmt::format("{} holds {}; expected token ids from 0 to {}", param, clipped(write_json(item), 40), vocab - 1),
          param);
    if (error) break;
    out.push_back(static_cast<int32_t>(*id));
  }
  return out;
}

CompletionRequest read_completion_request(const JsonObject& body, const ModelFacts& facts, ApiError& error) {
  const Fields fields{body, "", error};
  CompletionRequest out;
  out.answer = read_answer_options(fields, facts);
  read_length(fields, out);
  read_completion_logprobs(fields, facts, out);
  refuse_old_fields(fields, out.answer.n);
  out.add_special_tokens = fields.boolean("add_special_tokens", true);
  read_prompts(fields, facts, out);
  log_unknown_fields(body, kKnown, "/v1/completions");
  return out;
}

}  // namespace moesaic
