// Partition: which part of every weight, value and cache of a graph each of N ranks holds. Attention and dense layers
// are split by heads and by columns (tensor parallelism), routed experts by ownership; the rest is on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph.h"
#include "weights/shard.h"

namespace moesaic {

enum class Split : uint8_t {
  replicated,  // whole on every rank
  rows,        // outputs: N of a matrix [N, K], the first dimension of a vector
  columns,     // inputs (the last dimension): the ranks' products must be added up; a bias is added once
  experts,     // the first dimension of a stack
};

struct WeightPart {
  Split split = Split::replicated;
  std::vector<Slice> slices;  // by rank, along the split dimension; empty when replicated

  // The split dimension; -1 when replicated.
  int dim(const WeightSpec& weight) const;
  // Shape of what `rank` holds of the weight.
  Shape shape(const WeightSpec& weight, int rank) const;
};

// A share of something that consists of equal units (heads, columns): of a value's last dimension, of a cache's bytes.
struct Share {
  int64_t units = 0;          // 0: whole on every rank
  std::vector<Slice> slices;  // by rank, in units
  // Exact: n is a multiple of `units`.
  int64_t of(int64_t n, int rank) const {
    return units == 0 ? n : n / units * slices[static_cast<size_t>(rank)].size();
  }
};

struct Partition {
  int ranks = 1;
  std::vector<WeightPart> weights;  // in the order of Graph::weights
  std::vector<Share> values;        // by Value::id
  std::vector<Share> caches;        // in the order of Graph::caches
};

// Divides a graph, before or after the compiler's passes. Slices along K never cut a block of a format: groups of 32 in
// MXFP4, blocks of scale_cols in FP8. What an op without a rule for splitting reads stays whole. With more ranks than
// key-value heads, ranks that share a head each hold it; every other element of a split weight has one owner.
Partition partition(const Graph& graph, int ranks);

// Bytes that `rank` holds of a weight, in its format.
int64_t part_bytes(const WeightSpec& weight, const WeightPart& part, int rank);

// The graph with the shapes of one rank's weights and values, to plan its memory. Attributes still describe the whole
// model. Where a rank owns fewer experts than a token is sent to, routed rows are those that can reach it.
Graph rank_shapes(const Graph& graph, const Partition& partition, int rank);

}  // namespace moesaic
