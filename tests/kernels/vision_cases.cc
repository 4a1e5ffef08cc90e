// Cases of the ops of vision towers.
#include <algorithm>
#include <cmath>

#include "kernels/kernel_harness.h"

namespace moesaic {
namespace {

struct Grid {
  int64_t rows, columns;
};
constexpr Grid kGrids[] = {{2, 2}, {2, 8}, {6, 4}, {8, 8}, {10, 12}, {14, 2}};

TestBatch grid_batch(const Grid& grid) {
  TestBatch batch;
  batch.grid_rows = grid.rows, batch.grid_columns = grid.columns;
  return batch;
}

std::string label(const Grid& grid) {
  return fmt::format("{} x {}", grid.rows, grid.columns);
}

void add_patches(Rng& rng, std::vector<KernelCase>& out) {
  for (const Grid& grid : kGrids) {
    TestBatch batch = grid_batch(grid);
    for (int64_t i = 0; i < grid.rows * grid.columns * 48; ++i)
      batch.patches.push_back(static_cast<float>(rng.normal()));
    out.push_back(
        make_case(label(grid), Op::patches, {{Attr::count, 48}}, {}, {grid.rows * grid.columns, 0}, std::move(batch)));
  }
}

void add_grid_embed(Rng& rng, std::vector<KernelCase>& out) {
  for (const Grid& grid : kGrids)
    for (double cubic : {0.0, 1.0}) {
      out.push_back(make_case(label(grid), Op::grid_embed, {{Attr::cubic, cubic}}, {vector_operand(rng, {8, 7, 20})},
                              {grid.rows * grid.columns, 0}, grid_batch(grid)));
      // 16 products of numbers below 6 with weights whose sizes sum to less than 3; 18 roundings of partial sums.
      out.back().tolerance = {.absolute = 18 * 3 * 6 * kUnit};
    }
}

void add_grid_rope(std::vector<KernelCase>& out) {
  for (const Grid& grid : kGrids)
    for (double D : {4.0, 16.0, 72.0}) {
      out.push_back(make_case(label(grid), Op::grid_rope_table, {{Attr::theta, 10000}, {Attr::head_dim, D}}, {},
                              {grid.rows * grid.columns, 0}, grid_batch(grid)));
      out.back().tolerance = {.ulps = 0.5001};  // one rounding of a float64 result
    }
}

// Sum of weights times the sizes of the values.
Values attention_magnitude(const KernelCase& test, size_t step) {
  KernelStep absolute_values = test.steps[step];
  for (double& v : absolute_values.inputs[2].values) v = std::abs(v);
  return reference_of_step(test.desc, absolute_values);
}

double longest_head(const TestOperand& x, int64_t D) {
  double longest = 0;
  for (size_t begin = 0; begin < x.values.size(); begin += static_cast<size_t>(D)) {
    double square = 0;
    for (size_t d = 0; d < static_cast<size_t>(D); ++d) square += x.values[begin + d] * x.values[begin + d];
    longest = std::max(longest, std::sqrt(square));
  }
  return longest;
}

void add_full_attention(Rng& rng, std::vector<KernelCase>& out) {
  for (int64_t T : {0, 1, 4, 17, 32, 33, 64, 130, 300}) {
    for (auto [heads, D] : {std::pair<int64_t, int64_t>{2, 16}, {3, 72}, {1, 20}}) {
      const Bounds now{T, 0};
      const double scale = 1 / std::sqrt(static_cast<double>(D));
      std::vector<TestOperand> qkv;
      for (int i = 0; i < 3; ++i) qkv.push_back(normal_operand(rng, {Symbol::T, heads * D}, now));
      const double score = longest_head(qkv[0], D) * longest_head(qkv[1], D) * scale;
      out.push_back(make_case(
          fmt::format("T={} heads={} D={}", T, heads, D), Op::full_attention,
          {{Attr::heads, static_cast<double>(heads)}, {Attr::head_dim, static_cast<double>(D)}, {Attr::scale, scale}},
          std::move(qkv), now));
      // A score sums D products and is scaled: D + 2 roundings of at most `score`; it and the largest move a weight by
      // twice that. Then e^x, two sums over T, a division.
      const double relative = 2 * static_cast<double>(D + 2) * score + static_cast<double>(2 * T + 8);
      out.back().tolerance = {.per_magnitude = relative * kUnit};
      out.back().magnitude = attention_magnitude;
    }
  }
}

void add_gelu(Rng& rng, std::vector<KernelCase>& out) {
  for (int64_t tokens : kCaseTokens)
    for (double approximate : {0.0, 1.0}) {
      const Bounds now{tokens, 0};
      out.push_back(make_case(fmt::format("T={} approximate={}", tokens, approximate), Op::gelu,
                              {{Attr::approximate, approximate}},
                              {normal_operand(rng, {Symbol::T, 33}, now, tokens % 2 == 0 ? 1 : 8)}, now));
      // The exact form rounds once. The other has an exponent y with 5 roundings, which move y by 5 |y| units and the
      // result by |x| y e^y / (1 + e^y)^2 < |x| / 4 of those; then e^y, a sum and a division. gelu(|x|) is |x| / 2 or
      // more.
      out.back().tolerance = approximate != 0 ? Tolerance{.per_magnitude = 12 * kUnit, .absolute = 0x1p-130}
                                              : Tolerance{.ulps = 0.5001, .absolute = 0x1p-140};
    }
}

void add_merge(Rng& rng, std::vector<KernelCase>& out) {
  for (const Grid& grid : kGrids)
    for (int64_t side : {1, 2}) {
      const Bounds now{grid.rows * grid.columns, grid.rows * grid.columns / (side * side)};
      out.push_back(make_case(label(grid), Op::merge_patches, {{Attr::merge, static_cast<double>(side)}},
                              {normal_operand(rng, {Symbol::T, 24}, now)}, now, grid_batch(grid)));
    }
}

}  // namespace

std::vector<KernelCase> vision_cases(Op op, Rng& rng) {
  std::vector<KernelCase> out;
  if (op == Op::patches) add_patches(rng, out);
  if (op == Op::grid_embed) add_grid_embed(rng, out);
  if (op == Op::grid_rope_table) add_grid_rope(out);
  if (op == Op::full_attention) add_full_attention(rng, out);
  if (op == Op::gelu) add_gelu(rng, out);
  if (op == Op::merge_patches) add_merge(rng, out);
  return out;
}

}  // namespace moesaic
