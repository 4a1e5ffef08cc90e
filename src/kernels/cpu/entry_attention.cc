// entry_attend: one shared key, which is also the value, per token of the window and per compressed entry. The rows a
// token sees are copied into blocks of 64, window first and in ascending order, and attended to as in gqa: what a block
// holds follows from the token's position (and the entries chosen for it) alone.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/rows.h"
#include "quant/bf16.h"

namespace moesaic::cpu {
namespace {

constexpr int64_t kSpreadTokens = 32;  // steps of so many tokens or fewer spread their splits over threads

int64_t align64(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}
int64_t float_bytes(int64_t count) {
  return align64(count * static_cast<int64_t>(sizeof(float)));
}

// The parts of a thread's scratch, in bytes, and the states that a spread step keeps between its two passes.
struct EntryWorkspace {
  int64_t state, states, scratch, keys, per_thread, spread;

  EntryWorkspace(const OpDesc& desc, int64_t tokens) {
    const int64_t D = desc.attrs.integer(Attr::head_dim), heads = desc.attrs.integer(Attr::heads);
    state = SoftmaxState::floats(heads, D);
    states = float_bytes(kMaxSplits * state);
    scratch = float_bytes(attention_scratch_floats(heads, D));
    keys = float_bytes(kBlockTokens * D);
    per_thread = states + scratch + 2 * keys + float_bytes(D);
    spread = std::min(tokens, kSpreadTokens) * states;
  }
};

// Rows of the cache in its element type.
struct RowFormat {
  int64_t D;
  DType dtype;  // f32 or bf16

  int64_t bytes() const { return D * dtype_bytes(dtype); }
  void write(const float* x, std::byte* row) const {
    if (dtype == DType::f32) return void(std::memcpy(row, x, static_cast<size_t>(bytes())));
    for (int64_t d = 0; d < D; ++d) reinterpret_cast<uint16_t*>(row)[d] = float_to_bf16(x[d]);
  }
  // The row as floats: in place, or in `wide`.
  const float* read(const std::byte* row, float* wide) const {
    if (dtype == DType::f32) return reinterpret_cast<const float*>(row);
    for (int64_t d = 0; d < D; ++d) wide[d] = bf16_to_float(reinterpret_cast<const uint16_t*>(row)[d]);
    return wide;
  }
  // What read() would give of a row once it is written.
  const float* as_cached(const float* x, float* rounded) const {
    if (dtype == DType::f32) return x;
    for (int64_t d = 0; d < D; ++d) rounded[d] = bf16_to_float(float_to_bf16(x[d]));
    return rounded;
  }
};

// One launch. The slot holds the ring of the window, position p in row p % window; blocks hold the entries.
struct EntryAttend {
  const OpDesc& desc;
  const Args& args;
  std::byte* workspace;
  Stream& stream;
  const Isa isa = cpu_isa();
  const int64_t heads = desc.attrs.integer(Attr::heads), D = desc.attrs.integer(Attr::head_dim);
  const int64_t window = desc.attrs.integer(Attr::window), ratio = desc.attrs.integer(Attr::ratio, 0);
  const int64_t tokens = args.now.tokens;
  const RowFormat format{D, desc.cache_dtype};
  const KvLayout block_layout{1, D, kBlockTokens, DType::f32};
  const EntryWorkspace sizes{desc, tokens};

  int64_t position(int64_t t) const { return args.batch->positions[t]; }
  int64_t sequence(int64_t t) const { return args.batch->sequence_of[t]; }
  int64_t step_begin(int64_t t) const { return position(t) - (t - args.batch->sequence_offsets[sequence(t)]); }
  const float* kv(int64_t t) const { return args.input<float>(1) + t * D; }
  const float* q(int64_t t) const { return args.input<float>(0) + t * heads * D; }
  float* out(int64_t t) const { return args.output<float>(0) + t * heads * D; }

  std::byte* ring_row(int64_t t, int64_t p) const {
    return args.cache.slot(args.batch->state_slots[sequence(t)]) + p % window * format.bytes();
  }
  std::byte* entry_row(int64_t t, int64_t entry) const {
    const EntryPlace place = entry_place(entry, ratio);
    const int32_t block = args.batch->block_tables[sequence(t) * args.batch->max_blocks + place.block];
    return args.cache.block(block) + place.row * format.bytes();
  }

  std::byte* of_thread(int thread) const { return workspace + thread * sizes.per_thread; }
  float* states(int thread) const { return reinterpret_cast<float*>(of_thread(thread)); }
  float* spread_states(int64_t t) const {
    return reinterpret_cast<float*>(of_thread(stream.pool->threads()) + t * sizes.states);
  }

  int64_t recent(int64_t t) const { return std::min(position(t) + 1, window); }
  const int32_t* chosen(int64_t t) const {
    return desc.inputs.size() > 4 ? args.input<int32_t>(4) + t * desc.in(4).type.dim(1).factor : nullptr;
  }
  int64_t entries(int64_t t) const {
    if (ratio == 0) return 0;
    if (chosen(t) == nullptr) return (position(t) + 1) / ratio;
    const int64_t n = desc.in(4).type.dim(1).factor;
    return std::find_if(chosen(t), chosen(t) + n, [](int32_t e) { return e < 0; }) - chosen(t);
  }
  int64_t rows(int64_t t) const { return recent(t) + entries(t); }
  static int64_t blocks(int64_t rows) { return (rows + kBlockTokens - 1) / kBlockTokens; }

  // The i-th row that token t sees.
  const float* row(int64_t t, int64_t i, float* wide) const {
    if (i >= recent(t)) {
      const int64_t e = i - recent(t);
      return format.read(entry_row(t, chosen(t) != nullptr ? chosen(t)[e] : e), wide);
    }
    const int64_t p = position(t) - recent(t) + 1 + i;
    return p >= step_begin(t) ? format.as_cached(kv(t - (position(t) - p)), wide) : format.read(ring_row(t, p), wide);
  }

  void attend_split(int64_t t, int64_t n, int64_t split, int thread, float* state_at) const {
    const SoftmaxState state = SoftmaxState::at(state_at, heads);
    clear(state, heads, D);
    auto* scratch = reinterpret_cast<float*>(of_thread(thread) + sizes.states);
    std::byte *keys = of_thread(thread) + sizes.states + sizes.scratch, *values = keys + sizes.keys;
    auto* wide = reinterpret_cast<float*>(values + sizes.keys);
    const int64_t count = split_count(blocks(n));
    for (int64_t b = blocks(n) * split / count; b < blocks(n) * (split + 1) / count; ++b) {
      const int64_t first = b * kBlockTokens, held = std::min<int64_t>(kBlockTokens, n - first);
      for (int64_t i = 0; i < held; ++i) {
        const float* k = row(t, first + i, wide);
        append_row(block_layout, keys, values, i, k, k);
      }
      attend_block(isa,
                   {.q = q(t),
                    .group = heads,
                    .D = D,
                    .scale = desc.attrs.real(Attr::scale),
                    .keys = keys,
                    .values = values,
                    .rows = kBlockTokens,
                    .count = held,
                    .dtype = DType::f32},
                   state, scratch);
    }
  }
  void merge(int64_t t, const float* states_at) const {
    merge_splits(isa, states_at, split_count(blocks(rows(t))), args.input<float>(2), heads, D, out(t));
  }
};

void append_entries(const EntryAttend& a) {
  for_ranges(a.stream, a.tokens, row_grain(2 * a.D), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      if ((a.position(t) + 1) % a.ratio == 0)
        a.format.write(a.args.input<float>(3) + t * a.D, a.entry_row(t, a.position(t) / a.ratio));
  });
}

void append_to_rings(const EntryAttend& a) {
  for_ranges(a.stream, a.tokens, row_grain(2 * a.D), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      if (t >= a.args.batch->sequence_offsets[a.sequence(t) + 1] - a.window)
        a.format.write(a.kv(t), a.ring_row(t, a.position(t)));
  });
}

void attend_whole(const EntryAttend& a) {
  a.stream.pool->run(a.tokens, [&](int64_t t, int thread) {
    const int64_t n = a.rows(t);
    for (int64_t s = 0; s < split_count(EntryAttend::blocks(n)); ++s)
      a.attend_split(t, n, s, thread, a.states(thread) + s * a.sizes.state);
    a.merge(t, a.states(thread));
  });
}

// The same sums with every split a task of its own: for few tokens.
void attend_spread(const EntryAttend& a) {
  a.stream.pool->run(a.tokens * kMaxSplits, [&](int64_t i, int thread) {
    const int64_t t = i / kMaxSplits, s = i % kMaxSplits, n = a.rows(t);
    if (s < split_count(EntryAttend::blocks(n)))
      a.attend_split(t, n, s, thread, a.spread_states(t) + s * a.sizes.state);
  });
  a.stream.pool->run(a.tokens, [&](int64_t t, int) { a.merge(t, a.spread_states(t)); });
}

const char* refuse(const OpDesc& desc, const DeviceInfo& device) {
  if (desc.cache_dtype != DType::f32 && desc.cache_dtype != DType::bf16) return "the cache must be f32 or bf16";
  if (desc.attrs.integer(Attr::head_dim) % kKeyGroup != 0) return "head_dim must be a multiple of 16";
  return refuse_types(desc, device);
}

int64_t workspace_bytes(const OpDesc& desc, const DeviceInfo& device) {
  const EntryWorkspace sizes(desc, desc.bounds.tokens);
  return sizes.per_thread * device.threads + sizes.spread;
}

void entry_attend(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  if (args.now.tokens == 0) return;
  const EntryAttend launch{desc, args, workspace, stream};
  if (launch.ratio > 0) append_entries(launch);
  launch.tokens <= kSpreadTokens ? attend_spread(launch) : attend_whole(launch);
  append_to_rings(launch);
}

}  // namespace

const Kernel kEntryAttend{.name = "entry_attend.cpu",
                          .op = Op::entry_attend,
                          .backend = Backend::cpu,
                          .refuse = refuse,
                          .workspace_bytes = workspace_bytes,
                          .launch = entry_attend};

}  // namespace moesaic::cpu
