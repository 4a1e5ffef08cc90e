#include "server/answer_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/log.h"

namespace moesaic {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

void set(float& value, const std::optional<double>& given) {
  if (given) value = static_cast<float>(*given);
}

std::optional<int32_t> token_id(std::string_view text, int64_t vocab) {
  int64_t id = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  const bool decimal = error == std::errc() && end == text.data() + text.size() && text.front() != '-';
  return decimal && id >= 0 && id < vocab ? std::optional(static_cast<int32_t>(id)) : std::nullopt;
}

void read_logit_bias(const Fields& body, int64_t vocab, SamplingParams& out) {
  const JsonObject* biases = body.object_at("logit_bias");
  if (biases == nullptr) return;
  for (const auto& [key, value] : *biases) {
    const auto id = key.empty() ? std::nullopt : token_id(key, vocab);
    if (!id)
      return body.invalid("logit_bias", fmt::format("logit_bias has the key {}; expected token ids from 0 to {}",
                                                    json_quote(clipped(key, 40)), vocab - 1));
    const double bias = value.is_number() ? value.to_number<double>() : kInfinite;
    if (!(std::abs(bias) <= kMaxLogitBias))
      return body.invalid("logit_bias", fmt::format("logit_bias of token {} is {}; expected a number in [-100, 100]",
                                                    *id, clipped(write_json(value), 40)));
    out.logit_bias.emplace_back(*id, static_cast<float>(bias));
  }
}

void read_seed(const Fields& body, SamplingParams& out) {
  const auto seed = body.integer("seed");
  if (seed && *seed != -1) out.seed = static_cast<uint64_t>(*seed);
}

void read_sampling(const Fields& body, const ModelFacts& facts, SamplingParams& out) {
  out = facts.default_sampling;
  set(out.temperature, body.number("temperature", {0, kMaxTemperature}));
  set(out.top_p, body.number("top_p", {0, 1, true}));
  set(out.min_p, body.number("min_p", {0, 1}));
  set(out.repetition_penalty, body.number("repetition_penalty", {0, kInfinite, true}));
  set(out.presence_penalty, body.number("presence_penalty", {-kMaxPenalty, kMaxPenalty}));
  set(out.frequency_penalty, body.number("frequency_penalty", {-kMaxPenalty, kMaxPenalty}));
  if (const auto k = body.integer("top_k", -1)) out.top_k = static_cast<int>(std::min(*k, facts.vocab));
  read_seed(body, out);
  read_logit_bias(body, facts.vocab, out);
}

void read_stop(const Fields& body, std::vector<std::string>& out) {
  const Json* stop = body.find("stop");
  if (stop == nullptr) return;
  const Json one = JsonArray{*stop};
  const Json& list = stop->is_array() ? *stop : one;
  if (list.get_array().size() > kMaxStopStrings)
    body.invalid("stop",
                 fmt::format("stop has {} strings; expected at most {}", list.get_array().size(), kMaxStopStrings));
  for (const Json& item : list.get_array()) {
    if (!item.is_string()) return body.wrong_type("stop", item, "a string or an array of strings");
    if (item.get_string().empty()) return body.invalid("stop", "stop holds an empty string; expected non-empty ones");
    out.emplace_back(item.get_string());
  }
}

void read_stop_ids(const Fields& body, int64_t vocab, std::vector<int32_t>& out) {
  const JsonArray* ids = body.array_at("stop_token_ids");
  if (ids == nullptr) return;
  for (const Json& item : *ids) {
    if (!item.is_number()) return body.wrong_type("stop_token_ids", item, "an array of integers");
    const auto id = whole_number(item);
    if (!id || *id < 0 || *id >= vocab)
      return body.invalid("stop_token_ids", fmt::format("stop_token_ids holds {}; expected token ids from 0 to {}",
                                                        clipped(write_json(item), 40), vocab - 1));
    out.push_back(static_cast<int32_t>(*id));
  }
}

void read_ends(const Fields& body, const ModelFacts& facts, AnswerOptions& out) {
  Request& request = out.request;
  read_stop(body, request.stop);
  read_stop_ids(body, facts.vocab, request.stop_token_ids);
  request.ignore_eos = body.boolean("ignore_eos", false);
  request.include_stop = body.boolean("include_stop_str_in_output", false);
  request.skip_special_tokens = body.boolean("skip_special_tokens", true);
  request.min_tokens = body.integer("min_tokens", 0).value_or(0);
}

void read_stream(const Fields& body, AnswerOptions& out) {
  out.stream = body.boolean("stream", false);
  const JsonObject* options = body.object_at("stream_options");
  if (options == nullptr) return;
  if (!out.stream) body.invalid("stream_options", "stream_options is only allowed together with stream: true");
  const Fields fields{*options, body.at("stream_options"), body.error};
  out.include_usage = fields.boolean("include_usage", false);
  out.continuous_usage = fields.boolean("continuous_usage_stats", false);
}

void read_queueing(const Fields& body, const ModelFacts& facts, Request& out) {
  out.priority = body.integer("priority").value_or(0);
  if (out.priority != 0 && !facts.options.priorities)
    body.invalid("priority", fmt::format("priority is {}; this server runs with --schedule-policy fcfs, which has none",
                                         out.priority));
  out.user = body.string("user").value_or("");
  const auto salt = body.string("cache_salt");
  if (salt && (salt->empty() || salt->size() > 1024))
    body.invalid("cache_salt", fmt::format("cache_salt has {} bytes; expected 1 to 1024", salt->size()));
  out.cache_salt = salt.value_or("");
}

void read_id(const Fields& body, AnswerOptions& out) {
  for (const char* key : {"request_id", "rid"}) {
    const auto id = body.string(key);
    if (!id) continue;
    if (id->empty() || id->size() > 128)
      body.invalid(key, fmt::format("{} has {} bytes; expected 1 to 128", key, id->size()));
    if (out.id.empty()) out.id = *id;
  }
}

// Fields whose silent neglect would give another answer than was asked for.
void refuse_unsupported(const Fields& body) {
  for (const char* key : {"logprob_token_ids", "logits_processors", "structural_tag"})
    if (body.find(key) != nullptr)
      report(body.error, 400, "unsupported_parameter", fmt::format("{} is not supported here; leave it out", key), key);
  if (body.boolean("use_beam_search", false))
    report(body.error, 400, "unsupported_parameter", "use_beam_search is not supported here; leave it out",
           "use_beam_search");
  if (body.integer("thinking_token_budget", -1).value_or(-1) != -1)
    report(body.error, 400, "unsupported_parameter",
           "thinking_token_budget is not supported here; limit thinking with reasoning_effort",
           "thinking_token_budget");
}

void read_reported(const Fields& body, const ModelFacts& facts, AnswerOptions& out) {
  out.request.prompt_logprobs = read_logprobs(body, "prompt_logprobs", facts);
  out.prompt_logprobs = out.request.prompt_logprobs >= 0;
  if (out.prompt_logprobs && out.stream)
    body.invalid("prompt_logprobs", "prompt_logprobs is not allowed together with stream: true");
  out.return_token_ids = body.boolean("return_token_ids", false);
  out.tokens_as_ids = body.boolean("return_tokens_as_token_ids", false);
  out.timings = body.boolean("timings", facts.options.timings);
}

}  // namespace

int read_logprobs(const Fields& body, std::string_view key, const ModelFacts& facts) {
  return static_cast<int>(body.integer(key, 0, std::min(facts.options.max_logprobs, kMaxLogprobs)).value_or(-1));
}

std::string read_model(const Fields& body, const ApiOptions& options) {
  const std::vector<std::string>& names = options.served_names;
  const std::string first = names.empty() ? std::string("model") : names.front();
  const auto asked = body.string("model");
  if (!asked || options.any_model_name || std::find(names.begin(), names.end(), *asked) != names.end()) return first;
  std::string known;
  for (const std::string& name : names) known += (known.empty() ? "" : " or ") + json_quote(name);
  report(body.error, 404, "model_not_found",
         fmt::format("the model {} is not served here; expected {}", json_quote(clipped(*asked)), known),
         body.at("model"));
  return first;
}

AnswerOptions read_answer_options(const Fields& body, const ModelFacts& facts) {
  AnswerOptions out;
  out.model = read_model(body, facts.options);
  read_stream(body, out);
  read_sampling(body, facts, out.request.sampling);
  read_ends(body, facts, out);
  out.n = static_cast<int>(body.integer("n", 1, facts.options.max_n).value_or(1));
  out.structured = read_structured_output(body);
  read_queueing(body, facts, out.request);
  read_id(body, out);
  read_reported(body, facts, out);
  refuse_unsupported(body);
  return out;
}

void log_unknown_fields(const JsonObject& body, std::span<const std::string_view> known, std::string_view endpoint) {
  if (!log_enabled(LogLevel::info)) return;
  std::string names;
  for (const auto& item : body) {
    const std::string_view key = item.key();
    if (item.value().is_null() || std::find(known.begin(), known.end(), key) != known.end()) continue;
    if (names.size() < 200) names += (names.empty() ? "" : ", ") + json_quote(clipped(key, 40), true);
  }
  if (!names.empty()) log_info("{} ignores {}", endpoint, names);
}

}  // namespace moesaic
