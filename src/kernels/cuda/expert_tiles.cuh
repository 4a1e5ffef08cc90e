// How expert products for many rows are cut: routed rows stand in atoms of eight (of wgmma's swizzle), each expert
// begins one of its own; tiles of output rows times atoms go to persistent blocks, whose producer thread fills a ring
// of stages that the consumers' warps empty.
#pragma once

#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace moesaic::cuda {

constexpr int kAtomRows = 8;    // routed rows in one swizzle atom of 1024 bytes
constexpr int kTileRows = 128;  // output rows of a tile, 64 a warpgroup
constexpr int kConsumers = 2, kTileThreads = 128 * (1 + kConsumers);

// Atoms of all experts, at most.
inline int64_t most_atoms(int64_t E, int64_t R) {
  return R / kAtomRows + experts_reached(E, R);
}
__device__ __forceinline__ int atoms_of(const ExpertCall& call, int e) {
  return (call.offsets[e + 1] - call.offsets[e] + kAtomRows - 1) / kAtomRows;
}

// The routed rows of one atom; `rows` may be more than its eight. None: there is no such atom.
struct AtomRows {
  int first, rows;
  bool there;
};
// All threads of a block of kThreads.
template <int kThreads>
__device__ __forceinline__ AtomRows find_atom(const ExpertCall& call, int atom) {
  __shared__ int scratch[kThreads / kWarp], found[2];  // the atom's first row and the end of its expert's
  const int share = ceil_div(call.E, kThreads);
  const int begin = min(static_cast<int>(threadIdx.x) * share, call.E), end = min(begin + share, call.E);
  int mine = 0, total;
  for (int e = begin; e < end; ++e) mine += atoms_of(call, e);
  int before = sum_before(mine, scratch, total);
  if (atom >= total) return {0, 0, false};
  for (int e = begin; e < end; ++e) {
    const int count = atoms_of(call, e);
    if (before <= atom && atom < before + count) {
      found[0] = call.offsets[e] + (atom - before) * kAtomRows;
      found[1] = call.offsets[e + 1];
    }
    before += count;
  }
  __syncthreads();
  return {found[0], found[1] - found[0], true};
}

// 128 output rows from `row`, for `count` routed rows from `first`, which begin at `atom`.
struct Tile {
  int e, row, first, count, atom, atoms;
};

// The tiles of all experts in order, those of the same weights side by side; of kAtoms atoms at most.
template <int kAtoms>
struct Tiles {
  const int *before, *atoms_before;  // [E + 1] in shared memory

  // Tile number `index`; `e` is where the search begins and what it finds.
  __device__ Tile at(const ExpertCall& call, int index, int& e) const {
    while (before[e + 1] <= index) ++e;
    const int atoms = atoms_before[e + 1] - atoms_before[e], parts = ceil_div(atoms, kAtoms);
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

// Fills before and atoms_before, [E + 1] each. All threads; ends with a barrier.
template <int kAtoms>
__device__ void list_tiles(const ExpertCall& call, int* before, int* atoms_before, int* scratch) {
  const int share = ceil_div(call.E, kTileThreads), row_tiles = ceil_div(call.N, kTileRows);
  const int begin = min(static_cast<int>(threadIdx.x) * share, call.E), end = min(begin + share, call.E);
  int atoms = 0, tiles = 0, total;
  for (int e = begin; e < end; ++e) {
    atoms += atoms_of(call, e);
    tiles += ceil_div(atoms_of(call, e), kAtoms) * row_tiles;
  }
  atoms = sum_before(atoms, scratch, total);
  __syncthreads();
  tiles = sum_before(tiles, scratch, total);
  for (int e = begin; e < end; ++e) {
    before[e] = tiles, atoms_before[e] = atoms;
    atoms += atoms_of(call, e);
    tiles += ceil_div(atoms_of(call, e), kAtoms) * row_tiles;
    if (e + 1 == call.E) before[call.E] = tiles, atoms_before[call.E] = atoms;
  }
  __syncthreads();
}

// The ring: a stage is full when its copies have come, empty when every consumer warp has read it.
template <int kStages, int kStageBytes>
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
  // By every lane of a consumer's warp.
  __device__ void release() const {
    __syncwarp();  // every lane has seen the stage full: another phase may begin
    if (threadIdx.x % kWarp == 0) barrier_arrive(empty + stage);
  }
  __device__ void wait_full() const { barrier_wait(full + stage, parity); }
};

// A block's shared memory: the ring, its barriers, what list_tiles() writes.
template <int kStages, int kStageBytes>
struct TileMemory {
  Ring<kStages, kStageBytes> ring;
  int *scratch, *before, *atoms_before;

  static __host__ __device__ constexpr int64_t bytes(int E) {
    return kStages * (kStageBytes + 2 * 8) + kTileThreads / kWarp * 4 + 2 * (int64_t{E} + 1) * 4;
  }
  __device__ explicit TileMemory(int E) {
    std::byte* memory = dynamic_shared<std::byte>();
    ring.stages = memory;
    ring.full = reinterpret_cast<uint64_t*>(memory + kStages * kStageBytes);
    ring.empty = ring.full + kStages;
    scratch = reinterpret_cast<int*>(ring.empty + kStages);
    before = scratch + kTileThreads / kWarp;
    atoms_before = before + E + 1;
    if (threadIdx.x != 0) return;
    for (int s = 0; s < kStages; ++s) barrier_init(ring.full + s, 1), barrier_init(ring.empty + s, kConsumers * 4);
    fence_barrier_init();
  }
};

// A warpgroup past the last output row only lets the ring go on.
template <typename RingType>
__device__ void skip_tile(const ExpertCall& call, RingType& ring) {
  for (int piece = 0; piece < ceil_div(call.K, 128); ++piece, ring.advance()) {
    ring.wait_full();
    ring.release();
  }
}

}  // namespace moesaic::cuda
