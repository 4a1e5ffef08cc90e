// The ops of a vision tower, which runs on one image at a time. The grid of patches is the step's and known to the
// host.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/grid_taps.h"

namespace moesaic::cuda {
namespace {

// ---- patches, merge_patches

struct SameRow {
  int64_t count;
  __device__ int64_t operator()(int64_t row) const { return row * count; }
};
// Row j of the m x m neighbours that make row s of the output.
struct Neighbour {
  int m, columns, H;
  __device__ int64_t operator()(int64_t row) const {
    const int s = static_cast<int>(row) / (m * m), j = static_cast<int>(row) % (m * m), across = columns / m;
    return static_cast<int64_t>((s / across * m + j / m) * columns + s % across * m + j % m) * H;
  }
};

void patches(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t count = width_of(desc.out(0));
  float* y = args.output<float>(0);
  copy_rows(SameRow{count}, in_fours(count, args.batch->patches, y), args.batch->patches, args.now.tokens, count, y,
            stream);
}

void merge_patches(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t m = desc.attrs.integer(Attr::merge), H = width_of(desc.in(0));
  const Neighbour source{static_cast<int>(m), static_cast<int>(args.batch->grid_columns), static_cast<int>(H)};
  const float* x = args.input<float>(0);
  float* y = args.output<float>(0);
  copy_rows(source, in_fours(H, x, y), x, args.now.rows * m * m, H, y, stream);
}

// ---- grid_embed

// y[t] = the table stretched to the grid, at row t / wide and column t % wide. table [rows, columns, H].
template <int kWide>
__global__ void grid_embed_kernel(const float* table, int64_t rows, int64_t columns, int H, int64_t high, int64_t wide,
                                  bool cubic, int64_t T, float* y) {
  after_previous();
  const RowUnit at = row_unit();
  const int h = at.unit * kWide;
  if (at.row >= T || h >= H) return;
  const GridTaps down = grid_taps(at.row / wide, high, rows, cubic);
  const GridTaps across = grid_taps(at.row % wide, wide, columns, cubic);
  Floats<kWide> sum{};
#pragma unroll
  for (size_t i = 0; i < 16; ++i) {
    const auto weight = static_cast<float>(down.weight[i / 4] * across.weight[i % 4]);
    const Floats<kWide> cell = load_floats<kWide>(table + (down.cell[i / 4] * columns + across.cell[i % 4]) * H + h);
    for (int j = 0; j < kWide; ++j) sum.v[j] += weight * cell.v[j];
  }
  store_floats<kWide>(y + at.row * H + h, sum);
}

void grid_embed(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t H = width_of(desc.out(0)), T = args.now.tokens;
  const float* table = args.input<float>(0);
  float* y = args.output<float>(0);
  const bool fours = in_fours(H, table, y);
  const RowGrid g = row_grid(T, fours ? H / 4 : H);
  launch(fours ? grid_embed_kernel<4> : grid_embed_kernel<1>, g.grid, g.block, 0, stream, table,
         desc.in(0).type.dim(0).factor, desc.in(0).type.dim(1).factor, static_cast<int>(H), args.batch->grid_rows,
         args.batch->grid_columns, desc.attrs.integer(Attr::cubic) != 0, T, y);
}

// ---- grid_rope_table

constexpr int64_t kMostFrequencies = 128;

struct Frequencies {
  float of[kMostFrequencies];
};

// cos and sin [T, half, 2]: pair 2i turns by column * frequency i, pair 2i + 1 by row * the same. The product is
// rounded to float32, the rest runs in float64.
__global__ void grid_rope_kernel(Frequencies frequencies, int wide, int64_t T, int half, float* table) {
  after_previous();
  const RowUnit at = row_unit();
  if (at.row >= T || at.unit >= half) return;
  const int t = static_cast<int>(at.row), place = at.unit % 2 == 0 ? t % wide : t / wide;
  const auto angle = static_cast<double>(__fmul_rn(static_cast<float>(place), frequencies.of[at.unit / 2]));
  reinterpret_cast<float2*>(table)[at.row * half + at.unit] =
      make_float2(static_cast<float>(cos(angle)), static_cast<float>(sin(angle)));
}

const char* refuse_rope(const OpDesc& desc, const DeviceInfo& device) {
  if (desc.attrs.integer(Attr::head_dim) > 4 * kMostFrequencies) return "at most 256 pairs";
  return refuse_types(desc, device);
}

void grid_rope_table(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t D = desc.attrs.integer(Attr::head_dim);
  Frequencies frequencies{};
  for (int64_t i = 0; 4 * i < D; ++i) {
    const double exponent = static_cast<double>(4 * i) / static_cast<double>(D);
    frequencies.of[i] = static_cast<float>(std::pow(desc.attrs.number(Attr::theta), -exponent));
  }
  const RowGrid g = row_grid(args.now.tokens, D / 2);
  launch(grid_rope_kernel, g.grid, g.block, 0, stream, frequencies, static_cast<int>(args.batch->grid_columns),
         args.now.tokens, static_cast<int>(D / 2), args.output<float>(0));
}

// ---- full_attention

constexpr int kTile = 64, kPad = kTile + 4;  // queries of a block, keys of a pass; the stride of what is read by key
constexpr int kThreads = 256, kSide = 16;    // thread (y, x) has queries 4y.. and, in turn, 4 keys or kD / 16 columns

template <int kD>
struct AttentionTiles {
  float q[kTile][kD], keys[kD][kPad], values[kTile][kD], weights[kTile][kPad];
};

// o[t, head] = softmax(scale * q . k) v over all T tokens, float32 throughout, the softmax running over tiles of keys
// in order. q, k, v, o [T, heads, D], D <= kD. A block has a head and 64 queries.
template <int kD>
__global__ void __launch_bounds__(kThreads) full_attention_kernel(const float* q, const float* k, const float* v, int T,
                                                                  int heads, int D, float scale, float* o) {
  after_previous();
  constexpr int kColumns = kD / kSide;
  auto& tiles = *dynamic_shared<AttentionTiles<kD>>();
  const int thread = static_cast<int>(threadIdx.x), x = thread % kSide, y = thread / kSide * 4;
  const int queries = static_cast<int>(blockIdx.x) * kTile, head = static_cast<int>(blockIdx.y);
  const auto element = [=](int token, int d) { return (static_cast<int64_t>(token) * heads + head) * D + d; };
  for (int i = thread; i < kTile * kD; i += kThreads) {
    const int token = queries + i / kD, d = i % kD;
    tiles.q[i / kD][d] = token < T && d < D ? scale * q[element(token, d)] : 0;
  }
  float top[4], total[4] = {}, sum[4][kColumns] = {};
  for (float& t : top) t = -INFINITY;

  for (int first = 0; first < T; first += kTile) {
    __syncthreads();
    for (int i = thread; i < kTile * kD; i += kThreads) {
      const int token = first + i / kD, d = i % kD;
      const bool real = token < T && d < D;
      tiles.keys[d][i / kD] = real ? k[element(token, d)] : 0;
      tiles.values[i / kD][d] = real ? v[element(token, d)] : 0;
    }
    __syncthreads();

    float score[4][4] = {};
#pragma unroll 4
    for (int d = 0; d < kD; d += 4) {
      Floats<4> query[4];
      for (int r = 0; r < 4; ++r) query[r] = load_floats<4>(&tiles.q[y + r][d]);
      for (int i = 0; i < 4; ++i) {
        const Floats<4> key = load_floats<4>(&tiles.keys[d + i][4 * x]);
        for (int r = 0; r < 4; ++r)
          for (int c = 0; c < 4; ++c) score[r][c] += query[r].v[i] * key.v[c];
      }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      float largest = top[r], added = 0;
      for (int c = 0; c < 4; ++c) {
        if (first + 4 * x + c >= T) score[r][c] = -INFINITY;
        largest = fmaxf(largest, score[r][c]);
      }
      for (int d = kSide / 2; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, d));
      Floats<4> weight;
      for (int c = 0; c < 4; ++c) added += weight.v[c] = expf(score[r][c] - largest);
      for (int d = kSide / 2; d > 0; d /= 2) added += __shfl_xor_sync(kAllLanes, added, d);
      const float kept = expf(top[r] - largest);
      total[r] = total[r] * kept + added;
      for (int c = 0; c < kColumns; ++c) sum[r][c] *= kept;
      top[r] = largest;
      store_floats<4>(&tiles.weights[y + r][4 * x], weight);
    }
    __syncwarp();  // a query's weights come from half a warp and go to the same
#pragma unroll 2
    for (int key = 0; key < kTile; key += 4) {
      Floats<4> weight[4];
      for (int r = 0; r < 4; ++r) weight[r] = load_floats<4>(&tiles.weights[y + r][key]);
      for (int i = 0; i < 4; ++i)
        for (int c = 0; c < kColumns; ++c) {
          const float value = tiles.values[key + i][c * kSide + x];
          for (int r = 0; r < 4; ++r) sum[r][c] += weight[r].v[i] * value;
        }
    }
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    if (queries + y + r >= T) break;
    for (int c = 0; c < kColumns; ++c)
      if (const int d = c * kSide + x; d < D) o[element(queries + y + r, d)] = sum[r][c] / total[r];
  }
}

const char* refuse_attention(const OpDesc& desc, const DeviceInfo& device) {
  if (desc.attrs.integer(Attr::head_dim) > 128) return "heads of at most 128";
  return refuse_types(desc, device);
}

template <int kD>
void attend(const OpDesc& desc, const Args& args, Stream& stream) {
  const int64_t T = args.now.tokens, heads = desc.attrs.integer(Attr::heads);
  launch(full_attention_kernel<kD>, {static_cast<unsigned>(ceil_div(T, int64_t{kTile})), static_cast<unsigned>(heads)},
         kThreads, sizeof(AttentionTiles<kD>), stream, args.input<float>(0), args.input<float>(1), args.input<float>(2),
         static_cast<int>(T), static_cast<int>(heads), static_cast<int>(desc.attrs.integer(Attr::head_dim)),
         desc.attrs.real(Attr::scale), args.output<float>(0));
}

void full_attention(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t D = desc.attrs.integer(Attr::head_dim);
  if (D <= 32) attend<32>(desc, args, stream);
  else if (D <= 64) attend<64>(desc, args, stream);
  else if (D <= 80) attend<80>(desc, args, stream);
  else if (D <= 96) attend<96>(desc, args, stream);
  else attend<128>(desc, args, stream);
}

constexpr Kernel vision(const char* name, Op op, decltype(Kernel::refuse) refuse, decltype(Kernel::launch) launch) {
  return {.name = name, .op = op, .backend = Backend::cuda, .refuse = refuse, .launch = launch};
}

}  // namespace

const Kernel kPatches = vision("patches.cuda", Op::patches, refuse_types, patches);
const Kernel kGridEmbed = vision("grid_embed.cuda", Op::grid_embed, refuse_types, grid_embed);
const Kernel kGridRopeTable = vision("grid_rope_table.cuda", Op::grid_rope_table, refuse_rope, grid_rope_table);
const Kernel kFullAttention = vision("full_attention.cuda", Op::full_attention, refuse_attention, full_attention);
const Kernel kMergePatches = vision("merge_patches.cuda", Op::merge_patches, refuse_types, merge_patches);

}  // namespace moesaic::cuda
