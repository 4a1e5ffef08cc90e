// SpeedMeter: times prompts and generation on a loaded model, without an engine. For `moesaic bench`.
//
// Tokens are random and the same in every repetition, so the work counted in the warm-up is that of each repetition.
// Generation continues with such tokens too rather than with the best logit: greedy text soon repeats itself, above all
// on random weights, and a batch of repeating sequences reaches few experts. Logits are computed; picking a token is
// not part of the measurement, except on a GPU, whose steps do it themselves.
#pragma once

#include <span>
#include <vector>

#include "base/progress.h"
#include "cache/cache_pool.h"
#include "engine/step_timer.h"
#include "runtime/loaded_model.h"

namespace moesaic {

struct SpeedResult {
  int64_t tokens = 0, steps = 0;        // of one repetition
  std::vector<double> seconds;          // of each repetition
  Work work;                            // of one repetition
  std::vector<StepTimer::Row> profile;  // of one more repetition, when asked for
  std::vector<StepTimer::Span> spans;   // its launches
};

class SpeedMeter {
 public:
  // `progress` advances by the tokens of every repetition, outside the timed steps.
  SpeedMeter(LoadedModel& loaded, Progress& progress, uint64_t seed = 1);

  // One sequence of `length` tokens from an empty cache, in steps of the prefill plan; logits of the last token.
  SpeedResult prompt(int64_t length, int repetitions, bool profile);
  // `count` steps of the decode plan on `batch` sequences that have `depth` tokens in the cache.
  SpeedResult generate(int64_t batch, int64_t depth, int64_t count, int repetitions, bool profile);

  // What the two advance the progress by.
  static int64_t prompt_progress(int64_t length, int repetitions, bool profile);
  static int64_t generate_progress(int64_t batch, int64_t depth, int64_t count, int repetitions, bool profile);

 private:
  // Starts the filled batch. With a timer, its hook sees every launch.
  void step(const Plan& plan, StepTimer* timer);
  double prefill(int64_t sequence, int64_t length, StepTimer* timer);
  double decode(int64_t depth, int64_t count, StepTimer* timer);
  void open(int64_t sequences, int64_t tokens);
  void close();
  std::span<const int32_t> tokens(int64_t sequence, int64_t begin, int64_t count) const;

  LoadedModel& loaded_;
  Progress& progress_;
  CachePool pool_;
  Batch batch_;
  std::vector<SequenceCache> sequences_;
  std::vector<SampleRow> samples_;
  std::vector<int32_t> tokens_;  // [max_sequences, max_model_len]
};

}  // namespace moesaic
