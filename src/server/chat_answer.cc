#include "server/chat_answer.h"

#include <fmt/format.h>

#include <memory>

#include "server/sse.h"

namespace moesaic {
namespace {

// The keys that carry reasoning, each with the same text.
std::vector<std::string> reasoning_keys(const ChatView& view) {
  if (view.reasoning_field == "both") return {"reasoning_content", "reasoning"};
  return {view.reasoning_field};
}

bool shows_call(int index, const ChatView& view) {
  return index == 0 || view.parallel_calls;
}

std::vector<ToolCallDelta> shown_calls(const std::vector<ToolCallDelta>& deltas, const ChatView& view) {
  std::vector<ToolCallDelta> calls = whole_calls(deltas);
  std::erase_if(calls, [&](const ToolCallDelta& call) { return !shows_call(call.index, view); });
  return calls;
}

JsonArray calls_json(const std::vector<ToolCallDelta>& calls) {
  JsonArray out;
  for (const ToolCallDelta& call : calls) {
    JsonObject function, entry;
    function["name"] = call.name;
    function["arguments"] = call.arguments;
    entry["id"] = call.id;
    entry["type"] = "function";
    entry["function"] = std::move(function);
    out.push_back(std::move(entry));
  }
  return out;
}

JsonObject message_json(const Chunk& said, const ChatView& view) {
  const std::vector<ToolCallDelta> calls = shown_calls(said.tool_calls, view);
  JsonObject message;
  message["role"] = "assistant";
  message["content"] = said.text.empty() && !calls.empty() ? Json() : Json(said.text);
  message["refusal"] = nullptr;
  if (view.include_reasoning && !said.reasoning.empty())
    for (const std::string& key : reasoning_keys(view)) message[key] = said.reasoning;
  if (!calls.empty()) message["tool_calls"] = calls_json(calls);
  return message;
}

const char* chat_finish_reason(FinishReason reason, bool calls, const ChatView& view) {
  if (reason != FinishReason::length && calls && !view.named_tool) return "tool_calls";
  return finish_reason_name(reason);
}

Json chat_logprobs_json(const std::vector<GeneratedToken>& tokens, const AnswerView& view) {
  if (!view.logprobs) return nullptr;
  JsonObject out;
  out["content"] = chat_logprobs(tokens, view.format);
  out["refusal"] = nullptr;
  return out;
}

}  // namespace

JsonObject chat_choice(size_t index, const CollectedChoice& choice, const ChatView& view) {
  JsonObject out;
  out["index"] = index;
  out["message"] = message_json(choice.said, view);
  out["logprobs"] = chat_logprobs_json(choice.said.tokens, view.answer);
  out["finish_reason"] = chat_finish_reason(choice.end.reason, !choice.said.tool_calls.empty(), view);
  out["stop_reason"] = stop_reason_json(choice.end.stop);
  if (view.answer.return_token_ids) out["token_ids"] = ids_json(choice.said.tokens);
  return out;
}

JsonObject chat_completion(const std::vector<CollectedChoice>& choices, const ChatView& view) {
  const AnswerView& answer = view.answer;
  JsonArray list;
  std::vector<Usage> usages;
  for (size_t i = 0; i < choices.size(); ++i) {
    list.push_back(chat_choice(i, choices[i], view));
    usages.push_back(choices[i].end.usage);
  }
  const Usage total = total_usage(usages, answer.n);
  JsonObject out;
  out["id"] = answer.id;
  out["object"] = "chat.completion";
  out["created"] = answer.created;
  out["model"] = answer.model;
  out["system_fingerprint"] = answer.fingerprint.empty() ? Json() : Json(answer.fingerprint);
  out["choices"] = std::move(list);
  out["usage"] = usage_json(total);
  if (answer.prompt_logprobs) out["prompt_logprobs"] = prompt_logprobs_json(choices[0].said.prompt, answer.format);
  if (answer.return_token_ids) out["prompt_token_ids"] = ids_json(answer.prompt_ids.at(0));
  if (answer.timings) out["timings"] = timings_json(total);
  return out;
}

ChatStream::ChatStream(ChatView view, size_t choices) : view_(std::move(view)), choices_(choices) {
  const AnswerView& answer = view_.answer;
  head_ = fmt::format(R"({{"id":{},"object":"chat.completion.chunk","created":{},"model":{},"choices":[)",
                      json_quote(answer.id), answer.created, json_quote(answer.model));
}

std::string ChatStream::running_usage() const {
  int64_t prompt = 0, completion = 0;
  for (const int64_t tokens : view_.answer.prompt_tokens) prompt += tokens;
  for (const Choice& choice : choices_) completion += choice.tokens;
  return fmt::format(R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{}}})", prompt, completion,
                     prompt + completion);
}

void ChatStream::frame(std::string_view choice, std::string& out) {
  out.append("data: ").append(head_).append(choice).append("]");
  if (view_.answer.continuous_usage) out.append(",\"usage\":").append(running_usage());
  else if (view_.answer.include_usage) out.append(",\"usage\":null");
  out.append("}\n\n");
}

// Log-probabilities and ids of the tokens behind what is shown, and of those whose text was held back until now.
std::string ChatStream::shown_tokens(Choice& choice) {
  const AnswerView& answer = view_.answer;
  if (choice.pending.empty()) return "\"logprobs\":null,\"finish_reason\":null";
  std::string out = "\"logprobs\":" + compact(chat_logprobs_json(choice.pending, answer)) + ",\"finish_reason\":null";
  if (answer.return_token_ids) out += ",\"token_ids\":" + compact(ids_json(choice.pending));
  choice.pending.clear();
  return out;
}

void ChatStream::delta(size_t choice, std::string_view delta, std::string& out) {
  frame(fmt::format(R"({{"index":{},"delta":{},{}}})", choice, delta, shown_tokens(choices_[choice])), out);
}

void ChatStream::start(std::string& out) {
  const AnswerView& answer = view_.answer;
  const std::string ids =
      answer.return_token_ids ? ",\"prompt_token_ids\":" + compact(ids_json(answer.prompt_ids.at(0))) : "";
  for (size_t i = 0; i < choices_.size(); ++i)
    frame(fmt::format(R"({{"index":{},"delta":{{"role":"assistant","content":""}},"logprobs":null,)"
                      R"("finish_reason":null{}}})",
                      i, ids),
          out);
}

// Name and arguments are never in one delta: clients take the first for the opening of a call.
void ChatStream::call_deltas(size_t choice, const ToolCallDelta& call, std::string& out) {
  if (!call.id.empty() || !call.name.empty())
    delta(choice,
          fmt::format(R"({{"tool_calls":[{{"index":{},"id":{},"type":"function",)"
                      R"("function":{{"name":{},"arguments":""}}}}]}})",
                      call.index, json_quote(call.id), json_quote(call.name)),
          out);
  if (!call.arguments.empty())
    delta(choice,
          fmt::format(R"({{"tool_calls":[{{"index":{},"function":{{"arguments":{}}}}}]}})", call.index,
                      json_quote(call.arguments)),
          out);
}

void ChatStream::chunk(size_t choice, const Chunk& chunk, std::string& out) {
  Choice& state = choices_[choice];
  state.tokens += std::ssize(chunk.tokens);
  if (view_.answer.logprobs || view_.answer.return_token_ids)
    state.pending.insert(state.pending.end(), chunk.tokens.begin(), chunk.tokens.end());
  if (view_.include_reasoning && !chunk.reasoning.empty()) {
    std::string keys;
    for (const std::string& key : reasoning_keys(view_))
      keys += fmt::format("{}{}:{}", keys.empty() ? "" : ",", json_quote(key), json_quote(chunk.reasoning));
    delta(choice, "{" + keys + "}", out);
  }
  if (!chunk.text.empty()) delta(choice, "{\"content\":" + json_quote(chunk.text) + "}", out);
  for (const ToolCallDelta& call : chunk.tool_calls) {
    state.calls = true;
    if (shows_call(call.index, view_)) call_deltas(choice, call, out);
  }
}

void ChatStream::finish(size_t choice, const ChoiceEnd& end, std::string& out) {
  Choice& state = choices_[choice];
  state.usage = end.usage;
  if (!state.pending.empty()) delta(choice, "{\"content\":\"\"}", out);
  std::string last =
      fmt::format(R"({{"index":{},"delta":{{}},"logprobs":null,"finish_reason":"{}","stop_reason":{}}})", choice,
                  chat_finish_reason(end.reason, state.calls, view_), compact(stop_reason_json(end.stop)));
  frame(last, out);
}

void ChatStream::end(std::string& out) {
  std::vector<Usage> usages;
  for (const Choice& choice : choices_) usages.push_back(choice.usage);
  const Usage total = total_usage(usages, view_.answer.n);
  if (view_.answer.include_usage) {
    std::string last = head_ + "],\"usage\":" + compact(usage_json(total));
    if (view_.answer.timings) last += ",\"timings\":" + compact(timings_json(total));
    append_event(out, last + "}");
  }
  out += kDone;
}

void ChatStream::fail(const ApiError& error, std::string& out) {
  append_event(out, compact(error_object(error)));
  out += kDone;
}

AnswerSink chat_sink(ChatView view, size_t choices, bool stream) {
  if (stream) {
    auto frames = std::make_shared<ChatStream>(std::move(view), choices);
    return {.stream = true,
            .start = [frames](std::string& out) { frames->start(out); },
            .chunk = [frames](size_t i, Chunk chunk, std::string& out) { frames->chunk(i, chunk, out); },
            .finish = [frames](size_t i, const ChoiceEnd& end, std::string& out) { frames->finish(i, end, out); },
            .end = [frames](std::string& out) { frames->end(out); },
            .fail = [frames](const ApiError& error, std::string& out) { frames->fail(error, out); }};
  }
  auto all = std::make_shared<std::vector<CollectedChoice>>(choices);
  return {.chunk = [all](size_t i, Chunk chunk, std::string&) { append_chunk((*all)[i].said, std::move(chunk)); },
          .finish = [all](size_t i, const ChoiceEnd& end, std::string&) { (*all)[i].end = end; },
          .end = [all, view = std::move(view)](std::string& out) { out += compact(chat_completion(*all, view)); }};
}

}  // namespace moesaic
