#include <limits>

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/mla.h"

namespace moesaic::cpu {

#define LANES_BODY "kernels/cpu/mla_lanes.inc"
#include "kernels/cpu/for_each_isa.inc"

void attend_latents(Isa isa, const LatentBlock& block, const SoftmaxState& state, float* scores) {
  constexpr decltype(&scalar::attend_latents) kAttend[] = {scalar::attend_latents, avx2::attend_latents,
                                                           avx512::attend_latents};
  kAttend[static_cast<int>(isa)](block, state, scores);
}

}  // namespace moesaic::cpu
