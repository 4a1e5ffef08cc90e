#include "server/response_answer.h"

#include <fmt/format.h>

#include <memory>

#include "server/sse.h"

namespace moesaic {
namespace {

JsonObject text_part(const char* type, const std::string& text) {
  JsonObject part;
  part["type"] = type;
  part["text"] = text;
  if (std::string_view(type) == "output_text") part["annotations"] = JsonArray();
  return part;
}

JsonObject response_usage(const Usage& usage) {
  JsonObject input, output, out;
  input["cached_tokens"] = usage.cached_tokens;
  output["reasoning_tokens"] = usage.reasoning_tokens;
  out["input_tokens"] = usage.prompt_tokens;
  out["input_tokens_details"] = std::move(input);
  out["output_tokens"] = usage.completion_tokens;
  out["output_tokens_details"] = std::move(output);
  out["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  return out;
}

}  // namespace

ResponseEvents::ResponseEvents(ResponseView view) : view_(std::move(view)) {}

JsonObject ResponseEvents::response() const {
  JsonObject out;
  out["id"] = view_.answer.id;
  out["object"] = "response";
  out["created_at"] = view_.answer.created;
  out["status"] = status_;
  out["error"] = error_;
  out["incomplete_details"] = incomplete_;
  out["model"] = view_.answer.model;
  out["output"] = output_;
  for (const auto& item : view_.echoed) out[item.key()] = item.value();
  out["usage"] = status_ == "in_progress" ? Json() : Json(response_usage(usage_));
  return out;
}

void ResponseEvents::event(const char* type, JsonObject fields, std::string& out) {
  JsonObject data;
  data["type"] = type;
  data["sequence_number"] = sequence_++;
  for (auto& item : fields) data[item.key()] = std::move(item.value());
  append_event(out, type, compact(data));
}

void ResponseEvents::start(std::string& out) {
  for (const char* type : {"response.created", "response.in_progress"}) {
    JsonObject fields;
    fields["response"] = response();
    event(type, std::move(fields), out);
  }
}

JsonObject ResponseEvents::place(bool content) const {
  JsonObject out;
  out["item_id"] = item_.at("id");
  out["output_index"] = output_.size();
  if (content) out["content_index"] = 0;
  return out;
}

void ResponseEvents::open(Kind kind, JsonObject item, std::string& out) {
  kind_ = kind;
  item_ = std::move(item);
  text_.clear();
  JsonObject added;
  added["output_index"] = output_.size();
  added["item"] = item_;
  event("response.output_item.added", std::move(added), out);
}

void ResponseEvents::open_text(Kind kind, std::string& out) {
  close("completed", out);
  const bool reasoning = kind == Kind::reasoning;
  JsonObject item;
  item["type"] = reasoning ? "reasoning" : "message";
  item["id"] = fmt::format("{}_{}_{}", reasoning ? "rs" : "msg", view_.answer.id, output_.size());
  if (reasoning) item["summary"] = JsonArray();
  else item["role"] = "assistant", item["status"] = "in_progress";
  item["content"] = JsonArray();
  open(kind, std::move(item), out);
  if (reasoning) return;
  JsonObject part = place(true);
  part["part"] = text_part("output_text", "");
  event("response.content_part.added", std::move(part), out);
}

void ResponseEvents::add_text(Kind kind, const std::string& text, std::string& out) {
  if (text.empty()) return;
  if (kind_ != kind) open_text(kind, out);
  text_ += text;
  JsonObject delta = place(true);
  delta["delta"] = text;
  if (kind == Kind::message) delta["logprobs"] = JsonArray();
  event(kind == Kind::reasoning ? "response.reasoning_text.delta" : "response.output_text.delta", std::move(delta),
        out);
}

void ResponseEvents::add_call(const ToolCallDelta& call, std::string& out) {
  if (call.index > 0 && !view_.parallel_calls) return;
  if (kind_ != Kind::call || call_ != call.index) {
    close("completed", out);
    call_ = call.index;
    JsonObject item;
    item["type"] = "function_call";
    item["id"] = fmt::format("fc_{}_{}", view_.answer.id, output_.size());
    item["call_id"] = call.id;
    item["name"] = call.name;
    item["arguments"] = "";
    item["status"] = "in_progress";
    open(Kind::call, std::move(item), out);
  }
  if (call.arguments.empty()) return;
  text_ += call.arguments;
  JsonObject delta = place(false);
  delta["delta"] = call.arguments;
  event("response.function_call_arguments.delta", std::move(delta), out);
}

void ResponseEvents::close_message(std::string& out) {
  JsonObject done = place(true);
  done["text"] = text_;
  done["logprobs"] = JsonArray();
  event("response.output_text.done", std::move(done), out);
  JsonObject part = place(true);
  part["part"] = text_part("output_text", text_);
  event("response.content_part.done", std::move(part), out);
  item_["content"] = JsonArray{text_part("output_text", text_)};
}

void ResponseEvents::close(const char* status, std::string& out) {
  if (kind_ == Kind::none) return;
  if (kind_ == Kind::message) close_message(out);
  if (kind_ == Kind::reasoning) {
    JsonObject done = place(true);
    done["text"] = text_;
    event("response.reasoning_text.done", std::move(done), out);
    item_["content"] = JsonArray{text_part("reasoning_text", text_)};
  }
  if (kind_ == Kind::call) {
    JsonObject done = place(false);
    done["arguments"] = text_;
    event("response.function_call_arguments.done", std::move(done), out);
    item_["arguments"] = text_;
  }
  if (item_.contains("status")) item_["status"] = status;
  JsonObject done;
  done["output_index"] = output_.size();
  done["item"] = item_;
  event("response.output_item.done", std::move(done), out);
  output_.push_back(std::move(item_));
  item_ = {}, kind_ = Kind::none;
}

void ResponseEvents::chunk(const Chunk& chunk, std::string& out) {
  if (view_.include_reasoning) add_text(Kind::reasoning, chunk.reasoning, out);
  add_text(Kind::message, chunk.text, out);
  for (const ToolCallDelta& call : chunk.tool_calls) add_call(call, out);
}

void ResponseEvents::finish(const ChoiceEnd& end, std::string& out) {
  const bool cut = end.reason == FinishReason::length;
  // An answer without a word is still a message.
  if (kind_ == Kind::none && output_.empty()) open_text(Kind::message, out);
  close(cut ? "incomplete" : "completed", out);
  usage_ = end.usage;
  status_ = cut ? "incomplete" : "completed";
  if (!cut) return;
  JsonObject details;
  details["reason"] = "max_output_tokens";
  incomplete_ = std::move(details);
}

void ResponseEvents::end(std::string& out) {
  JsonObject fields;
  fields["response"] = response();
  event(status_ == "incomplete" ? "response.incomplete" : "response.completed", std::move(fields), out);
}

void ResponseEvents::fail(const ApiError& error, std::string& out) {
  status_ = "failed";
  JsonObject reason, fields;
  reason["code"] = error.code;
  reason["message"] = error.message;
  error_ = std::move(reason);
  fields["response"] = response();
  event("response.failed", std::move(fields), out);
}

AnswerSink response_sink(ResponseView view, bool stream, std::function<void(const JsonArray& output)> done) {
  auto events = std::make_shared<ResponseEvents>(std::move(view));
  if (stream)
    return {.stream = true,
            .start = [events](std::string& out) { events->start(out); },
            .chunk = [events](size_t, const Chunk& chunk, std::string& out) { events->chunk(chunk, out); },
            .finish = [events](size_t, const ChoiceEnd& end, std::string& out) { events->finish(end, out); },
            .end =
                [events, done = std::move(done)](std::string& out) {
                  done(events->output());
                  events->end(out);
                },
            .fail = [events](const ApiError& error, std::string& out) { events->fail(error, out); }};
  return {.chunk =
              [events](size_t, const Chunk& chunk, std::string&) {
                std::string unsent;
                events->chunk(chunk, unsent);
              },
          .finish =
              [events](size_t, const ChoiceEnd& end, std::string&) {
                std::string unsent;
                events->finish(end, unsent);
              },
          .end =
              [events, done = std::move(done)](std::string& out) {
                done(events->output());
                out += compact(events->response());
              }};
}

}  // namespace moesaic
