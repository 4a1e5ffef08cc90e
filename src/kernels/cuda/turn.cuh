// Rotary position embedding of channels as an attention kernel reads them. Every kernel turns with the same operations,
// so that a key is the same whoever writes it.
#pragma once

#include "kernels/cuda/numbers.cuh"
#include "kernels/kernel.h"

namespace moesaic::cuda {

struct Turn {
  const float* table;  // [T, pairs, 2]: cosine and sine; null: nothing is turned
  int pairs;
  bool neighbours;  // pairs are (2i, 2i + 1), not (i, i + pairs)
};

// By desc's `rotate` and its last input.
inline Turn turn_of(const OpDesc& desc, const Args& args) {
  if (desc.rotate() == Rotate::none) return {};
  const int last = static_cast<int>(desc.inputs.size()) - 1;
  return {args.input<float>(last), static_cast<int>(desc.in(last).type.dim(1).factor),
          desc.rotate() == Rotate::neighbours};
}

// One channel of a pair: x cos - other sin for the first, x cos + other sin for the second.
__device__ __forceinline__ float turn_channel(float x, float other, float2 angle, bool second) {
  const float part = __fmul_rn(other, angle.y);
  return __fmaf_rn(x, angle.x, second ? part : -part);
}

// Channel d of the 2 * pairs channels x of token t.
__device__ __forceinline__ float turned(const Turn& turn, const float* x, int64_t t, int d) {
  if (turn.table == nullptr) return x[d];
  const bool second = turn.neighbours ? d % 2 == 1 : d >= turn.pairs;
  const int other = turn.neighbours ? d ^ 1 : second ? d - turn.pairs : d + turn.pairs;
  const int pair = turn.neighbours ? d / 2 : second ? other : d;
  return turn_channel(x[d], x[other], reinterpret_cast<const float2*>(turn.table)[t * turn.pairs + pair], second);
}

// Channels d to d + 3, a multiple of 4, all in one half of the pairs, which are not neighbours; x and the table are
// aligned to 16 bytes.
__device__ __forceinline__ float4 turned_four(const Turn& turn, const float* x, int64_t t, int d) {
  const float4 own = *reinterpret_cast<const float4*>(x + d);
  if (turn.table == nullptr) return own;
  const bool second = d >= turn.pairs;
  const int other_at = second ? d - turn.pairs : d + turn.pairs, pair = second ? other_at : d;
  const float4 other = *reinterpret_cast<const float4*>(x + other_at);
  const float4* angles = reinterpret_cast<const float4*>(turn.table + (t * turn.pairs + pair) * 2);
  const float4 low = angles[0], high = angles[1];
  return make_float4(turn_channel(own.x, other.x, make_float2(low.x, low.y), second),
                     turn_channel(own.y, other.y, make_float2(low.z, low.w), second),
                     turn_channel(own.z, other.z, make_float2(high.x, high.y), second),
                     turn_channel(own.w, other.w, make_float2(high.z, high.w), second));
}

}  // namespace moesaic::cuda
