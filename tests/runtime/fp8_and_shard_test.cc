// FP8 weights with block scales, and how weights are divided over ranks: FC-004, FC-007, FC-008.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/fresh_rng.h"
#include "quant/fp4.h"
#include "quant/fp8.h"
#include "support/run_graph.h"
#include "weights/shard.h"

namespace moesaic {
namespace {

OwnedTensor bytes_tensor(DType dtype, Shape shape, const std::vector<uint8_t>& values) {
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  return {dtype, shape, {bytes, bytes + values.size()}};
}

// y = W x, for x given as the one row of an embedding.
std::vector<double> product(TensorMap tensors, const std::vector<float>& x, int64_t rows, Backend backend) {
  const auto K = static_cast<int64_t>(x.size());
  tensors["x.weight"] = f32_tensor({1, K}, x);
  return logits_of(
      std::move(tensors),
      [&](Builder& g) { g.output("logits", g.linear(g.last_token(g.embed("x", 1, K)), "w", rows)); }, backend);
}

TEST(Fp8, FC007_Mxfp8ScalesStoredAsBytesAreExponents) {
  for (Backend backend : {Backend::ref, Backend::cpu})
    for (DType dtype : {DType::u8, DType::e8m0}) {
      TensorMap tensors;
      tensors["w.weight"] = bytes_tensor(DType::e4m3, {1, 32}, std::vector<uint8_t>(32, 0x38));
      tensors["w.weight_scale"] = bytes_tensor(dtype, {1, 1}, {122});
      EXPECT_EQ(product(tensors, std::vector<float>(32, 1), 1, backend), std::vector<double>{1.0});
    }
}

TensorMap two_block_weight(Slice rows) {
  TensorMap tensors;
  const ScaleRows scales = scale_rows_of(rows, 128);
  const float grid[2] = {1, 4};
  tensors["w.weight"] =
      bytes_tensor(DType::e4m3, {rows.size(), 128}, std::vector<uint8_t>(static_cast<size_t>(rows.size() * 128), 0x38));
  tensors["w.weight_scale_inv"] =
      f32_tensor({scales.grid.size(), 1}, {grid + scales.grid.begin, grid + scales.grid.end});
  return tensors;
}

TEST(Fp8, FC008_RankSliceInsideAScaleBlock) {
  const std::vector<float> x(128, 1);
  for (Backend backend : {Backend::ref, Backend::cpu}) {
    const std::vector<double> whole = product(two_block_weight({0, 256}), x, 256, backend);
    std::vector<double> joined;
    for (Slice rows : shard(256, 4)) {
      EXPECT_EQ(rows.size(), 64);
      const std::vector<double> part = product(two_block_weight(rows), x, 64, backend);
      EXPECT_THAT(part, testing::Each(rows.begin < 128 ? 128.0 : 512.0));
      joined.insert(joined.end(), part.begin(), part.end());
    }
    EXPECT_EQ(joined, whole);
  }
  EXPECT_EQ(scale_rows_of({64, 192}, 128).offset, 64);
  EXPECT_EQ(scale_rows_of({64, 192}, 128).grid.size(), 2);
}

TEST(Fp8, BlocksAreCutByCeilingDivision) {
  Rng rng = fresh_rng();
  constexpr int64_t N = 200, K = 300;
  std::vector<uint8_t> codes(N * K);
  for (uint8_t& c : codes) c = static_cast<uint8_t>(rng.below(127) + (rng.below(2) << 7));
  std::vector<float> scales(2 * 3), x(K);
  for (float& s : scales) s = static_cast<float>(rng.uniform(0.25, 4));
  for (float& v : x) v = static_cast<float>(rng.normal());
  TensorMap tensors;
  tensors["w.weight"] = bytes_tensor(DType::e4m3, {N, K}, codes);
  tensors["w.weight_scale_inv"] = f32_tensor({2, 3}, scales);
  const std::vector<double> ref = product(tensors, x, N, Backend::ref), cpu = product(tensors, x, N, Backend::cpu);
  for (int64_t n = 0; n < N; ++n) {
    double want = 0, magnitude = 0;
    for (int64_t k = 0; k < K; ++k) {
      const double term = static_cast<double>(e4m3_to_float(codes[static_cast<size_t>(n * K + k)])) *
                          static_cast<double>(scales[static_cast<size_t>(n / 128 * 3 + k / 128)]) *
                          static_cast<double>(x[static_cast<size_t>(k)]);
      want += term;
      magnitude += std::abs(term);
    }
    EXPECT_NEAR(ref[static_cast<size_t>(n)], want, 1e-12 * magnitude);
    EXPECT_NEAR(cpu[static_cast<size_t>(n)], want,
                (K + 2) * 0x1p-24 * magnitude);  // K fused sums, one rounding a weight
  }
}

TEST(Fp8, WrongGridOrMissingScalesAreNamed) {
  TensorMap tensors = two_block_weight({0, 256});
  tensors["w.weight_scale_inv"] = f32_tensor({1, 1}, {1});
  const auto run = [&] { product(tensors, std::vector<float>(128, 1), 256, Backend::ref); };
  EXPECT_THAT(run, testing::ThrowsMessage<Error>(testing::HasSubstr("w.weight_scale_inv is F32 [1, 1]")));
  tensors.erase("w.weight_scale_inv");
  EXPECT_THAT(run, testing::ThrowsMessage<Error>(testing::HasSubstr("w.weight_scale_inv")));
}

// One MXFP4 expert [N, K] and its product with x, or with the slice of K that a rank owns.
double mxfp4_row(const std::vector<uint8_t>& codes, const std::vector<uint8_t>& scales, const std::vector<float>& x,
                 Slice k) {
  double sum = 0;
  for (int64_t i = k.begin; i < k.end; ++i) {
    const uint8_t byte = codes[static_cast<size_t>(i / 2)];
    const auto code = static_cast<uint8_t>(i % 2 == 0 ? byte & 15 : byte >> 4);
    sum += static_cast<double>(e2m1_to_float(code) * e8m0_to_float(scales[static_cast<size_t>(i / 32)])) *
           static_cast<double>(x[static_cast<size_t>(i)]);
  }
  return sum;
}

TEST(Shard, FC004_SplitsByWholeGroups) {
  const std::vector<Slice> two = shard(96, 2, kMxGroup);
  EXPECT_EQ(two[0].size(), 64);
  EXPECT_EQ(two[1].size(), 32);
  const std::vector<uint8_t> ones(48, 0x22), scales = {127, 128, 129};
  const std::vector<float> x(96, 1);
  EXPECT_EQ(mxfp4_row(ones, scales, x, two[0]) + mxfp4_row(ones, scales, x, two[1]), 224);

  const std::vector<Slice> four = shard(2880, 4, kMxGroup);
  EXPECT_THAT((std::vector<int64_t>{four[0].size(), four[1].size(), four[2].size(), four[3].size()}),
              testing::ElementsAre(23 * 32, 23 * 32, 22 * 32, 22 * 32));
  Rng rng = fresh_rng();
  std::vector<uint8_t> codes(1440), bytes(90);
  std::vector<float> y(2880);
  for (uint8_t& c : codes) c = static_cast<uint8_t>(rng.below(256));
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(120 + rng.below(15));
  for (float& v : y) v = static_cast<float>(rng.normal());
  double sum = 0;
  int64_t owned = 0;
  for (Slice s : four) sum += mxfp4_row(codes, bytes, y, s), owned += s.size();
  EXPECT_EQ(owned, 2880);
  EXPECT_NEAR(sum, mxfp4_row(codes, bytes, y, {0, 2880}), 1e-9);
}

TEST(Shard, EveryElementHasOneOwner) {
  for (int64_t extent : {0, 1, 31, 32, 33, 576, 2880})
    for (int ranks : {1, 2, 3, 7, 64})
      for (int64_t granule : {1, 32, 128}) {
        int64_t next = 0;
        for (Slice s : shard(extent, ranks, granule)) {
          EXPECT_EQ(s.begin, next);
          EXPECT_TRUE(s.begin % granule == 0 || s.size() == 0);
          next = s.end;
        }
        EXPECT_EQ(next, extent);
      }
}

}  // namespace
}  // namespace moesaic
