// Sampling on the device: one token a row of logits, without the host. What engine/sampler.h does, less biases,
// penalties and lists of log-probabilities; draws are the same.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"

namespace moesaic {

// How one row is sampled. In device memory.
struct SampleRow {
  float temperature = 0;  // 0: the best token
  float top_p = 1, min_p = 0;
  int32_t top_k = 0;   // 0: off
  double uniform = 0;  // in [0, 1): the draw
  int32_t slot = 0;    // of the sequence: where the token is left for its next step
  int32_t padding = 0;
};

// What came of it. In device memory.
struct SampledRow {
  int32_t id = -1;    // -1: the logits hold NaN or +inf, or nothing but -inf
  float logprob = 0;  // log-softmax of the raw logits
  float gap = 0;      // best minus second best logit
  int32_t bad = 0;    // 1 + the id of the first NaN or +inf; 0: none
};

// A row of logits is reduced in parts, whose results the workspace holds.
constexpr int64_t kSampleParts = 32, kSamplePartBytes = 24;
constexpr int64_t sample_workspace_bytes(int64_t rows) {
  return rows * kSampleParts * kSamplePartBytes;
}

// logits: f32[count, vocab], of which the first valid_vocab columns count. next_tokens: i32[slots]. workspace:
// sample_workspace_bytes(count), aligned to 8 bytes.
void sample_on_gpu(const float* logits, int64_t count, int64_t vocab, int64_t valid_vocab, const SampleRow* rows,
                   SampledRow* sampled, int32_t* next_tokens, std::byte* workspace, Stream& stream);

// The first token of each sequence of a step, where it is -1, becomes next_tokens[slot]: what its last step left.
void feed_on_gpu(int32_t* token_ids, const int32_t* slots, const int32_t* sequence_offsets, const int32_t* next_tokens,
                 int64_t sequences, Stream& stream);

}  // namespace moesaic
