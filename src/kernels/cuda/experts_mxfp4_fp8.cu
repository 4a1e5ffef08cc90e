// Expert products for many rows per expert on FP8 matrix units: MXFP4 weights become E4M3 in registers, exactly, and
// activations are E4M3 per 128 channels. Three launches: one finds each output row's largest scale, one lays the routed
// rows out as the tiles that wgmma reads, a third multiplies as experts_mxfp4_prefill.cu does.
//
// A code times 2^k is an E4M3 number for twelve k. Scales count down from the row's largest, so that rows whose groups
// span at most twelve powers of two are exact; what is left is one factor of the row. Sums over 128 channels go from
// the matrix units to float32, times the activations' scale. Where a row of 64 spans more, its tile takes the slow way:
// one group of every four at a time, codes as they are, and the groups' scales in float32.
#include "kernels/cuda/expert_tiles.cuh"
#include "kernels/cuda/experts_mxfp4.cuh"
#include "kernels/cuda/mxfp4.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kAtoms = 16;  // of a tile at most: 128 routed rows
constexpr int kStages = 6;  // pieces of K in the ring
constexpr int kCodeBytes = kAtoms * kSwizzleAtom, kStageBytes = kCodeBytes + kSwizzleAtom;
constexpr int kHeld = 3;        // pieces of weights on their way to registers
constexpr int kPrefetched = 3;  // and to L2 beyond them
constexpr int kThreads = 256;   // of the launches before
constexpr int kLevels = 12;     // powers of two between a row's largest scale and its smallest, at most
constexpr int kFlagRows = 64;
static_assert(kAtoms * kAtomRows * 4 <= kSwizzleAtom);

using Memory = TileMemory<kStages, kStageBytes>;
using FpRing = Ring<kStages, kStageBytes>;

// The workspace: codes [piece][atom][1024 bytes], scales [piece][atom][8], each row's largest scale byte [E][N], which
// 64 rows span too much [E][ceil(N / 64)].
struct Prepared {
  std::byte* codes;
  float* scales;
  uint8_t *largest, *wide;
  int64_t atoms;

  Prepared(std::byte* workspace, int64_t E, int64_t N, int64_t K, int64_t R) : atoms(most_atoms(E, R)) {
    const int64_t pieces = ceil_div(K, int64_t{kPiece});
    codes = workspace;
    scales = reinterpret_cast<float*>(codes + pieces * atoms * kSwizzleAtom);
    largest = reinterpret_cast<uint8_t*>(scales + pieces * atoms * kAtomRows);
    wide = largest + E * N;
  }
  static int64_t bytes(int64_t E, int64_t N, int64_t K, int64_t R) {
    const int64_t atoms = most_atoms(E, R);
    return ceil_div(K, int64_t{kPiece}) * atoms * (kSwizzleAtom + kAtomRows * 4) + E * N +
           E * ceil_div(N, int64_t{kFlagRows});
  }
};

// Four bytes of a and b by the low four hexadecimal digits of `pick`; a digit above 7 repeats a byte's sign bit.
__device__ __forceinline__ unsigned pick_bytes(unsigned a, unsigned b, unsigned pick) {
#ifdef MOESAIC_EMULATED_CUDA
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned digit = pick >> (4 * i) & 15, byte = ((digit & 4) != 0 ? b : a) >> (8 * (digit & 3)) & 0xFF;
    result |= ((digit & 8) == 0 ? byte : (byte & 0x80) != 0 ? 0xFFu : 0u) << (8 * i);
  }
  return result;
#else
  unsigned result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(pick));
  return result;
#endif
}

// The magnitudes 0 .. 6 times 2^(level - 6) as E4M3, level 1 to 12; anything, but 0 for code 0, elsewhere.
struct Magnitudes {
  unsigned low, high;
  __device__ explicit Magnitudes(int level)
      : low(static_cast<unsigned>(level) * 0x08080800u + 0x0C080000u),
        high(static_cast<unsigned>(level) * 0x08080808u + 0x1C181410u) {}

  // Codes 0 .. 3 of a word, in the order of bytes.
  __device__ __forceinline__ unsigned four(unsigned word) const {
    const unsigned positive = pick_bytes(0x7Fu, 0, word & 0x8888u);  // 0x7F, or 0 where the sign is set
    return pick_bytes(low, high, word & 0x7777u) | (~(positive << 1) & 0x80808080u);
  }
};

// A warp an output row: its largest scale, and whether the others are within kLevels of it but for groups of zeros.
__global__ void __launch_bounds__(kThreads) largest_kernel(ExpertCall call, Prepared to) {
  after_previous();
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  const int e = static_cast<int>(item / call.N), n = static_cast<int>(item % call.N), groups = call.K / 32;
  if (e >= call.E || call.offsets[e + 1] == call.offsets[e]) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::byte* matrix = call.weight + e * call.matrix_bytes;
  const auto* scales = reinterpret_cast<const uint8_t*>(matrix) + static_cast<int64_t>(call.N) * call.K / 2 +
                       static_cast<int64_t>(n) * groups;
  unsigned largest = 0;
  for (int g = lane; g < groups; g += kWarp) largest = max(largest, static_cast<unsigned>(__ldg(scales + g)));
  largest = __reduce_max_sync(kAllLanes, largest);
  bool wide = false;
  for (int g = lane; g < groups; g += kWarp) {
    if (__ldg(scales + g) + static_cast<unsigned>(kLevels) > largest) continue;
    const uint4 codes = load_once(matrix + (static_cast<int64_t>(n) * groups + g) * 16);
    wide = wide || ((codes.x | codes.y | codes.z | codes.w) & 0x77777777u) != 0;
  }
  if (lane == 0) to.largest[static_cast<int64_t>(e) * call.N + n] = static_cast<uint8_t>(largest);
  if (wide) to.wide[e * ceil_div(call.N, kFlagRows) + n / kFlagRows] = 1;
}

__global__ void clear_kernel(uint8_t* flags, int count) {
  after_previous();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) flags[i] = 0;
}

// A block an atom, for all of K: a thread takes 16 bytes of a tile's row, which are a word of each of the four groups.
__global__ void __launch_bounds__(kThreads) lay_out_kernel(ExpertCall call, Prepared to) {
  after_previous();
  const int atom = static_cast<int>(blockIdx.x), pieces = ceil_div(call.K, kPiece);
  const AtomRows rows = find_atom<kThreads>(call, atom);
  if (!rows.there) return;
  for (int i = static_cast<int>(threadIdx.x); i < kAtomRows * pieces * 8; i += kThreads) {
    const int chunk = i % 8, row = i / 8 % kAtomRows, piece = i / 8 / kAtomRows;
    uint4 v = make_uint4(0, 0, 0, 0);
    float scale = 0;
    if (row < rows.rows) {
      const std::byte* from = call.quantized_row(rows.first + row);
      const auto* words = reinterpret_cast<const unsigned*>(from + piece * kPiece) + chunk;
      v = make_uint4(words[0], words[8], words[16], words[24]);
      scale = reinterpret_cast<const float*>(from + quantized_scales_at(call.K))[piece];
    }
    const int64_t at = piece * to.atoms + atom;
    *reinterpret_cast<uint4*>(to.codes + at * kSwizzleAtom + row * kSwizzleRow + (chunk ^ row) * 16) = v;
    if (chunk == 0) to.scales[at * kAtomRows + row] = scale;
  }
}

// One thread: copies the activations of every tile of this block.
__device__ void produce(const ExpertCall& call, const Prepared& from, const Tiles<kAtoms>& tiles, FpRing ring) {
  const int pieces = ceil_div(call.K, kPiece);
  int e = 0;
  for (int index = static_cast<int>(blockIdx.x); index < tiles.before[call.E]; index += static_cast<int>(gridDim.x)) {
    const Tile tile = tiles.at(call, index, e);
    const auto bytes = static_cast<uint32_t>(tile.atoms * kSwizzleAtom), more = static_cast<uint32_t>(tile.atoms * 32);
    for (int piece = 0; piece < pieces; ++piece, ring.advance()) {
      const int64_t at = piece * from.atoms + tile.atom;
      barrier_wait(ring.empty + ring.stage, ring.parity ^ 1);
      barrier_arrive_expect(ring.full + ring.stage, bytes + more);
      bulk_load(ring.data(), from.codes + at * kSwizzleAtom, bytes, ring.full + ring.stage);
      bulk_load(ring.data() + kCodeBytes, from.scales + at * kAtomRows, more, ring.full + ring.stage);
    }
  }
}

// This lane's groups of one expert's weights: rows n and n + 1, group q of each piece.
struct LaneWeights {
  const std::byte *codes[2], *scales[2];
  int levels[2];  // less the largest scale of the row
  int last;       // group of the row, as seen from this lane's in piece 0

  __device__ LaneWeights(const ExpertCall& call, const Prepared& known, int e, int n, int q)
      : last(call.K / 32 - 1 - q) {
    const std::byte* matrix = call.weight + e * call.matrix_bytes;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = min(n + i, call.N - 1);
      const int64_t index = static_cast<int64_t>(row) * (call.K / 32) + q;
      codes[i] = matrix + index * 16;
      scales[i] = matrix + static_cast<int64_t>(call.N) * call.K / 2 + index;
      levels[i] = kLevels - static_cast<int>(known.largest[static_cast<int64_t>(e) * call.N + row]);
    }
  }
  // Past the row's end its last group, which meets zeros: a choice between a load and a constant would wait for the
  // load.
  __device__ __forceinline__ void load(PieceShare& share, int piece) const {
    const int at = min(piece * 4, last), ahead = min((piece + kPrefetched) * 4, last);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      prefetch(codes[i] + ahead * 16);
      share.codes[i] = load_once(codes[i] + at * 16);
      share.scales[i] = static_cast<unsigned>(__ldg(reinterpret_cast<const uint8_t*>(scales[i]) + at));
    }
  }
  // 2^(what the codes of row i lack).
  __device__ __forceinline__ float factor(int i) const {
    const int exponent = kLevels - levels[i] - 6;  // of 2^(largest - 133), biased
    return __uint_as_float(exponent > 0 ? static_cast<unsigned>(exponent) << 23 : 1u << (22 + exponent));
  }
};

// A operands of a piece; levels[i] is that of row i's group here.
__device__ __forceinline__ void expand(const PieceShare& share, const int (&levels)[2], uint32_t (&a)[4][4]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const Magnitudes magnitudes(levels[row]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned word = share.word(row, i);
      a[i][row] = magnitudes.four(word), a[i][row + 2] = magnitudes.four(word >> 16);
    }
  }
}

// products = A times kColumns of the staged rows, in flight when it returns.
template <int kColumns>
__device__ __forceinline__ void multiply(float (&all)[kAtoms * 4], const uint32_t (&a)[4][4], uint64_t x) {
  auto& products = reinterpret_cast<float(&)[kColumns / 2]>(all);
  keep_in_place(products);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < 4; ++i) wgmma_e4m3(products, a[i], x + kDescriptorStep * static_cast<uint64_t>(i), i > 0);
  wgmma_commit();
}
__device__ __forceinline__ void multiply(int width, float (&products)[kAtoms * 4], const uint32_t (&a)[4][4],
                                         uint64_t x) {
  switch (width) {
    case 0: return multiply<32>(products, a, x);
    case 1: return multiply<64>(products, a, x);
    case 2: return multiply<96>(products, a, x);
    default: return multiply<128>(products, a, x);
  }
}

// sums += products times the routed rows' scales, and of[row].
template <bool kRows>
__device__ __forceinline__ void add_products(const float (&products)[kAtoms * 4], const float* scales,
                                             const float (&of)[2], int width, float (&sums)[kAtoms * 4]) {
  const int q = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int n = 0; n < kAtoms; ++n) {
    if (n / 4 > width) continue;
    const float2 scale = *reinterpret_cast<const float2*>(scales + n * kAtomRows + 2 * q);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float of_column = i % 2 == 0 ? scale.x : scale.y;
      float& sum = sums[4 * n + i];
      if constexpr (kRows) sum = __fmaf_rn(products[4 * n + i] * of_column, of[i / 2], sum);
      else sum = __fmaf_rn(products[4 * n + i], of_column, sum);
    }
  }
}

// One warpgroup's 64 rows of a tile, where a row of them spans too many powers of two.
__device__ __forceinline__ void multiply_wide(const ExpertCall& call, const LaneWeights& weights, int width,
                                              FpRing& ring, float (&sums)[kAtoms * 4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, q = lane % 4;
  for (int piece = 0; piece < ceil_div(call.K, kPiece); ++piece, ring.advance()) {
    PieceShare share;
    weights.load(share, piece);
    const float own[2] = {e8m0_to_f32(static_cast<uint8_t>(share.scales[0])),
                          e8m0_to_f32(static_cast<uint8_t>(share.scales[1]))};
    ring.wait_full();
    for (int group = 0; group < 4; ++group) {
      PieceShare only = share;
      if (q != group) only.codes[0] = only.codes[1] = make_uint4(0, 0, 0, 0);
      const int plain[2] = {6, 6};
      uint32_t a[4][4];
      float products[kAtoms * 4];
      expand(only, plain, a);
      multiply(width, products, a, k_major_descriptor(ring.data()));
      wgmma_wait<0>();
      keep_in_place(products);
      const float of[2] = {__shfl_sync(kAllLanes, own[0], lane - q + group),
                           __shfl_sync(kAllLanes, own[1], lane - q + group)};
      add_products<true>(products, reinterpret_cast<const float*>(ring.data() + kCodeBytes), of, width, sums);
    }
    ring.release();
  }
}

// One warpgroup's 64 rows of a tile: while the matrix units work for one of the two, the other adds and expands.
__device__ __forceinline__ void multiply_narrow(const ExpertCall& call, const LaneWeights& weights, int width,
                                                FpRing& ring, float (&sums)[kAtoms * 4]) {
  const int pieces = ceil_div(call.K, kPiece);
  const auto expand_share = [&](const PieceShare& share, uint32_t(&a)[4][4]) {
    const int levels[2] = {weights.levels[0] + static_cast<int>(share.scales[0]),
                           weights.levels[1] + static_cast<int>(share.scales[1])};
    expand(share, levels, a);
  };
  PieceShare shares[kHeld];
  uint32_t a[4][4];
  float products[kAtoms * 4];
  const float none[2] = {};
#pragma unroll
  for (int i = 0; i < kHeld; ++i) weights.load(shares[i], i);
  for (int first = 0; first < pieces; first += kHeld) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (first + i >= pieces) break;
      expand_share(shares[i], a);
      weights.load(shares[i], first + i + kHeld);
      ring.wait_full();
      multiply(width, products, a, k_major_descriptor(ring.data()));
      wgmma_wait<0>();
      keep_in_place(products);
      add_products<false>(products, reinterpret_cast<const float*>(ring.data() + kCodeBytes), none, width, sums);
      ring.release();
      ring.advance();
    }
  }
}

__device__ __forceinline__ void multiply_tile(const ExpertCall& call, const Prepared& known, const Tile& tile, int row,
                                              FpRing& ring) {
  const int thread = static_cast<int>(threadIdx.x) % 128, q = thread % 4;
  const int n = row + thread / kWarp * 16 + thread % kWarp / 4 * 2;  // and n + 1: rows g and g + 8 of the fragment
  const LaneWeights weights(call, known, tile.e, n, q);
  const int width = __shfl_sync(kAllLanes, (tile.atoms - 1) / 4, 0);  // visibly the same in all lanes
  float sums[kAtoms * 4] = {}, factor[2] = {1, 1};
  if (known.wide[tile.e * ceil_div(call.N, kFlagRows) + row / kFlagRows] != 0) {
    multiply_wide(call, weights, width, ring, sums);
  } else {
    multiply_narrow(call, weights, width, ring, sums);
    factor[0] = weights.factor(0), factor[1] = weights.factor(1);
  }
  if (n >= call.N) return;
  const float2 bias = bias_pair(call, tile.e, n);
#pragma unroll
  for (int i = 0; i < kAtoms * 2; ++i) {
    const int column = i / 2 * 8 + 2 * q + i % 2, at = i / 2 * 4 + i % 2;
    if (column < tile.count)
      write_pair(call, n, tile.first + column, __fmaf_rn(sums[at], factor[0], bias.x),
                 __fmaf_rn(sums[at + 2], factor[1], bias.y));
  }
}

__global__ void __launch_bounds__(kTileThreads, 1) multiply_kernel(ExpertCall call, Prepared prepared) {
  after_previous();
  const Memory memory(call.E);
  list_tiles<kAtoms>(call, memory.before, memory.atoms_before, memory.scratch);
  const Tiles<kAtoms> tiles{memory.before, memory.atoms_before};
  if (threadIdx.x < 128) {
    give_registers<40>();
    if (threadIdx.x == 0) produce(call, prepared, tiles, memory.ring);
    return;
  }
  take_registers<232>();
  FpRing ring = memory.ring;
  int e = 0;
  for (int index = static_cast<int>(blockIdx.x); index < tiles.before[call.E]; index += static_cast<int>(gridDim.x)) {
    const Tile tile = tiles.at(call, index, e);
    const int row = tile.row + (static_cast<int>(threadIdx.x) / 128 - 1) * kFlagRows;
    if (row >= call.N) skip_tile(call, ring);
    else multiply_tile(call, prepared, tile, row, ring);
  }
}

}  // namespace

int64_t mxfp4_fp8_workspace(int64_t E, int64_t N, int64_t K, int64_t R) {
  return Prepared::bytes(E, N, K, R);
}

void launch_mxfp4_fp8(const ExpertCall& call, int64_t R, std::byte* workspace, Stream& stream) {
  const Prepared prepared(workspace, call.E, call.N, call.K, R);
  const int64_t tiles = ceil_div(prepared.atoms, kAtoms) + experts_reached(call.E, R);
  const int64_t grid = min(int64_t{stream.multiprocessors}, tiles * ceil_div(call.N, kTileRows));
  launch(clear_kernel, 1, kThreads, 0, stream, prepared.wide, call.E * ceil_div(call.N, kFlagRows));
  launch(largest_kernel, static_cast<unsigned>(ceil_div(int64_t{call.E} * call.N, int64_t{kThreads / kWarp})), kThreads,
         0, stream, call, prepared);
  launch(lay_out_kernel, static_cast<unsigned>(prepared.atoms), kThreads, 0, stream, call, prepared);
  launch(multiply_kernel, static_cast<unsigned>(grid), kTileThreads, static_cast<size_t>(Memory::bytes(call.E)), stream,
         call, prepared);
}

}  // namespace moesaic::cuda
