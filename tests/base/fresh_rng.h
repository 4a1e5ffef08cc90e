// fresh_rng(): new random inputs at each run of a test; the printed seed replays them.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <random>

#include "base/rng.h"

namespace moesaic {

inline Rng fresh_rng() {
  const char* text = std::getenv("MOESAIC_SEED");
  const uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device{}();
  std::printf("replay with MOESAIC_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return Rng(seed);
}

}  // namespace moesaic
