#include <limits>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/lanes.h"

namespace moesaic::cpu {

#define LANES_BODY "kernels/cpu/attention_lanes.inc"
#include "kernels/cpu/for_each_isa.inc"

namespace {

// Channel d of a row lies d * width elements behind channel 0, where width is that of the row's group.
template <typename Key>
void append_as(const KvLayout& layout, Key* keys, Key* values, int64_t row, const float* k, const float* v,
               Key (*convert)(float)) {
  const int64_t start = row / kKeyGroup * kKeyGroup, width = std::min(kKeyGroup, layout.rows - start);
  Key* key = keys + start * layout.D + row % kKeyGroup;
  Key* value = values + row * layout.D;
  for (int64_t d = 0; d < layout.D; ++d) {
    key[d * width] = convert(k[d]);
    value[d] = convert(v[d]);
  }
}

}  // namespace

void append_row(const KvLayout& layout, std::byte* keys, std::byte* values, int64_t row, const float* k,
                const float* v) {
  if (layout.dtype == DType::bf16) {
    append_as<uint16_t>(layout, reinterpret_cast<uint16_t*>(keys), reinterpret_cast<uint16_t*>(values), row, k, v,
                        [](float x) { return float_to_bf16(x); });
  } else {
    append_as<float>(layout, reinterpret_cast<float*>(keys), reinterpret_cast<float*>(values), row, k, v,
                     [](float x) { return x; });
  }
}

void clear(const SoftmaxState& state, int64_t group, int64_t D) {
  std::fill_n(state.largest, group, -std::numeric_limits<float>::infinity());
  std::fill_n(state.total, group, 0.0f);
  std::fill_n(state.values, group * D, 0.0f);
}

void attend_block(Isa isa, const AttentionBlock& block, const SoftmaxState& state, float* scratch) {
  switch (isa) {
    case Isa::scalar: return scalar::attend_block(block, state, scratch);
    case Isa::avx2: return avx2::attend_block(block, state, scratch);
    case Isa::avx512: return avx512::attend_block(block, state, scratch);
  }
}

void merge_splits(Isa isa, const float* states, int64_t splits, const float* sinks, int64_t group, int64_t D,
                  float* out) {
  constexpr decltype(&scalar::merge_head) kMerge[] = {scalar::merge_head, avx2::merge_head, avx512::merge_head};
  for (int64_t h = 0; h < group; ++h)
    kMerge[static_cast<int>(isa)](states, splits, SoftmaxState::floats(group, D),
                                  sinks != nullptr ? sinks + h : nullptr, group, h, D, out + h * D);
}

void rope_heads(Isa isa, const float* x, const float* table, int64_t heads, int64_t half, float* y) {
  constexpr decltype(&scalar::rope_head) kRopeHead[] = {scalar::rope_head, avx2::rope_head, avx512::rope_head};
  for (int64_t h = 0; h < heads; ++h) kRopeHead[static_cast<int>(isa)](x + 2 * h * half, table, half, y + 2 * h * half);
}

}  // namespace moesaic::cpu
