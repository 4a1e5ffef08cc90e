// Checkpoints of random numbers in the published layout of a model's weights, for tests and measurements.
#pragma once

#include <filesystem>

#include "base/progress.h"
#include "base/thread_pool.h"
#include "ir/graph.h"

namespace moesaic {

// Bytes of all tensors that write_random_checkpoint() writes for a graph, without headers.
int64_t random_checkpoint_bytes(const Graph& graph);

struct SynthResult {
  int64_t tensors = 0, files = 0, bytes = 0;
};

// Writes the tensors that bind_weights() finds complete: MXFP4 experts as U8 `_blocks` and `_scales`, other experts
// BF16 [E, K, N], everything else BF16; weights that may be tied to another are left out. Norms are 1, other vectors
// normal with deviation 0.1, matrices with 1/sqrt(K), embeddings with 1; scales are never NaN. The numbers of a tensor
// depend on its name and `seed` alone. One file model.safetensors, or shards of at most `shard_bytes` (one tensor
// at least) with an index; memory use is bounded. Formats come from `graph` (assume_formats).
SynthResult write_random_checkpoint(const Graph& graph, const std::filesystem::path& directory, uint64_t seed,
                                    int64_t shard_bytes, ThreadPool& pool, Progress& progress);

}  // namespace moesaic
