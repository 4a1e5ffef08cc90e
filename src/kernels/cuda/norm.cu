// Norms over rows: short rows (heads) take a warp each, long ones a block. Sums run in a fixed order, so that a row's
// result does not depend on the others.
#include "kernels/cuda/activations.cuh"
#include "kernels/cuda/combine.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/quantize.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpRows = 4;         // rows of a block whose warps have one each
constexpr int64_t kShortRow = 1024;  // the longest that a warp takes

// The row of this thread, one of `threads` on it: a warp where that is 32, else the block.
template <int kOnRow>
__device__ __forceinline__ int64_t own_row() {
  if constexpr (kOnRow == kWarp) return static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  else return blockIdx.x;
}
template <int kOnRow>
__device__ __forceinline__ float row_sum(float x, float* scratch) {
  if constexpr (kOnRow == kWarp) return warp_sum(x);
  else return block_sum(x, scratch);
}

// Launches kernel<32> for short rows and kernel<256> for long ones.
struct RowShape {
  dim3 grid, block;
};
RowShape row_shape(int64_t rows, int64_t D) {
  if (D > kShortRow) return {static_cast<unsigned>(rows), kThreads};
  return {static_cast<unsigned>(ceil_div(rows, int64_t{kWarpRows})), {kWarp, kWarpRows}};
}

// ---- rms_norm, add_rms_norm, gated_rms_norm

struct RmsNorm {
  const float *x, *addend = nullptr;               // [rows, D]; the norm is that of x + addend
  const float *weight = nullptr, *gate = nullptr;  // [D] and [rows, D]; null: 1
  float eps;
  int64_t rows;
  int D;
  float *sum = nullptr, *y;    // x + addend goes to `sum`
  std::byte* codes = nullptr;  // [rows, quantized_width(D)]: y in FP8 too, for rows in fours; null: not wanted
  Combine combine = {};        // where its y is not null, what comes of it is the addend
};

// y[row] = weight * v / sqrt(mean(v^2) + eps) * sigmoid(gate[row]) with v = x[row] + addend[row]. kOnRow threads a row,
// which keep kKept units of kWide elements each in registers: D <= kOnRow * kWide * kKept.
template <int kOnRow, int kWide, int kKept, bool kCombine = false>
__global__ void rms_norm_kernel(RmsNorm a) {
  after_previous();
  __shared__ float scratch[kWarp];
  const int64_t row = own_row<kOnRow>(), at = row * a.D;
  if (row >= a.rows) return;
  const int first = static_cast<int>(threadIdx.x) * kWide;
  Floats<kWide> kept[kKept];
#pragma unroll
  for (int u = 0; u < kKept; ++u) {
    const int i = first + u * kOnRow * kWide;
    if (i < a.D) kept[u] = load_floats<kWide>(a.x + at + i);
    else kept[u] = {};
  }
  if (kCombine || a.addend != nullptr) {
    Floats<kWide> more[kKept];  // all on their way before anything is stored
#pragma unroll
    for (int u = 0; u < kKept; ++u) {
      const int i = first + u * kOnRow * kWide;
      if (i >= a.D) continue;
      if constexpr (kCombine) more[u] = combined<kWide>(a.combine, row, a.D, i);
      else more[u] = load_floats<kWide>(a.addend + at + i);
    }
#pragma unroll
    for (int u = 0; u < kKept; ++u) {
      const int i = first + u * kOnRow * kWide;
      if (i >= a.D) continue;
      if constexpr (kCombine) store_floats<kWide>(a.combine.out + at + i, more[u]);
      for (int j = 0; j < kWide; ++j) kept[u].v[j] += more[u].v[j];
      store_floats<kWide>(a.sum + at + i, kept[u]);
    }
  }
  float squares = 0;
#pragma unroll
  for (int u = 0; u < kKept; ++u)
    for (int j = 0; j < kWide; ++j) squares += kept[u].v[j] * kept[u].v[j];
  squares = row_sum<kOnRow>(squares, scratch);
  const float scale = 1.0f / sqrtf(squares / static_cast<float>(a.D) + a.eps);
#pragma unroll
  for (int u = 0; u < kKept; ++u) {
    const int i = first + u * kOnRow * kWide;
    if (i >= a.D) continue;
    for (int j = 0; j < kWide; ++j) kept[u].v[j] *= scale;
    if (a.weight != nullptr) {
      const Floats<kWide> weight = load_floats<kWide>(a.weight + i);
      for (int j = 0; j < kWide; ++j) kept[u].v[j] *= weight.v[j];
    }
    if (a.gate != nullptr) {
      const Floats<kWide> gate = load_floats<kWide>(a.gate + at + i);
      for (int j = 0; j < kWide; ++j) kept[u].v[j] *= sigmoid(gate.v[j]);
    }
    store_floats<kWide>(a.y + at + i, kept[u]);
  }
  if constexpr (kWide == 4) {
    if (a.codes == nullptr) return;
    std::byte* codes = a.codes + row * quantized_width(a.D);
#pragma unroll
    for (int u = 0; u < kKept; ++u) {
      const int i = first + u * kOnRow * kWide, group = i / 128 * 128;  // of this warp
      if (group < a.D) quantize_group(kept[u], i, a.D, codes);
    }
  }
}

// The same for rows of any length, which are read twice.
__global__ void long_rms_norm_kernel(RmsNorm a) {
  after_previous();
  __shared__ float scratch[kWarp];
  const int64_t at = static_cast<int64_t>(blockIdx.x) * a.D;
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < a.D; i += kThreads) {
    float v = a.x[at + i];
    if (a.addend != nullptr) a.sum[at + i] = v += a.addend[at + i];
    squares += v * v;
  }
  squares = block_sum(squares, scratch);
  const float scale = 1.0f / sqrtf(squares / static_cast<float>(a.D) + a.eps);
  const float* from = a.addend != nullptr ? a.sum : a.x;
  for (int i = static_cast<int>(threadIdx.x); i < a.D; i += kThreads) {
    const float gate = a.gate != nullptr ? sigmoid(a.gate[at + i]) : 1.0f;
    a.y[at + i] = from[at + i] * scale * (a.weight != nullptr ? a.weight[i] : 1.0f) * gate;
  }
}

void launch_rms_norm(const RmsNorm& a, Stream& stream) {
  const bool fours = in_fours(a.D, a.x, a.addend, a.weight, a.gate, a.sum, a.y);
  const RowShape shape = row_shape(a.rows, a.D);
  auto* kernel = long_rms_norm_kernel;
  if (a.D <= kShortRow) kernel = fours ? rms_norm_kernel<kWarp, 4, 8> : rms_norm_kernel<kWarp, 1, 32>;
  else if (fours && a.D <= kThreads * 4 * 4) kernel = rms_norm_kernel<kThreads, 4, 4>;
  else if (fours && a.D <= kThreads * 4 * 8) kernel = rms_norm_kernel<kThreads, 4, 8>;
  launch(kernel, shape.grid, shape.block, 0, stream, a);
}

// The norm of input 0, `heads` to a row of the output's type.
RmsNorm norm_of(const OpDesc& desc, const Args& args, int64_t heads) {
  return {.x = args.input<float>(0),
          .eps = desc.attrs.real(Attr::eps),
          .rows = rows_of(desc.out(0), args.now) * heads,
          .D = static_cast<int>(width_of(desc.out(0)) / heads),
          .y = args.output<float>(0)};
}

void rms_norm(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  RmsNorm norm = norm_of(desc, args, desc.attrs.integer(Attr::heads, 1));
  if (desc.inputs.size() > 1) norm.weight = args.input<float>(1);
  launch_rms_norm(norm, stream);
}

RmsNorm add_norm_of(const OpDesc& desc, const Args& args) {
  RmsNorm norm = norm_of(desc, args, 1);
  norm.addend = args.input<float>(1);
  norm.weight = args.input<float>(2);
  norm.sum = args.output<float>(0);
  norm.y = args.output<float>(1);
  return norm;
}

void add_rms_norm(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  launch_rms_norm(add_norm_of(desc, args), stream);
}

// With the quantize behind it.
void add_rms_norm_then_quantize(std::span<const OpDesc* const> descs, std::span<const Args> args, std::byte* workspace,
                                Stream& stream) {
  RmsNorm norm = add_norm_of(*descs[0], args[0]);
  const bool fours = in_fours(norm.D, norm.x, norm.addend, norm.weight, norm.sum, norm.y);
  if (fours && norm.D <= kThreads * 4 * 8 && args[1].input<float>(0) == norm.y) {
    norm.codes = args[1].out[0];
    return launch_rms_norm(norm, stream);
  }
  add_rms_norm(*descs[0], args[0], workspace, stream);
  kQuantize.launch(*descs[1], args[1], workspace, stream);
}

void gated_rms_norm(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  RmsNorm norm = norm_of(desc, args, desc.attrs.integer(Attr::heads));
  norm.weight = args.input<float>(1);
  norm.gate = args.input<float>(2);
  launch_rms_norm(norm, stream);
}

// ---- layer_norm

template <int kOnRow>
__device__ __forceinline__ double row_sum(double x, double* scratch) {
  const auto lanes = [](double v) {
    for (int d = kWarp / 2; d > 0; d /= 2) v += __shfl_xor_sync(kAllLanes, v, d);
    return v;
  };
  x = lanes(x);
  if constexpr (kOnRow == kWarp) return x;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  x = lanes(lane < kOnRow / kWarp ? scratch[lane] : 0.0);
  __syncthreads();
  return x;
}

// y[row] = (x - mean) / sqrt(variance + eps) * weight + bias, in float64: an indexer's choice hangs on these keys, and
// they are few. x [rows, H].
template <int kOnRow>
__global__ void layer_norm_kernel(const float* x, const float* weight, const float* bias, double eps, int64_t rows,
                                  int H, float* y) {
  after_previous();
  __shared__ double scratch[kWarp];
  const int64_t row = own_row<kOnRow>();
  if (row >= rows) return;
  x += row * H, y += row * H;
  const int first = static_cast<int>(threadIdx.x);
  double sum = 0, squares = 0;
  for (int i = first; i < H; i += kOnRow) sum += static_cast<double>(x[i]);
  const double mean = row_sum<kOnRow>(sum, scratch) / H;
  for (int i = first; i < H; i += kOnRow) {
    const double v = static_cast<double>(x[i]) - mean;
    squares += v * v;
  }
  const double scale = 1 / sqrt(row_sum<kOnRow>(squares, scratch) / H + eps);
  for (int i = first; i < H; i += kOnRow)
    y[i] = static_cast<float>((static_cast<double>(x[i]) - mean) * scale * static_cast<double>(weight[i]) +
                              static_cast<double>(bias[i]));
}

void layer_norm(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t H = width_of(desc.out(0)), rows = rows_of(desc.out(0), args.now);
  const RowShape shape = row_shape(rows, H);
  launch(H > kShortRow ? layer_norm_kernel<kThreads> : layer_norm_kernel<kWarp>, shape.grid, shape.block, 0, stream,
         args.input<float>(0), args.input<float>(1), args.input<float>(2), desc.attrs.number(Attr::eps), rows,
         static_cast<int>(H), args.output<float>(0));
}

// ---- join_hidden

// Threads of a block that has one row of `width`.
unsigned threads_for(int64_t width) {
  unsigned threads = kWarp;
  while (threads < kThreads && threads * 8 < width) threads *= 2;
  return threads;
}

// y[t] = x[t], then hidden[hidden_rows[t]] / its root mean square * weight. x [T, H], hidden [., D]; a block a token.
__global__ void join_hidden_kernel(const float* x, const float* hidden, const int32_t* hidden_rows, const float* weight,
                                   float eps, int H, int D, float* y) {
  after_previous();
  __shared__ float scratch[kWarp];
  const int64_t t = blockIdx.x;
  x += t * H, y += t * (H + D);
  hidden += static_cast<int64_t>(hidden_rows[t]) * D;
  const int first = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  float squares = 0;
  for (int i = first; i < D; i += threads) squares += hidden[i] * hidden[i];
  for (int i = first; i < H; i += threads) y[i] = x[i];
  squares = block_sum(squares, scratch);
  const float scale = 1.0f / sqrtf(squares / static_cast<float>(D) + eps);
  for (int i = first; i < D; i += threads) y[H + i] = hidden[i] * scale * weight[i];
}

void join_hidden(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t H = width_of(desc.in(0)), D = width_of(desc.out(0)) - H;
  launch(join_hidden_kernel, static_cast<unsigned>(args.now.tokens), threads_for(D), 0, stream, args.input<float>(0),
         reinterpret_cast<const float*>(args.batch->hidden), args.batch->hidden_rows, args.input<float>(1),
         desc.attrs.real(Attr::eps), static_cast<int>(H), static_cast<int>(D), args.output<float>(0));
}

// ---- attn_res

constexpr int kMostRows = 14;  // blocks and prefix: the op has 16 inputs at most

struct ResidualRows {
  const float* row[kMostRows];  // [T, H] each: the blocks, then the prefix
  int count;
};

// scores[t, j] = row j of token t . (norm * proj) / its root mean square. A block a (token, row).
template <int kWide>
__global__ void residual_score_kernel(ResidualRows rows, const float* norm, const float* proj, float eps, int H,
                                      float* scores) {
  after_previous();
  __shared__ float scratch[kWarp];
  const int64_t t = blockIdx.x;
  const int j = static_cast<int>(blockIdx.y), step = static_cast<int>(blockDim.x) * kWide;
  const float* row = rows.row[0];
#pragma unroll
  for (int i = 1; i < kMostRows; ++i)  // a parameter that is indexed by a variable would be copied to local memory
    if (i == j) row = rows.row[i];
  row += t * H;
  float squares = 0, score = 0;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) * kWide; i < H; i += step) {
    const Floats<kWide> x = load_floats<kWide>(row + i), n = load_floats<kWide>(norm + i),
                        p = load_floats<kWide>(proj + i);
    for (int u = 0; u < kWide; ++u) {
      squares += x.v[u] * x.v[u];
      score += x.v[u] * (n.v[u] * p.v[u]);
    }
  }
  squares = block_sum(squares, scratch);
  score = block_sum(score, scratch);
  if (threadIdx.x == 0) scores[t * rows.count + j] = score / sqrtf(squares / static_cast<float>(H) + eps);
}

// y[t] = sum over j of softmax(scores[t])[j] * row j of token t. A thread has kWide elements of a token.
template <int kWide>
__global__ void residual_mix_kernel(ResidualRows rows, const float* scores, int64_t T, int H, float* y) {
  after_previous();
  const RowUnit at = row_unit();
  const int h = at.unit * kWide;
  if (at.row >= T || h >= H) return;
  scores += at.row * rows.count;
  float top = scores[0], total = 0;
  for (int j = 1; j < rows.count; ++j) top = fmaxf(top, scores[j]);
  for (int j = 0; j < rows.count; ++j) total += expf(scores[j] - top);
  Floats<kWide> mix{};
  constexpr int kBatch = kMostRows / 2;  // loads in flight
#pragma unroll
  for (int first = 0; first < kMostRows; first += kBatch) {
    Floats<kWide> x[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j)
      if (first + j < rows.count) x[j] = load_floats<kWide>(rows.row[first + j] + at.row * H + h);
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (first + j >= rows.count) continue;
      const float share = expf(scores[first + j] - top) / total;
      for (int i = 0; i < kWide; ++i) mix.v[i] += share * x[j].v[i];
    }
  }
  store_floats<kWide>(y + at.row * H + h, mix);
}

int64_t attn_res_workspace(const OpDesc& desc, const DeviceInfo&) {
  return desc.bounds.tokens * (static_cast<int64_t>(desc.inputs.size()) - 2) * 4;
}

void attn_res(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  const int64_t H = width_of(desc.in(0)), T = args.now.tokens;
  const int blocks = static_cast<int>(desc.inputs.size()) - 3;
  ResidualRows rows{.row = {}, .count = blocks + 1};
  float *scores = reinterpret_cast<float*>(workspace), *y = args.output<float>(0);
  const float *norm = args.input<float>(1), *proj = args.input<float>(2);
  bool fours = in_fours(H, y, norm, proj);
  for (int j = 0; j <= blocks; ++j) {
    rows.row[j] = args.input<float>(j < blocks ? j + 3 : 0);
    fours = fours && in_fours(H, rows.row[j]);
  }
  launch(fours ? residual_score_kernel<4> : residual_score_kernel<1>,
         {static_cast<unsigned>(T), static_cast<unsigned>(blocks + 1)}, threads_for(H), 0, stream, rows, norm, proj,
         desc.attrs.real(Attr::eps), static_cast<int>(H), scores);
  const RowGrid g = row_grid(T, fours ? H / 4 : H);
  launch(fours ? residual_mix_kernel<4> : residual_mix_kernel<1>, g.grid, g.block, 0, stream, rows, scores, T,
         static_cast<int>(H), y);
}

constexpr Kernel plain(const char* name, Op op, decltype(Kernel::launch) launch) {
  return {.name = name, .op = op, .backend = Backend::cuda, .refuse = refuse_types, .launch = launch};
}

}  // namespace

bool combine_and_norm(const Combine& c, const OpDesc& norm, const Args& args, Stream& stream) {
  RmsNorm a = norm_of(norm, args, 1);
  a.x = args.input<float>(args.input<float>(0) == c.out ? 1 : 0);
  a.weight = args.input<float>(2);
  a.sum = args.output<float>(0);
  a.y = args.output<float>(1);
  a.combine = c;
  const bool fours = in_fours(a.D, a.x, a.weight, a.sum, a.y, c.y, c.out);
  if (!fours || a.D <= kShortRow || a.D > kThreads * 4 * 8) return false;
  auto* kernel =
      a.D <= kThreads * 4 * 4 ? rms_norm_kernel<kThreads, 4, 4, true> : rms_norm_kernel<kThreads, 4, 8, true>;
  launch(kernel, static_cast<unsigned>(a.rows), kThreads, 0, stream, a);
  return true;
}

const Kernel kRmsNorm = plain("rms_norm.cuda", Op::rms_norm, rms_norm);
const Kernel kAddRmsNorm{.name = "add_rms_norm.cuda",
                         .op = Op::add_rms_norm,
                         .backend = Backend::cuda,
                         .refuse = refuse_types,
                         .launch = add_rms_norm,
                         .launch_together = add_rms_norm_then_quantize,
                         .then = Op::quantize};
const Kernel kLayerNorm = plain("layer_norm.cuda", Op::layer_norm, layer_norm);
const Kernel kGatedRmsNorm = plain("gated_rms_norm.cuda", Op::gated_rms_norm, gated_rms_norm);
const Kernel kJoinHidden = plain("join_hidden.cuda", Op::join_hidden, join_hidden);
const Kernel kAttnRes{.name = "attn_res.cuda",
                      .op = Op::attn_res,
                      .backend = Backend::cuda,
                      .refuse = refuse_types,
                      .workspace_bytes = attn_res_workspace,
                      .launch = attn_res};

}  // namespace moesaic::cuda
