#include "server/answer.h"

#include <algorithm>

namespace moesaic {
namespace {

template <typename T>
void move_to(std::vector<T>& to, std::vector<T>& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

double per_second(int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

}  // namespace

void append_chunk(Chunk& chunk, Chunk more) {
  chunk.text += more.text;
  chunk.reasoning += more.reasoning;
  move_to(chunk.tool_calls, more.tool_calls);
  move_to(chunk.tokens, more.tokens);
  move_to(chunk.prompt, more.prompt);
}

std::vector<ToolCallDelta> whole_calls(const std::vector<ToolCallDelta>& deltas) {
  std::vector<ToolCallDelta> calls;
  for (const ToolCallDelta& delta : deltas) {
    auto call = std::find_if(calls.begin(), calls.end(), [&](const auto& c) { return c.index == delta.index; });
    if (call == calls.end()) call = calls.insert(call, ToolCallDelta{.index = delta.index});
    if (call->id.empty()) call->id = delta.id;
    if (call->name.empty()) call->name = delta.name;
    call->arguments += delta.arguments;
  }
  std::stable_sort(calls.begin(), calls.end(), [](const auto& a, const auto& b) { return a.index < b.index; });
  return calls;
}

Usage total_usage(const std::vector<Usage>& choices, int n) {
  Usage total;
  for (size_t i = 0; i < choices.size(); ++i) {
    const Usage& one = choices[i];
    if (i % static_cast<size_t>(n) == 0) {
      total.prompt_tokens += one.prompt_tokens;
      total.cached_tokens += one.cached_tokens;
    }
    total.completion_tokens += one.completion_tokens;
    total.reasoning_tokens += one.reasoning_tokens;
    total.queue_seconds = std::max(total.queue_seconds, one.queue_seconds);
    total.first_token_seconds = std::max(total.first_token_seconds, one.first_token_seconds);
    total.total_seconds = std::max(total.total_seconds, one.total_seconds);
  }
  return total;
}

JsonObject usage_json(const Usage& usage) {
  JsonObject out, prompt, completion;
  prompt["cached_tokens"] = usage.cached_tokens;
  completion["reasoning_tokens"] = usage.reasoning_tokens;
  out["prompt_tokens"] = usage.prompt_tokens;
  out["completion_tokens"] = usage.completion_tokens;
  out["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  out["prompt_tokens_details"] = std::move(prompt);
  out["completion_tokens_details"] = std::move(completion);
  return out;
}

JsonObject timings_json(const Usage& usage) {
  const double prompt = usage.first_token_seconds - usage.queue_seconds;
  const double predicted = usage.total_seconds - usage.first_token_seconds;
  JsonObject out;
  out["cache_n"] = usage.cached_tokens;
  out["prompt_n"] = usage.prompt_tokens - usage.cached_tokens;
  out["prompt_ms"] = prompt * 1e3;
  out["prompt_per_second"] = per_second(usage.prompt_tokens - usage.cached_tokens, prompt);
  out["predicted_n"] = usage.completion_tokens;
  out["predicted_ms"] = predicted * 1e3;
  out["predicted_per_second"] = per_second(usage.completion_tokens, predicted);
  return out;
}

const char* finish_reason_name(FinishReason reason) {
  return reason == FinishReason::length ? "length" : "stop";
}

Json stop_reason_json(const StopMatch& stop) {
  if (stop.text) return Json(*stop.text);
  return stop.token ? Json(*stop.token) : Json();
}

JsonArray ids_json(const std::vector<int32_t>& ids) {
  return JsonArray(ids.begin(), ids.end());
}

JsonArray ids_json(const std::vector<GeneratedToken>& tokens) {
  JsonArray out;
  for (const GeneratedToken& token : tokens) out.push_back(token.id);
  return out;
}

std::string compact(const Json& value) {
  return write_json(value, {.compact = true});
}

}  // namespace moesaic
