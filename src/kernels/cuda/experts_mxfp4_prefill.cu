// Expert products for many rows per expert, on warpgroup products. A launch rounds the routed rows to bf16, sorted, in
// the order of decode_word and as the tiles that wgmma reads; a second multiplies: persistent blocks take tiles of 128
// output rows x up to 256 routed rows, a producer copies activations through a ring of stages, and two warpgroups of 64
// rows each expand their weights in registers as the A operand.
#include "kernels/cuda/expert_tiles.cuh"
#include "kernels/cuda/experts_mxfp4.cuh"
#include "kernels/cuda/mxfp4.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kTileAtoms = 32;                         // of a tile at most: 256 rows
constexpr int kStages = 3;                             // pieces of K in the ring
constexpr int kHalfBytes = kTileAtoms * kSwizzleAtom;  // one half of a piece, 64 elements of K, for all rows
constexpr int kStageBytes = 2 * kHalfBytes;
constexpr int kPrefetched = 3;  // pieces of weights on their way to L2 beyond those being loaded
constexpr int kRoundThreads = 256;

using Memory = TileMemory<kStages, kStageBytes>;
using PieceRing = Ring<kStages, kStageBytes>;

// The rounded rows: [half of a piece][atom][1024 bytes], halves `atoms` apart.
struct Rounded {
  std::byte* data;
  int64_t atoms;

  __device__ std::byte* at(int half, int64_t atom) const { return data + (half * atoms + atom) * kSwizzleAtom; }
};

// Grid: one block per atom, for all of K. A thread takes word i of the four groups of one row and piece, which are 64
// neighbouring bytes of the result.
__global__ void __launch_bounds__(kRoundThreads) round_kernel(ExpertCall call, Rounded rounded) {
  after_previous();
  const int atom = static_cast<int>(blockIdx.x);
  const AtomRows found = find_atom<kRoundThreads>(call, atom);
  if (!found.there) return;
  const int first = found.first, rows = found.rows, pieces = ceil_div(call.K, kPiece);
  for (int i = static_cast<int>(threadIdx.x); i < kAtomRows * pieces * 4; i += kRoundThreads) {
    const int word = i % 4, piece = i / 4 % pieces, row = i / 4 / pieces;
    uint4 v[4];
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int k = piece * kPiece + q * 32 + word * 8;
      const bool there = row < rows && k < call.K;
      v[q] = there ? activation_word(call.x_row(first + row) + k) : make_uint4(0, 0, 0, 0);
    }
    std::byte* to = rounded.at(2 * piece + word / 2, atom) + row * kSwizzleRow;
    const auto store = [&](int chunk, uint4 values) {
      *reinterpret_cast<uint4*>(to + ((word % 2 * 4 + chunk) ^ row) * 16) = values;
    };
    store(0, make_uint4(v[0].x, v[1].x, v[2].x, v[3].x));
    store(1, make_uint4(v[0].y, v[1].y, v[2].y, v[3].y));
    store(2, make_uint4(v[0].z, v[1].z, v[2].z, v[3].z));
    store(3, make_uint4(v[0].w, v[1].w, v[2].w, v[3].w));
  }
}

// One thread: copies the activations of every tile of this block.
__device__ void produce(const ExpertCall& call, const Rounded& rounded, const Tiles<kTileAtoms>& tiles,
                        PieceRing ring) {
  const int pieces = ceil_div(call.K, kPiece);
  int e = 0;
  for (int index = static_cast<int>(blockIdx.x); index < tiles.before[call.E]; index += static_cast<int>(gridDim.x)) {
    const Tile tile = tiles.at(call, index, e);
    const auto bytes = static_cast<uint32_t>(tile.atoms * kSwizzleAtom);
    for (int piece = 0; piece < pieces; ++piece, ring.advance()) {
      barrier_wait(ring.empty + ring.stage, ring.parity ^ 1);
      barrier_arrive_expect(ring.full + ring.stage, 2 * bytes);
      for (int half = 0; half < 2; ++half)
        bulk_load(ring.data() + half * kHalfBytes, rounded.at(2 * piece + half, tile.atom), bytes,
                  ring.full + ring.stage);
    }
  }
}

// This lane's groups of one expert's weights: rows n and n + 1, group q of each piece.
struct LaneWeights {
  const std::byte *codes[2], *scales[2];
  int last;  // group of the row, as seen from this lane's in piece 0

  __device__ LaneWeights(const ExpertCall& call, int e, int n, int q) : last(call.K / 32 - 1 - q) {
    const std::byte* matrix = call.weight + e * call.matrix_bytes;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t index = static_cast<int64_t>(min(n + i, call.N - 1)) * (call.K / 32) + q;
      codes[i] = matrix + index * 16;
      scales[i] = matrix + static_cast<int64_t>(call.N) * call.K / 2 + index;
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
};

// A operands of steps 2 i and 2 i + 1 of a piece.
__device__ __forceinline__ void expand(const PieceShare& share, int i, uint32_t (&a)[2][4]) {
  unsigned t[2][4];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    decode_word(share.word(row, i), group_factor(share.scales[row]), t[row]);
    multiply_word(t[row], excess_factor(share.scales[row]));
  }
#pragma unroll
  for (int step = 0; step < 2; ++step)
#pragma unroll
    for (int j = 0; j < 4; ++j) a[step][j] = t[j % 2][2 * step + j / 2];
}

// sums += two steps of A times kColumns of the staged rows, as one group.
template <int kColumns>
__device__ __forceinline__ void multiply_steps(float (&all)[kTileAtoms * 4], const uint32_t (&a)[2][4], uint64_t x,
                                               bool accumulate) {
  auto& sums = reinterpret_cast<float(&)[kColumns / 2]>(all);
  keep_in_place(sums);
  wgmma_fence();
  wgmma_bf16(sums, a[0], x, accumulate);
  wgmma_bf16(sums, a[1], x + kDescriptorStep, true);
  wgmma_commit();
}

// One warpgroup's 64 rows of a tile.
__device__ __forceinline__ void multiply_tile(const ExpertCall& call, const Tile& tile, PieceRing& ring) {
  const int thread = static_cast<int>(threadIdx.x) - 128, q = thread % 4;
  const int n = tile.row + thread / kWarp * 16 + thread % kWarp / 4 * 2;  // and n + 1: rows g and g + 8 of the fragment
  const LaneWeights weights(call, tile.e, n, q);
  const int pieces = ceil_div(call.K, kPiece);
  PieceShare share, next;
  weights.load(share, 0);
  float sums[kTileAtoms * 4];
  uint32_t a[2][2][4];
  PieceRing last = ring;
  const int width = __shfl_sync(kAllLanes, (tile.atoms - 1) / 4, 0);  // visibly the same in all lanes
  for (int piece = 0; piece < pieces; ++piece) {
    weights.load(next, piece + 1);
    ring.wait_full();
    const uint64_t x = k_major_descriptor(ring.data());
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      wgmma_wait<1>();  // what read a[i % 2] has retired
      if (i == 1 && piece > 0) last.release();
      expand(share, i, a[i % 2]);
      const uint64_t here = x + ((i / 2 * kHalfBytes + i % 2 * 64) >> 4);
      const bool accumulate = piece + i > 0;
      switch (width) {
        case 0: multiply_steps<32>(sums, a[i % 2], here, accumulate); break;
        case 1: multiply_steps<64>(sums, a[i % 2], here, accumulate); break;
        case 2: multiply_steps<96>(sums, a[i % 2], here, accumulate); break;
        case 3: multiply_steps<128>(sums, a[i % 2], here, accumulate); break;
        case 4: multiply_steps<160>(sums, a[i % 2], here, accumulate); break;
        case 5: multiply_steps<192>(sums, a[i % 2], here, accumulate); break;
        case 6: multiply_steps<224>(sums, a[i % 2], here, accumulate); break;
        default: multiply_steps<256>(sums, a[i % 2], here, accumulate); break;
      }
    }
    last = ring;
    ring.advance();
    share = next;
  }
  wgmma_wait<0>();
  keep_in_place(sums);
  last.release();
  if (n >= call.N) return;
  const float2 bias = bias_pair(call, tile.e, n);
#pragma unroll
  for (int i = 0; i < kTileAtoms * 2; ++i) {
    const int column = i / 2 * 8 + 2 * q + i % 2, at = i / 2 * 4 + i % 2;
    if (column < tile.count) write_pair(call, n, tile.first + column, sums[at] + bias.x, sums[at + 2] + bias.y);
  }
}

__device__ void consume(const ExpertCall& call, const Tiles<kTileAtoms>& tiles, PieceRing ring) {
  const int rows_before = (static_cast<int>(threadIdx.x) / 128 - 1) * 64;
  int e = 0;
  for (int index = static_cast<int>(blockIdx.x); index < tiles.before[call.E]; index += static_cast<int>(gridDim.x)) {
    const Tile tile = tiles.at(call, index, e);
    if (tile.row + rows_before >= call.N) skip_tile(call, ring);
    else multiply_tile(call, tile, ring);
  }
}

__global__ void __launch_bounds__(kTileThreads, 1) prefill_kernel(ExpertCall call, Rounded rounded) {
  after_previous();
  const Memory memory(call.E);
  list_tiles<kTileAtoms>(call, memory.before, memory.atoms_before, memory.scratch);
  const Tiles<kTileAtoms> tiles{memory.before, memory.atoms_before};
  if (threadIdx.x < 128) {
    give_registers<40>();
    if (threadIdx.x == 0) produce(call, rounded, tiles, memory.ring);
  } else {
    take_registers<232>();
    consume(call, tiles, memory.ring);
  }
}

}  // namespace

int64_t mxfp4_prefill_workspace(int64_t E, int64_t K, int64_t R) {
  return 2 * ceil_div(K, int64_t{kPiece}) * most_atoms(E, R) * kSwizzleAtom;
}

void launch_mxfp4_prefill(const ExpertCall& call, int64_t R, std::byte* workspace, Stream& stream) {
  const Rounded rounded{workspace, most_atoms(call.E, R)};
  const int64_t tiles = ceil_div(rounded.atoms, kTileAtoms) + experts_reached(call.E, R);
  const int64_t grid = min(static_cast<int64_t>(stream.multiprocessors), tiles * ceil_div(call.N, kTileRows));
  launch(round_kernel, static_cast<unsigned>(rounded.atoms), kRoundThreads, 0, stream, call, rounded);
  launch(prefill_kernel, static_cast<unsigned>(grid), kTileThreads, static_cast<size_t>(Memory::bytes(call.E)), stream,
         call, rounded);
}

}  // namespace moesaic::cuda
