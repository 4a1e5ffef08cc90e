// StepRunner: runs a model's steps on a GPU without waiting for them. A decode step, with its sampling, is captured
// once for each batch size of a ladder and launched again as one graph; smaller batches are padded.
#pragma once

#include <array>
#include <map>
#include <span>

#include "runtime/run.h"
#include "runtime/step_inputs.h"

namespace moesaic {

// Of one step: a row for each row of logits, valid once `done` is reached and until kStepsInFlight steps later.
struct StepResult {
  const SampledRow* rows = nullptr;
  Mark* done = nullptr;
};

class StepRunner {
 public:
  static constexpr int kStepsInFlight = 5;

  // `valid_vocab` columns of the logits are sampled; `image_width` as StepInputs takes it. The plans, caches and memory
  // outlive the runner; the cache holds one block and one slot more than its pool deals out, the last of each:
  // padding's.
  StepRunner(Device& device, const Compiled& compiled, const Memory& memory, int64_t max_blocks, int64_t blocks,
             int64_t slots, int64_t valid_vocab, int64_t image_width);

  // Captures every step of the decode plan, after one eager run of each. Without it they are captured when needed.
  void warm_up(const Plan& decode);

  // Starts a step of one of the two plans; `samples` has an entry for each row of logits. A token -1 in the batch is
  // what the last step sampled for the sequence's slot.
  StepResult run(const Plan& plan, const BatchView& batch, std::span<const SampleRow> samples);
  // Starts a step without sampling, launch by launch. The hook sees operands on the device and the batch on the host.
  void run(const Plan& plan, const BatchView& batch, const StepHook* hook);

  // The columns of the logits that count; set before warm_up().
  void set_valid_vocab(int64_t valid_vocab) { valid_vocab_ = valid_vocab; }

 private:
  struct Ring {
    Buffer rows;  // of SampledRow, on the host
    std::unique_ptr<Mark> done;
  };

  StepInputs& inputs(const Plan& plan) { return plan.phase == Phase::decode ? decode_inputs_ : prefill_inputs_; }
  int64_t bucket(int64_t sequences) const;
  static bool captured(const Plan& plan, const BatchView& batch);
  Recording& recording(const Plan& plan, int64_t bucket);
  void launch(const Plan& plan, const BatchView& there, const StepHook* hook);
  void sample(const Plan& plan, int64_t rows);

  Device& device_;
  const CacheMap cache_;
  const Limits decode_limits_;
  const Memory memory_;
  int64_t valid_vocab_;
  StepInputs prefill_inputs_, decode_inputs_;
  Buffer sampled_, next_tokens_, sample_workspace_;
  std::array<Ring, kStepsInFlight> ring_;
  int turn_ = 0;
  std::map<int64_t, std::unique_ptr<Recording>> recordings_;  // by bucket
};

}  // namespace moesaic
