// Rotary position embedding: the table of a step, and its use.
#include <algorithm>
#include <climits>
#include <vector>

#include "ir/rope.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/rows.cuh"

namespace moesaic::cuda {
namespace {

// ---- rope_table

constexpr int64_t kMostPairs = 128;

struct Frequencies {
  float of[kMostPairs];
};

// cos and sin of position * frequency, times factor: [T, half, 2]. The position is that of the first token of its
// window of `ratio`. The product is rounded to float32, the rest runs in float64: angles reach millions, and a step has
// few of them.
__global__ void rope_table_kernel(Frequencies frequencies, const int32_t* positions, int ratio, double factor,
                                  int64_t T, int half, float* table) {
  after_previous();
  const RowUnit at = row_unit();
  if (at.row >= T || at.unit >= half) return;
  const int position = positions[at.row] / ratio * ratio;
  const auto angle = static_cast<double>(__fmul_rn(static_cast<float>(position), frequencies.of[at.unit]));
  const float2 entry = make_float2(static_cast<float>(cos(angle) * factor), static_cast<float>(sin(angle) * factor));
  reinterpret_cast<float2*>(table)[at.row * half + at.unit] = entry;
}

const char* refuse_table(const OpDesc& desc, const DeviceInfo& device) {
  if (desc.attrs.integer(Attr::head_dim) > 2 * kMostPairs) return "at most 128 pairs";
  return refuse_types(desc, device);
}

void rope_table(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t half = desc.attrs.integer(Attr::head_dim) / 2;
  Frequencies frequencies{};
  rope_frequencies(RopeConfig::from(desc.attrs), std::span(frequencies.of, static_cast<size_t>(half)));
  const RowGrid g = row_grid(args.now.tokens, half);
  launch(rope_table_kernel, g.grid, g.block, 0, stream, frequencies, args.batch->positions,
         static_cast<int>(desc.attrs.integer(Attr::ratio, 1)), desc.attrs.number(Attr::attention_factor),
         args.now.tokens, static_cast<int>(half), args.output<float>(0));
}

// ---- rope

struct Rope {
  const float *x, *table;  // [rows, D] and [rows / heads, half, 2]
  int64_t rows;
  int heads, D, half, begin;
  float sign;  // -1 turns back
  float* y;
};

// Independent steps of one shape of rows: blocks from first_block[i] on take step i; unused ones begin at INT_MAX.
struct Ropes {
  Rope steps[kMostTogether];
  int first_block[kMostTogether];
};

// Pairs begin at element `begin`: pair i is (i, i + half), or (2i, 2i + 1) where interleaved. A thread turns kWide
// pairs, or copies kWide of the other elements.
template <int kWide, bool kInterleaved>
__global__ void rope_kernel(Ropes ropes) {
  after_previous();
  Rope a = ropes.steps[0];
  int first_block = 0;
#pragma unroll
  for (size_t step = 1; step < kMostTogether; ++step)
    if (static_cast<int>(blockIdx.x) >= ropes.first_block[step])
      a = ropes.steps[step], first_block = ropes.first_block[step];
  RowUnit at = row_unit();
  at.row -= static_cast<int64_t>(first_block) * blockDim.y;
  const int i = at.unit * kWide;
  if (at.row >= a.rows || i >= a.D - a.half) return;
  const float* x = a.x + at.row * a.D;
  float* y = a.y + at.row * a.D;
  if (i >= a.half) {
    const int rest = i - a.half, from = rest < a.begin ? rest : rest + 2 * a.half;
    return store_floats<kWide>(y + from, load_floats<kWide>(x + from));
  }
  const int64_t token = static_cast<unsigned>(at.row) / static_cast<unsigned>(a.heads);
  const float* table = a.table + (token * a.half + i) * 2;
  const int first = a.begin + (kInterleaved ? 2 * i : i), second = first + (kInterleaved ? kWide : a.half);
  const Floats<kWide> one = load_floats<kWide>(x + first), two = load_floats<kWide>(x + second);
  float v[2 * kWide], turn[2 * kWide];  // both halves, in the order of memory
  for (int j = 0; j < kWide; ++j) v[j] = one.v[j], v[kWide + j] = two.v[j];
  const Floats<kWide> low = load_floats<kWide>(table), high = load_floats<kWide>(table + kWide);
  for (int j = 0; j < kWide; ++j) turn[j] = low.v[j], turn[kWide + j] = high.v[j];
  for (int j = 0; j < kWide; ++j) {
    float &p = v[kInterleaved ? 2 * j : j], &q = v[kInterleaved ? 2 * j + 1 : kWide + j];
    const float cosine = turn[2 * j], sine = a.sign * turn[2 * j + 1], before = p;
    p = p * cosine - q * sine;
    q = q * cosine + before * sine;
  }
  Floats<kWide> left, right;
  for (int j = 0; j < kWide; ++j) left.v[j] = v[j], right.v[j] = v[kWide + j];
  store_floats<kWide>(y + first, left);
  store_floats<kWide>(y + second, right);
}

Rope rope_of(const OpDesc& desc, const Args& args) {
  const int64_t heads = desc.attrs.integer(Attr::heads);
  return {.x = args.input<float>(0),
          .table = args.input<float>(1),
          .rows = args.now.tokens * heads,
          .heads = static_cast<int>(heads),
          .D = static_cast<int>(desc.attrs.integer(Attr::head_dim)),
          .half = static_cast<int>(desc.in(1).type.dim(1).factor),
          .begin = static_cast<int>(desc.attrs.integer(Attr::begin, 0)),
          .sign = desc.attrs.integer(Attr::inverse, 0) != 0 ? -1.0f : 1.0f,
          .y = args.output<float>(0)};
}
bool interleaved(const OpDesc& desc) {
  return desc.attrs.integer(Attr::interleaved, 0) != 0;
}
bool rope_in_fours(const Rope& r) {
  return in_fours(r.D, r.x, r.table, r.y) && r.half % 4 == 0 && r.begin % 4 == 0;
}

// At most kMostTogether steps of the same D, half, begin and width of access.
void launch_ropes(std::span<const Rope> steps, bool interleaved, Stream& stream) {
  const bool fours = rope_in_fours(steps[0]);
  int64_t rows = 0, blocks = 0;
  for (const Rope& step : steps) rows += step.rows;
  RowGrid g = row_grid(rows, fours ? (steps[0].D - steps[0].half) / 4 : steps[0].D - steps[0].half);
  Ropes ropes{};
  std::ranges::fill(ropes.first_block, INT_MAX);
  for (size_t i = 0; i < steps.size(); ++i) {
    ropes.steps[i] = steps[i];
    ropes.first_block[i] = static_cast<int>(blocks);
    blocks += ceil_div(steps[i].rows, int64_t{g.block.y});
  }
  g.grid.x = static_cast<unsigned>(blocks);
  auto* kernel = interleaved ? rope_kernel<1, true> : rope_kernel<1, false>;
  if (fours) kernel = interleaved ? rope_kernel<4, true> : rope_kernel<4, false>;
  launch(kernel, g.grid, g.block, 0, stream, ropes);
}

void rope(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const Rope step = rope_of(desc, args);
  launch_ropes(std::span(&step, 1), interleaved(desc), stream);
}

void rope_together(std::span<const OpDesc* const> descs, std::span<const Args> args, std::byte* workspace,
                   Stream& stream) {
  std::vector<Rope> steps;
  bool alike = descs.size() <= kMostTogether;
  for (size_t i = 0; i < descs.size(); ++i) {
    const Rope &step = steps.emplace_back(rope_of(*descs[i], args[i])), &first = steps[0];
    alike = alike && step.D == first.D && step.half == first.half && step.begin == first.begin &&
            rope_in_fours(step) == rope_in_fours(first) && interleaved(*descs[i]) == interleaved(*descs[0]);
  }
  if (alike && !steps.empty()) return launch_ropes(steps, interleaved(*descs[0]), stream);
  for (size_t i = 0; i < descs.size(); ++i) rope(*descs[i], args[i], workspace, stream);
}

}  // namespace

const Kernel kRopeTable{.name = "rope_table.cuda",
                        .op = Op::rope_table,
                        .backend = Backend::cuda,
                        .refuse = refuse_table,
                        .launch = rope_table};
const Kernel kRope{.name = "rope.cuda",
                   .op = Op::rope,
                   .backend = Backend::cuda,
                   .refuse = refuse_types,
                   .launch = rope,
                   .launch_together = rope_together};

}  // namespace moesaic::cuda
