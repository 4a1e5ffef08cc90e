// Every MXFP4 code at every place of a word with every scale, as decode_word() of mxfp4.cuh expands it; and the order
// of activations that goes with it. On a GPU this checks the instructions, elsewhere their emulation.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/fresh_rng.h"
#include "kernels/cuda/mxfp4.cuh"
#include "quant/bf16.h"
#include "quant/fp4.h"
#include "support/mirror.h"

namespace moesaic::cuda {
namespace {

constexpr int kScales = 255, kPlaces = 8;

// Block: a scale. Thread: a word of `words`. out: [scale][word][place] as bf16.
__global__ void decode_kernel(const unsigned* words, uint16_t* out) {
  const unsigned scale = blockIdx.x, count = blockDim.x;
  unsigned t[4];
  decode_word(words[threadIdx.x], group_factor(scale), t);
  multiply_word(t, excess_factor(scale));
  uint16_t* to = out + (scale * count + threadIdx.x) * kPlaces;
  for (int i = 0; i < 4; ++i)
    to[i] = static_cast<uint16_t>(t[i] & 0xFFFF), to[i + 4] = static_cast<uint16_t>(t[i] >> 16);
}

TEST(Mxfp4, EveryCodeAndScale) {
  if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  Rng rng = fresh_rng();
  std::vector<unsigned> words;
  for (unsigned code = 0; code < 16; ++code)
    for (int place = 0; place < kPlaces; ++place) {
      const auto others = static_cast<unsigned>(rng.bits());
      words.push_back((others & ~(15u << (4 * place))) | code << (4 * place));
    }
  std::vector<uint16_t> got(kScales * words.size() * kPlaces, 0xFFFF);
  Mirror mirror(Backend::cuda);
  const unsigned* from = mirror.of(words.data(), static_cast<int64_t>(words.size()));
  auto* to = reinterpret_cast<uint16_t*>(mirror.of(std::as_writable_bytes(std::span(got)), true));
  launch(decode_kernel, kScales, static_cast<unsigned>(words.size()), 0, test_device(Backend::cuda).stream(), from, to);
  mirror.finish();
  for (int scale = 0; scale < kScales; ++scale) {
    for (size_t w = 0; w < words.size(); ++w) {
      for (size_t place = 0; place < kPlaces; ++place) {
        const float code = e2m1_to_float(static_cast<uint8_t>(words[w] >> (4 * place) & 15));
        const float value = bf16_to_float(got[(static_cast<size_t>(scale) * words.size() + w) * kPlaces + place]);
        const double want = std::ldexp(static_cast<double>(code), scale - 127 - 64);
        // Below 2^-126 half a step of 2^-133 may be lost.
        ASSERT_LE(std::abs(static_cast<double>(value) - want), std::abs(want) < 0x1p-126 ? 0x1p-134 : 0)
            << "scale " << scale << " word " << words[w] << " place " << place;
      }
    }
  }
}

__global__ void activations_kernel(const float* x, uint4* out) {
  *out = activation_word(x);
}

TEST(Mxfp4, ActivationsInTheOrderOfCodes) {
  if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  const std::vector<float> x{1, -2, 3, 1.0f + 0x1p-9f, 5, -6.5f, 0, 1.0f + 3 * 0x1p-8f};
  const float rounded[] = {1, -2, 3, 1, 5, -6.5f, 0, 1.0f + 2 * 0x1p-7f};
  std::vector<unsigned> got(4);
  Mirror mirror(Backend::cuda);
  const float* from = mirror.of(x.data(), static_cast<int64_t>(x.size()));
  auto* to = reinterpret_cast<uint4*>(mirror.of(std::as_writable_bytes(std::span(got)), true));
  launch(activations_kernel, 1, 1, 0, test_device(Backend::cuda).stream(), from, to);
  mirror.finish();
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(bf16_to_float(static_cast<uint16_t>(got[i] & 0xFFFF)), std::ldexp(rounded[i], 64)) << i;
    EXPECT_EQ(bf16_to_float(static_cast<uint16_t>(got[i] >> 16)), std::ldexp(rounded[i + 4], 64)) << i;
  }
}

}  // namespace
}  // namespace moesaic::cuda
