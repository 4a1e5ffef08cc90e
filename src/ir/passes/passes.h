// Passes that need no target: each rewrites the graph into one that computes the same.
#pragma once

#include "ir/graph.h"

namespace moesaic {

// Recomputes all types, for example after reading a graph from text.
void infer_shapes(Graph& graph);
// moe -> router linear, route, dispatch, expert_linear, clamped_swiglu, expert_linear, combine.
void expand_moe(Graph& graph);
// mla -> mla_absorb, mla_attend, mla_up: attention on cached latents, without keys and values of every head.
void fold_mla(Graph& graph);
// add followed by rms_norm of the sum -> add_rms_norm, which writes both.
void fuse_add_norm(Graph& graph);
// expert_linear followed by clamped_swiglu -> expert_swiglu: the wide intermediate is never stored.
void fuse_expert_swiglu(Graph& graph);
// Rotations of q and k that feed attention alone -> its `rotate`: q and k are read once, and keys go to the cache
// turned. For backends whose attention kernels turn.
void fuse_rope(Graph& graph);
// Inputs of MXFP4 expert products -> quantize, once per value.
void quantize_experts(Graph& graph);
// Linears of one value stand side by side where they were close, so that one launch may do them all.
void gather_linears(Graph& graph);

}  // namespace moesaic
