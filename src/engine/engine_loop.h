// EngineLoop: the thread that owns all scheduling state. Requests come in through submit(); each step it admits what
// fits, runs the decode plan over the sequences that generate and the prefill plan over prompt chunks within the token
// budget, samples, and hands out text.
#pragma once

#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/speculation.h"
#include "runtime/loaded_model.h"

namespace moesaic {

class EngineLoop {
 public:
  // `eos` ends a sequence unless it ignores them. `tokenizer` may be null: no text then. Both outlive the loop.
  EngineLoop(LoadedModel& model, const Tokenizer* tokenizer, std::vector<int32_t> eos, int64_t valid_vocab,
             int64_t max_queue);
  ~EngineLoop();
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  // Any thread. The request has been checked; resource_exhausted when the queue is full, unavailable after a failure.
  // `images` are those of the prompt's image tokens, in order.
  Result<std::shared_ptr<CompletionStream>> submit(Request request, std::vector<PatchedImage> images = {});

  // Whether the cache could hold so many tokens if nothing else ran.
  bool can_ever_hold(int64_t tokens) const { return pool_.can_ever_hold(tokens); }

 private:
  void loop();
  void step();
  bool wait_for_work();
  void admit();
  void drop_cancelled();
  void drop_ended();
  void decode();
  void prefill();
  void encode_images();
  void run_batch(const Plan& plan);
  void sample_batch(const Plan& plan);
  // A step on a GPU whose tokens have not been read: the sequence of each row, null where it has ended since.
  struct InFlight {
    std::vector<Sequence*> sequences;
    StepResult result;
  };
  // On a GPU: starts the batch, whose tokens come later, while the next is being prepared.
  void start_batch(const Plan& plan);
  SampleRow sample_row(const Sequence& sequence) const;
  // Takes the tokens of steps in flight, in order, until `keep` steps are left.
  void collect(size_t keep);
  void take_step(const InFlight& step, const Plan* plan = nullptr, float* logits = nullptr);
  void take_sampled(Sequence& sequence, const SampledToken& token);
  void sample_on_host(const Plan& plan);
  // The tokens chosen for in_batch_[i]; false when the sequence has ended.
  bool take_tokens(size_t i);
  void retire(Sequence& sequence, Status status, FinishReason reason);
  void fail_all(const Status& status);

  LoadedModel& model_;
  const Tokenizer* tokenizer_;
  const std::vector<int32_t> eos_;
  const int64_t valid_vocab_, max_queue_;

  CachePool pool_;
  Batch batch_;
  std::list<Sequence> running_;
  std::vector<Sequence*> in_batch_;    // sequences of the current batch, in order
  std::vector<SampledToken> sampled_;  // [sequences, 1 + speculative_tokens]
  std::vector<int64_t> sampled_count_;
  std::vector<ComputedTokens> computed_;  // of in_batch_; without `sequence` where that has ended
  std::vector<int32_t> last_and_drafts_;
  std::optional<Drafter> drafter_;
  std::deque<InFlight> in_flight_;
  std::vector<SampleRow> sample_rows_;
  Buffer logits_;  // on the host

  std::mutex mutex_;
  std::condition_variable work_;
  std::list<Sequence> waiting_;  // guarded by mutex_
  bool stopping_ = false;        // guarded by mutex_
  Status failure_;               // guarded by mutex_; not ok after an engine failure
  std::thread thread_;
};

}  // namespace moesaic
