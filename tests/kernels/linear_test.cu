// The products behind linear that the kernels' cases are too small to reach: wide tiles, ranges of K, many tiles a
// block; and that up to 64 rows of x do not change each other's bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/fresh_rng.h"
#include "kernels/cuda/linear.cuh"
#include "quant/bf16.h"
#include "support/mirror.h"

namespace moesaic::cuda {
namespace {

// Small integers, whose sums float32 holds: every order gives the same.
struct Problem {
  int T, N, K, groups;
  std::vector<float> x, bias;
  std::vector<uint16_t> w;

  Problem(Rng& rng, int T_, int N_, int K_, int groups_) : T(T_), N(N_), K(K_), groups(groups_) {
    const auto integer = [&] { return static_cast<float>(rng.below(9) - 4); };
    for (int i = 0; i < T * groups * K; ++i) x.push_back(integer());
    for (int i = 0; i < N; ++i) bias.push_back(integer());
    for (int i = 0; i < groups * N * K; ++i) w.push_back(float_to_bf16(integer()));
  }
  float want(int t, int g, int n) const {
    float sum = bias[static_cast<size_t>(n)];
    for (int k = 0; k < K; ++k)
      sum +=
          x[static_cast<size_t>((t * groups + g) * K + k)] * bf16_to_float(w[static_cast<size_t>((g * N + n) * K + k)]);
    return sum;
  }
};

template <typename Run>
std::vector<float> run(const Problem& p, int T, int64_t workspace_bytes, Run body) {
  Mirror mirror(Backend::cuda);
  std::vector<float> y(static_cast<size_t>(T * p.groups * p.N), -1);
  std::vector<std::byte> workspace(static_cast<size_t>(workspace_bytes) + 16, std::byte{0xFF});
  const size_t skip = (16 - reinterpret_cast<uintptr_t>(workspace.data()) % 16) % 16;
  LinearCall call{};
  call.T = T, call.N = p.N, call.K = p.K, call.groups = p.groups, call.stored = Stored::bf16;
  call.x = mirror.of(p.x.data(), std::ssize(p.x));
  call.w.codes = reinterpret_cast<const std::byte*>(mirror.of(p.w.data(), std::ssize(p.w)));
  call.w.K = p.K;
  call.bias = mirror.of(p.bias.data(), p.N);
  call.y = reinterpret_cast<float*>(mirror.of(std::as_writable_bytes(std::span(y)), true));
  body(call, mirror.of(std::span(workspace).subspan(skip), false), test_device(Backend::cuda).stream());
  mirror.finish();
  return y;
}

void expect_product(const Problem& p, const GemmTiling& tiling) {
  LinearCall shape{};
  shape.T = p.T, shape.N = p.N, shape.K = p.K, shape.groups = p.groups, shape.stored = Stored::bf16;
  const std::vector<float> y = run(p, p.T, gemm_workspace(p.T, shape, tiling),
                                   [&](auto& call, auto* space, auto& s) { gemm_bf16(call, tiling, space, s); });
  int wrong = 0;
  for (int t = 0; t < p.T; ++t)
    for (int g = 0; g < p.groups; ++g)
      for (int n = 0; n < p.N; ++n) wrong += y[static_cast<size_t>((t * p.groups + g) * p.N + n)] != p.want(t, g, n);
  EXPECT_EQ(wrong, 0) << "T=" << p.T << " N=" << p.N << " columns " << tiling.columns << " splits " << tiling.splits;
}

TEST(LinearCuda, TilesOfEveryWidth) {
  if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  Rng rng = fresh_rng();
  expect_product(Problem(rng, 130, 300, 96, 1), {256, 1});
  expect_product(Problem(rng, 130, 301, 544, 1), {256, 2});
  expect_product(Problem(rng, 70, 130, 576, 2), {128, 3});
}

TEST(LinearCuda, BlocksTakeSeveralTiles) {
  if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  Rng rng = fresh_rng();
  expect_product(Problem(rng, 66, 8, 160, 150), {128, 1});  // 150 tiles: more than blocks
}

// x and w become numbers whose sums depend on their order.
void randomise(Problem& p, Rng& rng) {
  for (float& v : p.x) v = static_cast<float>(rng.normal());
  for (uint16_t& v : p.w) v = float_to_bf16(static_cast<float>(rng.normal()));
}
void stream_rows(const LinearCall& call, std::byte* space, Stream& s) {
  linear_stream(call, space, s);
}
void gemv_rows(const LinearCall& call, std::byte*, Stream& s) {
  ASSERT_TRUE(gemv_serves(call));
  linear_gemv(call, s);
}

// The rows of fewer are the first rows of all, bit for bit.
template <typename Run>
void expect_same_rows(const Problem& p, std::initializer_list<int> fewer, Run body) {
  const auto rows = [&](int T) { return run(p, T, int64_t{T} * p.groups * p.K * 2, body); };
  const std::vector<float> all = rows(p.T);
  for (int T : fewer)
    EXPECT_TRUE(std::ranges::equal(rows(T), std::span(all).first(static_cast<size_t>(T * p.groups * p.N)))) << T;
}

template <typename Run>
void expect_exact(const Problem& p, Run body) {
  const std::vector<float> y = run(p, p.T, int64_t{p.T} * p.groups * p.K * 2, body);
  int wrong = 0;
  for (int t = 0; t < p.T; ++t)
    for (int g = 0; g < p.groups; ++g)
      for (int n = 0; n < p.N; ++n) wrong += y[static_cast<size_t>((t * p.groups + g) * p.N + n)] != p.want(t, g, n);
  EXPECT_EQ(wrong, 0) << "T=" << p.T << " N=" << p.N << " K=" << p.K << " groups=" << p.groups;
}

// N, K, groups: few rows of w, which blocks share out by rows of x; many, of which a warp takes twice 16, in parts of K
// and whole.
constexpr int kStreamShapes[][3] = {{70, 1184, 1}, {33, 96, 70}, {17, 32, 530}};

TEST(LinearCuda, StreamedRowsTakeEveryTerm) {
  if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  Rng rng = fresh_rng();
  for (auto [N, K, groups] : kStreamShapes)
    for (int T : {6, 14, 29, 61}) expect_exact(Problem(rng, T, N, K, groups), stream_rows);
}

TEST(LinearCuda, StreamedRowsDoNotDependOnNeighbours) {
  if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  Rng rng = fresh_rng();
  for (auto [N, K, groups] : kStreamShapes) {
    Problem p(rng, 64, N, K, groups);
    randomise(p, rng);
    expect_same_rows(p, {1, 9, 17}, stream_rows);
  }
}

// N, K, groups: parts of rows; more rows than warps at once; several passes along a row, shared or whole.
constexpr int kGemvShapes[][3] = {{70, 1184, 1}, {37, 96, 90}, {3, 13312, 1}, {1060, 3168, 1}, {2115, 1632, 1}};

TEST(LinearCuda, FewRowsTakeEveryTerm) {
  if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  Rng rng = fresh_rng();
  for (auto [N, K, groups] : kGemvShapes)
    for (int T : {1, 3}) expect_exact(Problem(rng, T, N, K, groups), gemv_rows);
}

TEST(LinearCuda, FewRowsDoNotDependOnNeighbours) {
  if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  Rng rng = fresh_rng();
  for (auto [N, K, groups] : kGemvShapes) {
    Problem p(rng, 4, N, K, groups);
    randomise(p, rng);
    expect_same_rows(p, {1, 2, 3}, gemv_rows);
  }
}

}  // namespace
}  // namespace moesaic::cuda
