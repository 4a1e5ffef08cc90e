// WeightSpec: a weight the graph needs, by its Hugging Face name; and how a checkpoint turned out to store it.
#pragma once

#include <string>

#include "base/dtype.h"
#include "base/shape.h"

namespace moesaic {

// How a weight is read, which decides the checkpoint names and layouts it may come in (weights/bind.cc).
enum class WeightKind : uint8_t {
  vector,     // norms, biases, sinks: any rank, converted to the activation type at load
  matrix,     // [N, K], multiplies activations
  embedding,  // [vocab, hidden], rows are looked up
  experts,    // [E, N, K]
  table,      // ids to look up, i32 in memory (hash routing: [vocab, k])
};

// Numbers of a weight as stored: plain elements of a dtype, or a block format.
enum class Format : uint8_t {
  plain,
  mxfp4,  // E2M1 codes, an E8M0 scale per 32 elements along K
  fp8,    // E4M3 elements [N, K], a float32 multiplier per block of scale_rows x scale_cols
  int4,   // q + 8 in 4 bits, a bf16 multiplier per 32 elements along K (compressed-tensors pack-quantized)
};

// Order of a weight's bytes in device memory. A kernel names the layout it reads; packing into it permutes bits and
// never widens them (weights/layout.h).
enum class Layout : uint8_t {
  row_major,  // as the tensor's shape says; block formats: per matrix [N, K] all codes, then all scales
  rows16,     // 16 output rows interleaved, for SIMD lanes
};

struct WeightSpec {
  std::string name;  // Hugging Face name: "model.layers.0.self_attn.q_proj.weight"
  WeightKind kind = WeightKind::vector;
  Shape shape;
  std::string fallback;  // another tensor that serves when `name` is absent (tied embeddings, other spellings)
  // experts: `name` with "{}" for the expert's number, or one tensor for all. A stack or vector that some exporters
  // fuse with another, as rows: its tensor, and which part of how many this weight is.
  std::string fused;
  int fused_part = 0, fused_parts = 1;
  bool padded = false;  // vector: the tensor may be longer, its first elements count

  // Set by binding to a checkpoint, or assumed from the config where there is none.
  Format format = Format::plain;
  DType dtype = DType::none;  // of plain elements
  // fp8: the grid of scales is [ceil(N / scale_rows), ceil(K / scale_cols)]; 128 x 128, or 1 x 32 for MXFP8.
  int64_t scale_rows = 0, scale_cols = 0;
};

// Scales of one matrix [N, K] of an fp8 weight.
int64_t fp8_scale_count(const WeightSpec& weight);
// Bytes of one matrix [N, K] of a weight; a stack is so many of them.
int64_t matrix_bytes(const WeightSpec& weight);
// Bytes of the weight's numbers in its format, as the checkpoint stores them.
int64_t weight_bytes(const WeightSpec& weight);
// "bf16", "mxfp4"
std::string format_name(const WeightSpec& weight);

}  // namespace moesaic
