// Kimi delta attention of one head: a state of D x V numbers that decays per key channel, moves towards v where k reads
// it, and is read by q. Per token, with S key-major [D][V]:
//   S = diag(e^g) S;  delta = beta (v - S^T k);  S = S + k delta^T;  out = S^T q
#pragma once

#include <cstdint>

#include "base/cpu.h"

namespace moesaic::cpu {

// Consecutive tokens of one head. q and k have unit length, q is also scaled by D^-0.5.
struct KdaTokens {
  int64_t n = 0, D = 0, V = 0;
  const float *q = nullptr, *k = nullptr;  // [n][D]
  const float* g = nullptr;                // log decays: n rows of D, g_stride floats apart
  const float* beta = nullptr;             // [n]
  const float* v = nullptr;                // n rows of V, v_stride floats apart
  float* out = nullptr;                    // likewise
  int64_t g_stride = 0, v_stride = 0;
};

// Token by token, the definition. The additions of a token have one order whatever n is, so tokens cut into calls in
// any way give the same bits, at every level. `scratch` holds n * D floats.
void kda_recurrent(Isa isa, const KdaTokens& tokens, float* state, float* scratch);

// The same numbers in pieces of up to 64 tokens: inside a piece, products between tokens and one triangular system
// replace the recurrence. This is the form for matrix units. It sums in another order, and where a piece ends depends
// on the call: equal to the recurrence to rounding, not in bits.
constexpr int64_t kKdaPiece = 64;
constexpr int64_t kda_chunked_scratch_floats(int64_t D, int64_t V) {
  return 2 * kKdaPiece * kKdaPiece + kKdaPiece * V + 2 * D;
}
void kda_chunked(const KdaTokens& tokens, float* state, float* scratch);

}  // namespace moesaic::cpu
