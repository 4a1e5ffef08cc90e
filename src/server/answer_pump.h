// AnswerPump: carries the completions of one request to its exchange, without a thread of its own.
#pragma once

#include <atomic>
#include <memory>

#include "server/answer.h"
#include "server/api.h"

namespace moesaic {

struct PumpOptions {
  int stream_interval = 1;        // tokens of a choice per event, after its first
  size_t buffer_bytes = 1 << 20;  // an exchange that has more to send gets no more
  bool hold_headers = false;      // a stream begins with its first token, so that a timeout before is a real 504
  ParamNames names = {};          // for errors
  int64_t context_tokens = 0;
};

// The engine's thread wakes it; everything else it does in tasks of its exchange, of which one runs at a time. Whoever
// started it holds it until `done` is called, once, when the answer is complete or has failed or the client has left.
class AnswerPump : public std::enable_shared_from_this<AnswerPump> {
 public:
  using Done = std::function<void(RequestRecord)>;

  // `record` knows the request; the pump adds what became of it.
  AnswerPump(std::shared_ptr<http::Exchange> exchange, std::vector<Completion> completions, AnswerSink sink,
             PumpOptions options, RequestRecord record, Done done);

  // Any thread.
  void start();
  // Ends the request with this error, if it has not ended yet. Any thread.
  void abort(ApiError error);

 private:
  using Clock = std::chrono::steady_clock;
  struct Choice {
    Chunk waiting;  // for stream_interval tokens
    bool shown = false, ended = false;
    Usage usage;
    int64_t tokens = 0, tokens_timed = 0;
    Clock::time_point last_token;
  };

  void wake();  // from any thread
  void begin();
  void drain();
  bool take(size_t i, std::string& out);
  void take_chunk(size_t i, Chunk chunk, std::string& out);
  void take_end(size_t i, std::string& out);
  void time_tokens();
  bool crowded(size_t more) const;
  void send(std::string out);
  void start_stream();
  void complete(std::string out);
  // `out`: what was to be sent before.
  void fail(const ApiError& error, std::string out = {});
  void client_left();
  void end(int status, std::string error);

  const std::shared_ptr<http::Exchange> exchange_;
  const AnswerSink sink_;
  const PumpOptions options_;
  const Clock::time_point submitted_ = Clock::now();
  std::vector<Completion> completions_;
  std::vector<Choice> choices_;
  RequestRecord record_;
  Done done_;
  std::atomic<bool> awake_{false};
  bool streaming_ = false, over_ = false;
};

}  // namespace moesaic
