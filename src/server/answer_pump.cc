#include "server/answer_pump.h"

#include <algorithm>

#include "server/sse.h"

namespace moesaic {
namespace {

double seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

bool says_nothing(const Chunk& chunk) {
  return chunk.tokens.empty() && chunk.text.empty() && chunk.reasoning.empty() && chunk.tool_calls.empty() &&
         chunk.prompt.empty();
}

}  // namespace

AnswerPump::AnswerPump(std::shared_ptr<http::Exchange> exchange, std::vector<Completion> completions, AnswerSink sink,
                       PumpOptions options, RequestRecord record, Done done)
    : exchange_(std::move(exchange)),
      sink_(std::move(sink)),
      options_(std::move(options)),
      completions_(std::move(completions)),
      choices_(completions_.size()),
      record_(std::move(record)),
      done_(std::move(done)) {
  record_.reasons.assign(choices_.size(), FinishReason::cancelled);
}

void AnswerPump::start() {
  exchange_->post([self = shared_from_this()] { self->begin(); });
}

void AnswerPump::abort(ApiError error) {
  exchange_->post([self = shared_from_this(), error = std::move(error)] { self->fail(error); });
}

void AnswerPump::wake() {
  if (awake_.exchange(true)) return;
  exchange_->post([self = shared_from_this()] { self->drain(); });
}

// Callbacks hold no strong reference: completions and the exchange hold the callbacks.
void AnswerPump::begin() {
  if (over_) return;
  const auto weak = weak_from_this();
  exchange_->on_close([weak] {
    if (const auto self = weak.lock()) self->exchange_->post([self] { self->client_left(); });
  });
  exchange_->on_drain([weak] {
    if (const auto self = weak.lock()) self->wake();
  });
  if (sink_.stream && !options_.hold_headers) start_stream();
  for (Completion& completion : completions_)
    completion.on_ready([weak] {
      if (const auto self = weak.lock()) self->wake();
    });
}

void AnswerPump::start_stream() {
  streaming_ = true;
  exchange_->start_stream(kEventStream, {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}});
  std::string out;
  sink_.start(out);
  if (!out.empty()) exchange_->write(std::move(out));
}

bool AnswerPump::crowded(size_t more) const {
  return streaming_ && exchange_->buffered() + more > options_.buffer_bytes;
}

// Everything that is there goes into one write. Cleared first, so that what comes meanwhile wakes it again.
void AnswerPump::drain() {
  awake_ = false;
  if (over_ || crowded(0)) return;  // on_drain wakes it
  std::string out;
  bool waits = false;
  for (size_t i = 0; i < choices_.size() && !over_; ++i) waits |= !choices_[i].ended && !take(i, out);
  if (over_) return;
  time_tokens();
  if (std::all_of(choices_.begin(), choices_.end(), [](const Choice& c) { return c.ended; }))
    return complete(std::move(out));
  send(std::move(out));
  if (waits && !crowded(0)) wake();
}

// False where the exchange has enough to send and more of the choice may be there.
bool AnswerPump::take(size_t i, std::string& out) {
  while (!crowded(out.size())) {
    auto chunk = completions_[i].try_next();
    if (!chunk) {
      if (completions_[i].ended()) take_end(i, out);
      return true;
    }
    take_chunk(i, std::move(*chunk), out);
  }
  return false;
}

// The first token is shown at once; later ones in groups.
void AnswerPump::take_chunk(size_t i, Chunk chunk, std::string& out) {
  Choice& choice = choices_[i];
  if (sink_.stream && !streaming_) start_stream();
  choice.tokens += std::ssize(chunk.tokens);
  append_chunk(choice.waiting, std::move(chunk));
  if (sink_.stream && choice.shown && std::ssize(choice.waiting.tokens) < options_.stream_interval) return;
  choice.shown = true;
  sink_.chunk(i, std::exchange(choice.waiting, {}), out);
}

void AnswerPump::take_end(size_t i, std::string& out) {
  Choice& choice = choices_[i];
  Completion& completion = completions_[i];
  choice.usage = completion.usage();
  record_.reasons[i] = completion.finish_reason();
  if (!completion.status().ok()) {
    return fail(from_status(completion.status(), options_.names, options_.context_tokens), std::move(out));
  }
  if (sink_.stream && !streaming_) start_stream();
  if (!says_nothing(choice.waiting)) sink_.chunk(i, std::exchange(choice.waiting, {}), out);
  choice.ended = true;
  sink_.finish(i, {completion.finish_reason(), completion.stop_match(), choice.usage}, out);
}

// Several tokens of one wake-up share the time since the one before; those that come with the first took none.
void AnswerPump::time_tokens() {
  const Clock::time_point now = Clock::now();
  for (Choice& choice : choices_) {
    const int64_t fresh = choice.tokens - choice.tokens_timed;
    if (fresh == 0) continue;
    const bool first = choice.tokens_timed == 0;
    record_.between_tokens.insert(record_.between_tokens.end(), static_cast<size_t>(first ? fresh - 1 : fresh),
                                  first ? 0 : seconds(now - choice.last_token) / static_cast<double>(fresh));
    if (record_.first_token == 0) record_.first_token = seconds(now - exchange_->request().arrived);
    choice.tokens_timed = choice.tokens;
    choice.last_token = now;
  }
}

void AnswerPump::send(std::string out) {
  if (!out.empty()) exchange_->write(std::move(out));
}

void AnswerPump::complete(std::string out) {
  sink_.end(out);
  if (sink_.stream) {
    send(std::move(out));
    exchange_->finish();
  } else {
    exchange_->respond({.body = std::move(out)});
  }
  end(200, "");
}

void AnswerPump::fail(const ApiError& error, std::string out) {
  if (over_) return;
  if (streaming_) {
    sink_.fail(error, out);
    send(std::move(out));
    exchange_->finish();
  } else {
    exchange_->respond(error_response(error));
  }
  end(error.status, error.message);
}

void AnswerPump::client_left() {
  if (over_) return;
  end(kAbortedStatus, "the client closed the connection");
}

// Completions go, which cancels those that still run.
void AnswerPump::end(int status, std::string error) {
  over_ = true;
  completions_.clear();
  const double before = seconds(submitted_ - exchange_->request().arrived);
  std::vector<Usage> usages;
  for (const Choice& choice : choices_) usages.push_back(choice.usage);
  const Usage total = total_usage(usages, record_.n);
  if (total.prompt_tokens > 0)
    record_.prompt_tokens = total.prompt_tokens, record_.queue = before + total.queue_seconds;
  record_.cached_tokens = total.cached_tokens;
  for (const Choice& choice : choices_) record_.generated_tokens += choice.tokens;
  record_.total = seconds(Clock::now() - exchange_->request().arrived);
  record_.status = status;
  record_.error = std::move(error);
  if (const Done done = std::exchange(done_, nullptr)) done(std::move(record_));
}

}  // namespace moesaic
