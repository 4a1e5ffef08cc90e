// EngineLoop: the thread that owns all scheduling state. Requests come in through submit(); each step it admits what
// the Scheduler lets in, runs the decode plan over the sequences that generate and the prefill plan over prompt chunks
// within what is left of the token budget, samples, and hands out text.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/expert_counter.h"
#include "engine/mask_maker.h"
#include "engine/scheduler.h"
#include "engine/speculation.h"
#include "runtime/loaded_model.h"

namespace moesaic {

struct LoopOptions {
  SequenceWorld world;
  int64_t max_queue = 0;
  SchedulerOptions scheduler;
  ReuseOptions reuse;
  std::set<int64_t> faults;  // numbers of steps, from 1 on, that throw instead of running: for tests
};

class EngineLoop {
 public:
  // The model outlives the loop.
  EngineLoop(LoadedModel& model, LoopOptions options);
  ~EngineLoop();
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  // Any thread. The request has been checked; resource_exhausted when the queue is full, unavailable after a failure.
  // `images` are those of the prompt's image tokens, in order.
  Result<std::shared_ptr<CompletionStream>> submit(Request request, std::vector<PatchedImage> images = {});

  // Tokens that the cache could hold of one sequence if nothing else ran.
  int64_t longest_tokens() const { return memory_.longest_tokens(); }

  EngineStats stats() const;
  Status clear_prefix_cache();

 private:
  void loop();
  void step();
  bool wait_for_work();
  void drop_given_up();
  Status given_up(const Sequence& sequence, Clock::time_point now) const;
  void drop_ended();
  void decode();
  void reserve_decoding();
  void reserve(Sequence& sequence);
  void prefill();
  int64_t prefill_tokens(const Sequence& sequence, int64_t budget) const;
  void encode_images();
  void run_batch(const Plan& plan);
  void run_counted(const Plan& plan);
  void run_on_cpu(const Plan& plan);
  void fail_batch(const Error& error);
  void start_masks();
  void sample_batch(const Plan& plan);
  void sample_rows(size_t i, std::byte* rows, const Plan& plan);
  void count(const Sequence& sequence, FinishReason reason);
  void publish_stats();
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
  // Rows of the step started last that score a prompt's tokens, on a GPU.
  struct ScoredRow {
    Sequence* sequence;
    int64_t row, position;
  };
  void add_scored_rows(Sequence& sequence, int64_t rows);
  void end_scoring(Sequence& sequence);
  bool accept(Sequence& sequence, const SampledToken& token, FinishReason& reason);
  // The tokens chosen for in_batch_[i]; false when the sequence has ended.
  bool take_tokens(size_t i);
  void retire(Sequence& sequence, Status status, FinishReason reason);
  void fail_all(const Status& status);

  LoadedModel& model_;
  const LoopOptions options_;

  SequenceMemory memory_;
  Scheduler scheduler_;
  ExpertCounter experts_;
  MaskMaker masks_;
  Batch batch_;
  std::vector<Sequence*> in_batch_;    // sequences of the current batch, in order
  std::vector<SampledToken> sampled_;  // [sequences, 1 + speculative_tokens]
  std::vector<int64_t> sampled_count_;
  std::vector<ComputedTokens> computed_;  // of in_batch_; without `sequence` where that has ended
  std::vector<int32_t> last_and_drafts_;
  std::optional<Drafter> drafter_;
  std::deque<InFlight> in_flight_;
  std::vector<SampleRow> sample_rows_;
  std::vector<ScoredRow> scored_rows_;
  Buffer logits_;  // on the host
  int64_t arrivals_ = 0, runs_ = 0;
  EngineStats counted_;  // what the loop itself counts

  std::mutex mutex_;
  std::condition_variable work_;
  std::list<Sequence> incoming_;        // guarded by mutex_
  std::atomic<int64_t> in_line_ = 0;    // sequences that wait in the scheduler
  bool stopping_ = false;               // guarded by mutex_
  bool clear_wanted_ = false;           // guarded by mutex_
  std::optional<Status> clear_result_;  // guarded by mutex_
  std::condition_variable cleared_;
  Status failure_;  // guarded by mutex_; not ok after an engine failure
  mutable std::mutex stats_mutex_;
  EngineStats stats_;                             // guarded by stats_mutex_
  Clock::time_point last_step_, experts_copied_;  // guarded by stats_mutex_
  bool idle_ = true;                              // guarded by stats_mutex_
  std::thread thread_;
};

}  // namespace moesaic
