// What the answers of all endpoints are made of. Building one is pure: chunks of an engine go in, text comes out.
#pragma once

#include <functional>

#include "base/json.h"
#include "moesaic/engine.h"
#include "server/error_body.h"
#include "server/logprobs_json.h"

namespace moesaic {

// How one choice ended.
struct ChoiceEnd {
  FinishReason reason = FinishReason::stop;
  StopMatch stop = {};
  Usage usage = {};
};

// The same in all objects of an answer, and what of it is shown.
struct AnswerView {
  std::string id, model, fingerprint;
  int64_t created = 0;  // Unix time
  int n = 1;            // choices per prompt
  // Of each prompt, for running totals, and its tokens where the caller wants them back.
  std::vector<int64_t> prompt_tokens = {};
  std::vector<std::vector<int32_t>> prompt_ids = {};
  bool include_usage = false, continuous_usage = false;
  bool return_token_ids = false, timings = false;
  bool logprobs = false, prompt_logprobs = false;
  LogprobFormat format = {};
};

// Everything one choice said.
struct CollectedChoice {
  Chunk said;
  ChoiceEnd end;
};

// Takes an answer as it comes: start, chunks and one finish for each choice, then end; or fail at any time, as the
// last. Each appends to `out` what is to be sent. An answer that is no stream sends nothing before its end.
struct AnswerSink {
  bool stream = false;
  std::function<void(std::string& out)> start = [](std::string&) {};
  std::function<void(size_t choice, Chunk chunk, std::string& out)> chunk;
  std::function<void(size_t choice, const ChoiceEnd& end, std::string& out)> finish;
  std::function<void(std::string& out)> end;
  std::function<void(const ApiError& error, std::string& out)> fail = [](const ApiError&, std::string&) {};  // streams
};

// `more` follows `chunk`.
void append_chunk(Chunk& chunk, Chunk more);

// Deltas of one call become one: id and name once, arguments whole. In order of their indices.
std::vector<ToolCallDelta> whole_calls(const std::vector<ToolCallDelta>& deltas);

// A prompt counts once, however many choices it has.
Usage total_usage(const std::vector<Usage>& choices, int n);
JsonObject usage_json(const Usage& usage);
JsonObject timings_json(const Usage& usage);
const char* finish_reason_name(FinishReason reason);
Json stop_reason_json(const StopMatch& stop);
JsonArray ids_json(const std::vector<int32_t>& ids);
JsonArray ids_json(const std::vector<GeneratedToken>& tokens);

// Value as compact JSON.
std::string compact(const Json& value);

}  // namespace moesaic
