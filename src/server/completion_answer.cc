#include "server/completion_answer.h"

#include <fmt/format.h>

#include <memory>

#include "server/sse.h"

namespace moesaic {
namespace {

size_t prompt_of(size_t choice, const CompletionView& view) {
  return choice / static_cast<size_t>(view.answer.n);
}

Json logprobs_of(size_t index, const CollectedChoice& choice, const CompletionView& view) {
  if (!view.answer.logprobs) return nullptr;
  TextLogprobs logprobs(view.answer.format);
  if (view.echo) logprobs.add_prompt(view.answer.prompt_ids.at(prompt_of(index, view)), choice.said.prompt);
  for (const GeneratedToken& token : choice.said.tokens) logprobs.add(token);
  return logprobs.take();
}

JsonObject choice_json(size_t index, const CollectedChoice& choice, const CompletionView& view) {
  const AnswerView& answer = view.answer;
  JsonObject out;
  out["index"] = index;
  out["text"] = (view.echo ? view.prompt_texts.at(prompt_of(index, view)) : "") + choice.said.text;
  out["logprobs"] = logprobs_of(index, choice, view);
  out["finish_reason"] = finish_reason_name(choice.end.reason);
  out["stop_reason"] = stop_reason_json(choice.end.stop);
  if (answer.prompt_logprobs) out["prompt_logprobs"] = prompt_logprobs_json(choice.said.prompt, answer.format);
  if (answer.return_token_ids) {
    out["token_ids"] = ids_json(choice.said.tokens);
    out["prompt_token_ids"] = ids_json(answer.prompt_ids.at(prompt_of(index, view)));
  }
  return out;
}

}  // namespace

JsonObject text_completion(const std::vector<CollectedChoice>& choices, const CompletionView& view) {
  const AnswerView& answer = view.answer;
  JsonArray list;
  std::vector<Usage> usages;
  for (size_t i = 0; i < choices.size(); ++i) {
    list.push_back(choice_json(i, choices[i], view));
    usages.push_back(choices[i].end.usage);
  }
  const Usage total = total_usage(usages, answer.n);
  JsonObject out;
  out["id"] = answer.id;
  out["object"] = "text_completion";
  out["created"] = answer.created;
  out["model"] = answer.model;
  out["system_fingerprint"] = answer.fingerprint.empty() ? Json() : Json(answer.fingerprint);
  out["choices"] = std::move(list);
  out["usage"] = usage_json(total);
  if (answer.timings) out["timings"] = timings_json(total);
  return out;
}

CompletionFrames::CompletionFrames(CompletionView view, size_t choices) : view_(std::move(view)), choices_(choices) {
  const AnswerView& answer = view_.answer;
  head_ = fmt::format(R"({{"id":{},"object":"text_completion","created":{},"model":{},"choices":[)",
                      json_quote(answer.id), answer.created, json_quote(answer.model));
  if (answer.logprobs)
    for (Choice& choice : choices_) choice.logprobs.emplace(answer.format);
}

void CompletionFrames::frame(std::string_view choice, std::string& out) {
  const AnswerView& answer = view_.answer;
  out.append("data: ").append(head_).append(choice).append("]");
  if (answer.continuous_usage) {
    Usage now;
    for (const int64_t tokens : answer.prompt_tokens) now.prompt_tokens += tokens;
    for (const Choice& one : choices_) now.completion_tokens += one.tokens;
    out += fmt::format(R"(,"usage":{{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{}}})", now.prompt_tokens,
                       now.completion_tokens, now.prompt_tokens + now.completion_tokens);
  } else if (answer.include_usage) {
    out += ",\"usage\":null";
  }
  out += "}\n\n";
}

void CompletionFrames::text(size_t choice, std::string_view text, std::string& out) {
  Choice& state = choices_[choice];
  const std::string logprobs = state.logprobs ? compact(state.logprobs->take()) : "null";
  std::string line =
      fmt::format(R"({{"index":{},"text":{},"logprobs":{},"finish_reason":null)", choice, json_quote(text), logprobs);
  if (view_.answer.return_token_ids) line += ",\"token_ids\":" + compact(ids_json(state.ids));
  state.ids.clear();
  state.pending = false;
  frame(line + "}", out);
}

void CompletionFrames::echo(size_t choice, const Chunk& chunk, std::string& out) {
  Choice& state = choices_[choice];
  if (!view_.echo || state.echoed) return;
  state.echoed = true;
  const size_t prompt = prompt_of(choice, view_);
  if (state.logprobs) state.logprobs->add_prompt(view_.answer.prompt_ids.at(prompt), chunk.prompt);
  text(choice, view_.prompt_texts.at(prompt), out);
}

void CompletionFrames::chunk(size_t choice, const Chunk& chunk, std::string& out) {
  echo(choice, chunk, out);
  Choice& state = choices_[choice];
  state.tokens += std::ssize(chunk.tokens);
  for (const GeneratedToken& token : chunk.tokens) {
    if (state.logprobs) state.logprobs->add(token);
    if (view_.answer.return_token_ids) state.ids.push_back(token);
    state.pending |= state.logprobs || view_.answer.return_token_ids;
  }
  if (!chunk.text.empty()) text(choice, chunk.text, out);
}

void CompletionFrames::finish(size_t choice, const ChoiceEnd& end, std::string& out) {
  echo(choice, {}, out);
  Choice& state = choices_[choice];
  state.usage = end.usage;
  if (state.pending) text(choice, "", out);
  frame(fmt::format(R"({{"index":{},"text":"","logprobs":null,"finish_reason":"{}","stop_reason":{}}})", choice,
                    finish_reason_name(end.reason), compact(stop_reason_json(end.stop))),
        out);
}

void CompletionFrames::end(std::string& out) {
  if (view_.answer.include_usage) {
    std::vector<Usage> usages;
    for (const Choice& choice : choices_) usages.push_back(choice.usage);
    append_event(out, head_ + "],\"usage\":" + compact(usage_json(total_usage(usages, view_.answer.n))) + "}");
  }
  out += kDone;
}

void CompletionFrames::fail(const ApiError& error, std::string& out) {
  append_event(out, compact(error_object(error)));
  out += kDone;
}

AnswerSink completion_sink(CompletionView view, size_t choices, bool stream) {
  if (stream) {
    auto frames = std::make_shared<CompletionFrames>(std::move(view), choices);
    return {.stream = true,
            .chunk = [frames](size_t i, Chunk chunk, std::string& out) { frames->chunk(i, chunk, out); },
            .finish = [frames](size_t i, const ChoiceEnd& end, std::string& out) { frames->finish(i, end, out); },
            .end = [frames](std::string& out) { frames->end(out); },
            .fail = [frames](const ApiError& error, std::string& out) { frames->fail(error, out); }};
  }
  auto all = std::make_shared<std::vector<CollectedChoice>>(choices);
  return {.chunk = [all](size_t i, Chunk chunk, std::string&) { append_chunk((*all)[i].said, std::move(chunk)); },
          .finish = [all](size_t i, const ChoiceEnd& end, std::string&) { (*all)[i].end = end; },
          .end = [all, view = std::move(view)](std::string& out) { out += compact(text_completion(*all, view)); }};
}

}  // namespace moesaic
