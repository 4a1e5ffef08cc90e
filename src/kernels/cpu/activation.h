// The activation of gpt-oss's experts, and e^x, as plain functions.
#pragma once

#include <cstdint>

#include "base/cpu.h"

namespace moesaic::cpu {

// out[i] = (up + 1) * gate / (1 + e^(-alpha * gate)) for i in [0, pairs), where gate = min(h[2i], limit) and
// up = clamp(h[2i + 1], -limit, limit); limit 0 means no clamp. e^x is accurate to 1.5 ulp. `out` may be `h`. The same
// bits at every level.
void clamped_swiglu_rows(const float* h, int64_t pairs, float limit, float alpha, float* out);
void clamped_swiglu_rows(Isa isa, const float* h, int64_t pairs, float limit, float alpha, float* out);

// e^x with the same bits as the vector loops.
float exp_one(float x);

}  // namespace moesaic::cpu
