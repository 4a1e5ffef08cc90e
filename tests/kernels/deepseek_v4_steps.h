// Random sequences for compress and entry_attend.
#pragma once

#include "kernels/state_steps.h"

namespace moesaic {

struct CompressSize {
  int64_t ratio;
  bool overlap;
  int64_t D;
};
StateData random_compress(Rng& rng, const CompressSize& size, const std::vector<int64_t>& lengths);
Attrs compress_attrs(const CompressSize& size);

struct EntrySize {
  int64_t heads, D, window;
  int64_t ratio = 0;   // 0: no entries
  int64_t chosen = 0;  // > 0: so many of the visible entries at most, ascending; 0: all
  DType cache = DType::f32;
};
struct EntryData {
  EntrySize size;
  AttentionData places;  // lengths, cache blocks and slots
  TestOperand sinks;
  struct Sequence {
    std::vector<double> q, kv, entries;  // [length, heads * D], [length, D] twice
    std::vector<int32_t> positions;      // [length, chosen]
  };
  std::vector<Sequence> sequences;
};
EntryData random_entries(Rng& rng, const EntrySize& size, const std::vector<int64_t>& lengths);
KernelCase entry_case(const std::string& name, const EntryData& data, const std::vector<std::vector<Chunk>>& steps);

}  // namespace moesaic
