// Rng: a counter-based generator (SplitMix64 over seed and counter). The n-th number depends on (seed, stream, n)
// alone, so results do not depend on threads or on neighbours in a batch.
#pragma once

#include <cmath>
#include <cstdint>

namespace moesaic {

// SplitMix64's finaliser (Steele, Lea, Flood 2014): a bijection that scrambles 64 bits.
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

class Rng {
 public:
  explicit Rng(uint64_t seed, uint64_t stream = 0) : key_(mix64(mix64(seed) ^ (stream * 0xD1342543DE82EF95u))) {}

  uint64_t bits() { return mix64(key_ ^ mix64(counter_++)); }
  // Uniform in [0, 1), 53 bits.
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  // Uniform in [0, n), n > 0.
  int64_t below(int64_t n) {
    return static_cast<int64_t>((static_cast<unsigned __int128>(bits()) * static_cast<uint64_t>(n)) >> 64);
  }
  // Standard normal (Box-Muller).
  double normal() { return std::sqrt(-2.0 * std::log(1.0 - uniform())) * std::cos(6.283185307179586 * uniform()); }

 private:
  uint64_t key_;
  uint64_t counter_ = 0;
};

}  // namespace moesaic
