// Expert products for many rows per expert, on warpgroup products. A launch rounds the routed rows to bf16, sorted, in
// the order of decode_word and as the tiles that wgmma reads; a second multiplies: persistent blocks take tiles of 128
// output rows x up to 256 routed rows, a producer copies activations through a ring of stages, and two warpgroups of 64
// rows each expand their weights in registers as the A operand.
#include "kernels/cuda/experts_mxfp4.cuh"
#include "kernels/cuda/mxfp4.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kAtomRows = 8;                           // routed rows in one swizzle atom of 1024 bytes
constexpr int kTileAtoms = 32;                         // of a tile at most: 256 rows
constexpr int kTileRows = 128;                         // output rows of a tile, 64 a warpgroup
constexpr int kStages = 3;                             // pieces of K in the ring
constexpr int kHalfBytes = kTileAtoms * kSwizzleAtom;  // one half of a piece, 64 elements of K, for all rows
constexpr int kStageBytes = 2 * kHalfBytes;
constexpr int kPrefetched = 3;  // pieces of weights on their way to L2 beyond those being loaded
constexpr int kConsumers = 2, kThreads = 128 * (1 + kConsumers);
constexpr int kRoundThreads = 256;

// Atoms of all experts: each begins one of its own.
int64_t most_atoms(int64_t E, int64_t R) {
  return R / kAtomRows + experts_reached(E, R);
}

// The rounded rows: [half of a piece][atom][1024 bytes], halves `atoms` apart.
struct Rounded {
  std::byte* data;
  int64_t atoms;

  __device__ std::byte* at(int half, int64_t atom) const { return data + (half * atoms + atom) * kSwizzleAtom; }
};

// Atoms of expert e.
__device__ __forceinline__ int atoms_of(const ExpertCall& call, int e) {
  return (call.offsets[e + 1] - call.offsets[e] + kAtomRows - 1) / kAtomRows;
}

// Grid: one block per atom, for all of K. A thread takes word i of the four groups of one row and piece, which are 64
// neighbouring bytes of the result.
__global__ void __launch_bounds__(kRoundThreads) round_kernel(ExpertCall call, Rounded rounded) {
  after_previous();
  __shared__ int scratch[kRoundThreads / kWarp], found[2];  // the atom's first row and the end of its expert's
  const int share = ceil_div(call.E, kRoundThreads), atom = static_cast<int>(blockIdx.x);
  const int begin = min(static_cast<int>(threadIdx.x) * share, call.E), end = min(begin + share, call.E);
  int mine = 0, total;
  for (int e = begin; e < end; ++e) mine += atoms_of(call, e);
  int before = sum_before(mine, scratch, total);
  if (atom >= total) return;
  for (int e = begin; e < end; ++e) {
    const int count = atoms_of(call, e);
    if (before <= atom && atom < before + count) {
      found[0] = call.offsets[e] + (atom - before) * kAtomRows;
      found[1] = call.offsets[e + 1];
    }
    before += count;
  }
  __syncthreads();
  const int first = found[0], rows = found[1] - first, pieces = ceil_div(call.K, kPiece);
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

// 128 output rows from `row`, for `count` routed rows from `first`, which begin at `atom`.
struct Tile {
  int e, row, first, count, atom, atoms;
};

// The tiles of all experts in order, those of the same weights side by side.
struct Tiles {
  const int *before, *atoms_before;  // [E + 1] in shared memory

  // Tile number `index`; `e` is where the search begins and what it finds.
  __device__ Tile at(const ExpertCall& call, int index, int& e) const {
    while (before[e + 1] <= index) ++e;
    const int atoms = atoms_before[e + 1] - atoms_before[e], parts = ceil_div(atoms, kTileAtoms);
    const int part = (index - before[e]) % parts;
    const int begin = atoms * part / parts, end = atoms * (part + 1) / parts;
    const int first = call.offsets[e] + begin * kAtomRows;
    return {e,
            (index - before[e]) / parts * kTileRows,
            first,
            min((end - begin) * kAtomRows, call.offsets[e + 1] - first),
            atoms_before[e] + begin,
            end - begin};
  }
};

// All threads; ends with a barrier.
__device__ void list_tiles(const ExpertCall& call, int* before, int* atoms_before, int* scratch) {
  const int share = ceil_div(call.E, kThreads), row_tiles = ceil_div(call.N, kTileRows);
  const int begin = min(static_cast<int>(threadIdx.x) * share, call.E), end = min(begin + share, call.E);
  int atoms = 0, tiles = 0, total;
  for (int e = begin; e < end; ++e) {
    atoms += atoms_of(call, e);
    tiles += ceil_div(atoms_of(call, e), kTileAtoms) * row_tiles;
  }
  atoms = sum_before(atoms, scratch, total);
  __syncthreads();
  tiles = sum_before(tiles, scratch, total);
  for (int e = begin; e < end; ++e) {
    before[e] = tiles, atoms_before[e] = atoms;
    atoms += atoms_of(call, e);
    tiles += ceil_div(atoms_of(call, e), kTileAtoms) * row_tiles;
    if (e + 1 == call.E) before[call.E] = tiles, atoms_before[call.E] = atoms;
  }
  __syncthreads();
}

// The ring: a stage is full when its copies have come, empty when every consumer warp has read it.
struct Ring {
  std::byte* stages;
  uint64_t *full, *empty;
  int stage = 0;
  unsigned parity = 0;

  __device__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
  __device__ std::byte* data() const { return stages + stage * kStageBytes; }
};

// One thread: copies the activations of every tile of this block.
__device__ void produce(const ExpertCall& call, const Rounded& rounded, const Tiles& tiles, Ring ring) {
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
  int groups, group;  // of a row; of this lane in piece 0

  __device__ LaneWeights(const ExpertCall& call, int e, int n, int q) : groups(call.K / 32), group(q) {
    const std::byte* matrix = call.weight + e * call.matrix_bytes;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t index = static_cast<int64_t>(min(n + i, call.N - 1)) * groups + q;
      codes[i] = matrix + index * 16;
      scales[i] = matrix + static_cast<int64_t>(call.N) * call.K / 2 + index;
    }
  }
  __device__ __forceinline__ void load(PieceShare& share, int piece) const {
    const bool there = piece * 4 + group < groups;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if ((piece + kPrefetched) * 4 + group < groups) prefetch(codes[i] + (piece + kPrefetched) * 64);
      share.codes[i] = there ? load_once(codes[i] + piece * 64) : make_uint4(0, 0, 0, 0);
      share.scales[i] =
          there ? static_cast<unsigned>(__ldg(reinterpret_cast<const uint8_t*>(scales[i]) + piece * 4)) : 0;
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

__device__ __forceinline__ void release(const Ring& ring) {
  __syncwarp();  // every lane has seen the stage full: another phase may begin
  if (threadIdx.x % kWarp == 0) barrier_arrive(ring.empty + ring.stage);
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
__device__ __forceinline__ void multiply_tile(const ExpertCall& call, const Tile& tile, Ring& ring) {
  const int thread = static_cast<int>(threadIdx.x) - 128, q = thread % 4;
  const int n = tile.row + thread / kWarp * 16 + thread % kWarp / 4 * 2;  // and n + 1: rows g and g + 8 of the fragment
  const LaneWeights weights(call, tile.e, n, q);
  const int pieces = ceil_div(call.K, kPiece);
  PieceShare share, next;
  weights.load(share, 0);
  float sums[kTileAtoms * 4];
  uint32_t a[2][2][4];
  Ring last = ring;
  const int width = __shfl_sync(kAllLanes, (tile.atoms - 1) / 4, 0);  // visibly the same in all lanes
  for (int piece = 0; piece < pieces; ++piece) {
    weights.load(next, piece + 1);
    barrier_wait(ring.full + ring.stage, ring.parity);
    const uint64_t x = k_major_descriptor(ring.data());
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      wgmma_wait<1>();  // what read a[i % 2] has retired
      if (i == 1 && piece > 0) release(last);
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
  release(last);
  if (n >= call.N) return;
  const float2 bias = bias_pair(call, tile.e, n);
#pragma unroll
  for (int i = 0; i < kTileAtoms * 2; ++i) {
    const int column = i / 2 * 8 + 2 * q + i % 2, at = i / 2 * 4 + i % 2;
    if (column < tile.count) write_pair(call, n, tile.first + column, sums[at] + bias.x, sums[at + 2] + bias.y);
  }
}

// A warpgroup past the last output row only lets the ring go on.
__device__ void skip_tile(const ExpertCall& call, Ring& ring) {
  for (int piece = 0; piece < ceil_div(call.K, kPiece); ++piece, ring.advance()) {
    barrier_wait(ring.full + ring.stage, ring.parity);
    release(ring);
  }
}

__device__ void consume(const ExpertCall& call, const Tiles& tiles, Ring ring) {
  const int rows_before = (static_cast<int>(threadIdx.x) / 128 - 1) * 64;
  int e = 0;
  for (int index = static_cast<int>(blockIdx.x); index < tiles.before[call.E]; index += static_cast<int>(gridDim.x)) {
    const Tile tile = tiles.at(call, index, e);
    if (tile.row + rows_before >= call.N) skip_tile(call, ring);
    else multiply_tile(call, tile, ring);
  }
}

__host__ __device__ constexpr int64_t shared_bytes(int E) {
  return kStages * (kStageBytes + 2 * 8) + kThreads / kWarp * 4 + 2 * (int64_t{E} + 1) * 4;
}

__global__ void __launch_bounds__(kThreads, 1) prefill_kernel(ExpertCall call, Rounded rounded) {
  after_previous();
  std::byte* memory = dynamic_shared<std::byte>();
  Ring ring{};
  ring.stages = memory;
  ring.full = reinterpret_cast<uint64_t*>(memory + kStages * kStageBytes);
  ring.empty = ring.full + kStages;
  int* scratch = reinterpret_cast<int*>(ring.empty + kStages);
  int* before = scratch + kThreads / kWarp;
  int* atoms_before = before + call.E + 1;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) barrier_init(ring.full + s, 1), barrier_init(ring.empty + s, kConsumers * 4);
    fence_barrier_init();
  }
  list_tiles(call, before, atoms_before, scratch);
  const Tiles tiles{before, atoms_before};
  if (threadIdx.x < 128) {
    give_registers<40>();
    if (threadIdx.x == 0) produce(call, rounded, tiles, ring);
  } else {
    take_registers<232>();
    consume(call, tiles, ring);
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
  launch(prefill_kernel, static_cast<unsigned>(grid), kThreads, static_cast<size_t>(shared_bytes(call.E)), stream, call,
         rounded);
}

}  // namespace moesaic::cuda
