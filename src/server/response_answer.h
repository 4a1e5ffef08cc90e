// Answers of /v1/responses: one object, or named events.
#pragma once

#include "server/answer.h"

namespace moesaic {

struct ResponseView {
  AnswerView answer;
  JsonObject echoed;  // fields of the request that the answer repeats
  bool include_reasoning = true, parallel_calls = true;
};

// Takes an answer apart into items and says so in events, appended to `out`: created, in_progress; for each item added,
// its deltas, done; at last completed, incomplete or failed. There is no [DONE].
class ResponseEvents {
 public:
  explicit ResponseEvents(ResponseView view);

  void start(std::string& out);
  void chunk(const Chunk& chunk, std::string& out);
  void finish(const ChoiceEnd& end, std::string& out);
  void end(std::string& out);
  void fail(const ApiError& error, std::string& out);

  // As it stands.
  JsonObject response() const;
  const JsonArray& output() const { return output_; }

 private:
  enum class Kind : uint8_t { none, reasoning, message, call };
  void event(const char* type, JsonObject fields, std::string& out);
  JsonObject place(bool content) const;
  void open(Kind kind, JsonObject item, std::string& out);
  void open_text(Kind kind, std::string& out);
  void add_text(Kind kind, const std::string& text, std::string& out);
  void add_call(const ToolCallDelta& call, std::string& out);
  void close(const char* status, std::string& out);
  void close_message(std::string& out);

  ResponseView view_;
  std::string status_ = "in_progress";
  Json error_, incomplete_;
  Usage usage_;
  JsonArray output_;  // items that are done
  JsonObject item_;   // the open one
  Kind kind_ = Kind::none;
  int call_ = -1;     // index of the open call
  std::string text_;  // of the open item: text or arguments so far
  int64_t sequence_ = 0;
};

// `done` gets the output of a complete answer.
AnswerSink response_sink(ResponseView view, bool stream, std::function<void(const JsonArray& output)> done);

}  // namespace moesaic
