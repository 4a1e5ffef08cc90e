// Hyper-connections (see the op table): n residual streams of H channels side by side in each row, a few sums over
// streams per token, and Sinkhorn-Knopp on an n x n matrix.
#include "kernels/cuda/activations.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kMostStreams = 8;
constexpr int64_t kMostThreads = 512;       // of a row, where it is summed up
constexpr int64_t kKeptBytes = 200 * 1024;  // rows up to this size stay in shared memory between their two passes

const char* refuse(const OpDesc& desc, const DeviceInfo& device) {
  if (desc.attrs.integer(Attr::streams) > kMostStreams) return "more than 8 streams";
  return refuse_types(desc, device);
}

// ---- hc_expand

// y[t, j * H ..] = x[t] for every stream j. x: [rows, H]; a thread for each unit of a row.
template <int kWide>
__global__ void expand_kernel(const float* x, int64_t rows, int n, int H, float* y) {
  after_previous();
  const RowUnit at = row_unit();
  const int i = at.unit * kWide;
  if (at.row >= rows || i >= H) return;
  const auto value = load_floats<kWide>(x + at.row * H + i);
  for (int j = 0; j < n; ++j) store_floats<kWide>(y + (at.row * n + j) * H + i, value);
}

void hc_expand(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t n = desc.attrs.integer(Attr::streams), H = width_of(desc.in(0)), rows = rows_of(desc.in(0), args.now);
  const float* x = args.input<float>(0);
  float* y = args.output<float>(0);
  const bool fours = in_fours(H, x, y);
  const RowGrid g = row_grid(rows, fours ? H / 4 : H);
  launch(fours ? expand_kernel<4> : expand_kernel<1>, g.grid, g.block, 0, stream, x, rows, static_cast<int>(n),
         static_cast<int>(H), y);
}

// ---- hc_pre, hc_head

// Sinkhorn-Knopp by one thread, the matrix in registers: rows become a softmax, then columns and rows are normalised in
// turn; columns come last. Elements outside n x n stay zero.
template <int kStreams>
__device__ __forceinline__ void balance(float (&c)[kStreams][kStreams], int n, float eps, int iterations) {
#pragma unroll
  for (int a = 0; a < kStreams; ++a) {
    float top = c[a][0], total = 0;
#pragma unroll
    for (int b = 1; b < kStreams; ++b)
      if (b < n) top = fmaxf(top, c[a][b]);
#pragma unroll
    for (int b = 0; b < kStreams; ++b) total += c[a][b] = a < n && b < n ? expf(c[a][b] - top) : 0.0f;
#pragma unroll
    for (int b = 0; b < kStreams; ++b) c[a][b] = a < n && b < n ? c[a][b] / total + eps : 0.0f;
  }
#pragma unroll 1
  for (int i = 0; i < 2 * iterations - 1; ++i) {  // columns where i is even
#pragma unroll
    for (int a = 0; a < kStreams; ++a) {  // transposing in every round makes one loop body serve both
      float total = 0;
#pragma unroll
      for (int b = 0; b < kStreams; ++b) total += c[b][a];
      const float factor = a < n ? 1.0f / (total + eps) : 0.0f;
#pragma unroll
      for (int b = 0; b < kStreams; ++b) c[b][a] *= factor;
    }
#pragma unroll
    for (int a = 0; a < kStreams; ++a)
#pragma unroll
      for (int b = 0; b < a; ++b) {
        const float held = c[a][b];
        c[a][b] = c[b][a], c[b][a] = held;
      }
  }
}

struct Collapse {
  const float *x, *mix, *base, *scale;  // [rows, n * H], [rows, width], [width], [3]; hc_head: width n, [1]
  float eps, hc_eps;
  int n, H, iterations;
  bool kept;               // the row fits into shared memory
  float *y, *post, *comb;  // [rows, H], [rows, n], [rows, n * n]
};

// What a site reads of its token, y = sum over j of pre[j] * stream j, and, but for the head, how it will write: post
// and comb. One block a row: the sum of squares, the weights, then the sum over streams.
template <int kStreams, int kWide, bool kHead>
__global__ __launch_bounds__(kMostThreads) void collapse_kernel(Collapse c) {
  after_previous();
  __shared__ float scratch[kWarp], pre[kMostStreams];
  const int tid = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x), n = c.n;
  const int64_t t = blockIdx.x;
  const float* row = c.x + t * n * c.H;
  float* kept = dynamic_shared<float>();
  float squares = 0;
#pragma unroll 4
  for (int i = tid * kWide; i < n * c.H; i += threads * kWide) {
    const auto v = load_floats<kWide>(row + i);
#pragma unroll
    for (int k = 0; k < kWide; ++k) squares = fmaf(v.v[k], v.v[k], squares);
    if (c.kept) store_floats<kWide>(kept + i, v);
  }
  squares = block_sum(squares, scratch);
  const float rms = 1.0f / sqrtf(squares / static_cast<float>(n * c.H) + c.eps);
  const float* mix = c.mix + t * (kHead ? n : n * (n + 2));
  if (tid < n) pre[tid] = sigmoid(mix[tid] * rms * c.scale[0] + c.base[tid]) + c.hc_eps;
  if (!kHead && tid < n) c.post[t * n + tid] = 2.0f * sigmoid(mix[n + tid] * rms * c.scale[1] + c.base[n + tid]);
  __syncthreads();
  if (!kHead && tid == threads - 1) {  // the other warps go on
    float comb[kStreams][kStreams];
#pragma unroll
    for (int a = 0; a < kStreams; ++a)
#pragma unroll
      for (int b = 0; b < kStreams; ++b) {
        const int i = 2 * n + a * n + b;
        comb[a][b] = a < n && b < n ? mix[i] * rms * c.scale[2] + c.base[i] : 0.0f;
      }
    balance(comb, n, c.hc_eps, c.iterations);
#pragma unroll
    for (int a = 0; a < kStreams; ++a)
#pragma unroll
      for (int b = 0; b < kStreams; ++b)
        if (a < n && b < n) c.comb[t * n * n + b * n + a] = comb[a][b];  // transposed an odd number of times
  }
  const float* from = c.kept ? kept : row;
  for (int i = tid * kWide; i < c.H; i += threads * kWide) {
    Floats<kWide> sum{};
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      if (j >= n) break;
      const auto v = load_floats<kWide>(from + j * c.H + i);
#pragma unroll
      for (int k = 0; k < kWide; ++k) sum.v[k] = fmaf(pre[j], v.v[k], sum.v[k]);
    }
    store_floats<kWide>(c.y + t * c.H + i, sum);
  }
}

template <bool kHead>
void collapse(const OpDesc& desc, const Args& args, Stream& stream) {
  const int64_t n = desc.attrs.integer(Attr::streams), wide = width_of(desc.in(0)), H = wide / n;
  const Collapse c{.x = args.input<float>(0),
                   .mix = args.input<float>(1),
                   .base = args.input<float>(2),
                   .scale = args.input<float>(3),
                   .eps = desc.attrs.real(Attr::eps),
                   .hc_eps = desc.attrs.real(Attr::hc_eps),
                   .n = static_cast<int>(n),
                   .H = static_cast<int>(H),
                   .iterations = static_cast<int>(std::max<int64_t>(1, desc.attrs.integer(Attr::iterations, 1))),
                   .kept = wide * 4 <= kKeptBytes,
                   .y = args.output<float>(0),
                   .post = kHead ? nullptr : args.output<float>(1),
                   .comb = kHead ? nullptr : args.output<float>(2)};
  const bool fours = in_fours(H, c.x, c.y);
  const int64_t threads = std::min(kMostThreads, ceil_div(fours ? wide / 4 : wide, int64_t{kWarp}) * kWarp);
  const auto kernel = n <= 4 ? (fours ? collapse_kernel<4, 4, kHead> : collapse_kernel<4, 1, kHead>)
                             : (fours ? collapse_kernel<8, 4, kHead> : collapse_kernel<8, 1, kHead>);
  launch(kernel, static_cast<unsigned>(rows_of(desc.in(0), args.now)), static_cast<unsigned>(threads),
         c.kept ? static_cast<size_t>(wide) * 4 : 0, stream, c);
}

void hc_pre(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  collapse<false>(desc, args, stream);
}
void hc_head(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  collapse<true>(desc, args, stream);
}

// ---- hc_post

struct Spread {
  const float *y, *x, *post, *comb;  // [rows, H], [rows, n * H], [rows, n], [rows, n * n]
  int64_t rows;
  int n, H;
  float* out;  // [rows, n * H]
};

// out stream k = post[k] * y + sum over j of comb[j][k] * stream j. A thread for each unit of a row reads every stream
// once and writes all of them.
template <int kStreams, int kWide>
__global__ void spread_kernel(Spread s) {
  after_previous();
  const RowUnit at = row_unit();
  const int i = at.unit * kWide, n = s.n;
  if (at.row >= s.rows || i >= s.H) return;
  const float* comb = s.comb + at.row * n * n;
  const auto y = load_floats<kWide>(s.y + at.row * s.H + i);
  Floats<kWide> x[kStreams];
#pragma unroll
  for (int j = 0; j < kStreams; ++j)
    if (j < n) x[j] = load_floats<kWide>(s.x + (at.row * n + j) * s.H + i);
#pragma unroll
  for (int k = 0; k < kStreams; ++k) {
    if (k >= n) break;
    const float post = s.post[at.row * n + k];
    Floats<kWide> sum;
#pragma unroll
    for (int e = 0; e < kWide; ++e) sum.v[e] = post * y.v[e];
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      if (j >= n) break;
      const float weight = comb[j * n + k];
#pragma unroll
      for (int e = 0; e < kWide; ++e) sum.v[e] = fmaf(weight, x[j].v[e], sum.v[e]);
    }
    store_floats<kWide>(s.out + (at.row * n + k) * s.H + i, sum);
  }
}

void hc_post(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t n = desc.attrs.integer(Attr::streams), H = width_of(desc.in(0));
  const Spread s{.y = args.input<float>(0),
                 .x = args.input<float>(1),
                 .post = args.input<float>(2),
                 .comb = args.input<float>(3),
                 .rows = rows_of(desc.in(0), args.now),
                 .n = static_cast<int>(n),
                 .H = static_cast<int>(H),
                 .out = args.output<float>(0)};
  const bool fours = in_fours(H, s.y, s.x, s.out);
  const RowGrid g = row_grid(s.rows, fours ? H / 4 : H);
  const auto kernel = n <= 4 ? (fours ? spread_kernel<4, 4> : spread_kernel<4, 1>)
                             : (fours ? spread_kernel<8, 4> : spread_kernel<8, 1>);
  launch(kernel, g.grid, g.block, 0, stream, s);
}

}  // namespace

const Kernel kHcExpand{
    .name = "hc_expand.cuda", .op = Op::hc_expand, .backend = Backend::cuda, .refuse = refuse, .launch = hc_expand};
const Kernel kHcPre{
    .name = "hc_pre.cuda", .op = Op::hc_pre, .backend = Backend::cuda, .refuse = refuse, .launch = hc_pre};
const Kernel kHcPost{
    .name = "hc_post.cuda", .op = Op::hc_post, .backend = Backend::cuda, .refuse = refuse, .launch = hc_post};
const Kernel kHcHead{
    .name = "hc_head.cuda", .op = Op::hc_head, .backend = Backend::cuda, .refuse = refuse, .launch = hc_head};

}  // namespace moesaic::cuda
