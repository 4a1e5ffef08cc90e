// index_topk by exact scores. A block of the cache holds its 64 keys (or 64 / ratio entries) in groups of 16, each
// [D][16].
#include <algorithm>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/index.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/rows.h"

namespace moesaic::cpu {
namespace {

struct IndexQuery {
  const float* q;        // [heads, D]
  const float* weights;  // [heads]
  int64_t heads, D;
  float scale;
  DType dtype;  // of the keys: f32 or bf16
};

}  // namespace

#define LANES_BODY "kernels/cpu/index_lanes.inc"
#include "kernels/cpu/for_each_isa.inc"

namespace {

struct KeyCache {
  const Args& args;
  int64_t D;
  DType dtype;
  int64_t ratio;  // tokens of a key: the last of them has it

  std::byte* block(int64_t t, int64_t position) const {
    const BatchView& batch = *args.batch;
    return args.cache.block(batch.block_tables[batch.sequence_of[t] * batch.max_blocks + position / kBlockTokens]);
  }
  void append(int64_t t, const float* key) const {
    const int64_t position = args.batch->positions[t], row = position % kBlockTokens / ratio;
    if ((position + 1) % ratio != 0) return;
    const int64_t at = row / kKeyGroup * kKeyGroup * D + row % kKeyGroup;
    std::byte* base = block(t, position);
    for (int64_t d = 0; d < D; ++d) {
      if (dtype == DType::bf16) reinterpret_cast<uint16_t*>(base)[at + d * kKeyGroup] = float_to_bf16(key[d]);
      if (dtype == DType::f32) reinterpret_cast<float*>(base)[at + d * kKeyGroup] = key[d];
    }
  }
};

const char* refuse(const OpDesc& desc, const DeviceInfo& device) {
  if (desc.attrs.has(Attr::hash_bits)) return "chooses by exact scores, not by hash";
  if (desc.cache_dtype != DType::f32 && desc.cache_dtype != DType::bf16) return "the cache must be f32 or bf16";
  if (kBlockTokens % (kKeyGroup * desc.attrs.integer(Attr::ratio, 1)) != 0) return "ratio must be 1, 2 or 4";
  return refuse_types(desc, device);
}

void launch(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  constexpr decltype(&scalar::index_scores) kScores[] = {scalar::index_scores, avx2::index_scores,
                                                         avx512::index_scores};
  const auto index_scores = kScores[static_cast<int>(cpu_isa())];
  const int64_t heads = desc.attrs.integer(Attr::heads), D = desc.attrs.integer(Attr::head_dim);
  const KeyCache cache{args, D, desc.cache_dtype, desc.attrs.integer(Attr::ratio, 1)};
  for_ranges(stream, args.now.tokens, row_grain(4 * D), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) cache.append(t, args.input<float>(1) + t * D);
  });
  const auto begin_token = [](int64_t, int) {};
  const auto score = [&](int64_t t, int64_t first, int64_t count, float* scores, int) {
    const IndexQuery query{.q = args.input<float>(0) + t * heads * D,
                           .weights = args.input<float>(2) + t * heads,
                           .heads = heads,
                           .D = D,
                           .scale = desc.attrs.real(Attr::scale),
                           .dtype = desc.cache_dtype};
    index_scores(query, cache.block(t, first * cache.ratio), (count + kKeyGroup - 1) / kKeyGroup, scores);
  };
  select_positions(desc, args, workspace, stream, begin_token, score);
}

}  // namespace

const Kernel kIndexTopk{.name = "index_topk.cpu",
                        .op = Op::index_topk,
                        .backend = Backend::cpu,
                        .refuse = refuse,
                        .workspace_bytes = select_workspace,
                        .launch = launch};

}  // namespace moesaic::cpu
