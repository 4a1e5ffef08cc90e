#include "kernels/cpu/attention.h"

#include <cmath>
#include <span>

#include "ir/rope.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/rows.h"

namespace moesaic::cpu {
namespace {

constexpr int64_t kSpreadTokens = 32;  // steps of so many tokens or fewer spread long ranges of keys over threads
constexpr int64_t kTileTokens = 64;    // most tokens that share one copy of a ring

int64_t align64(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// ---- rope

const char* refuse_table(const OpDesc& desc, const DeviceInfo&) {
  return desc.out(0).type.dtype == DType::f32 ? nullptr : "activations must be f32";
}

int64_t table_workspace(const OpDesc& desc, const DeviceInfo&) {
  return desc.attrs.integer(Attr::head_dim) / 2 * static_cast<int64_t>(sizeof(float));
}

// The angle is a float32 product, as the reference models compute it; its cosine and sine are rounded once.
void rope_table(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  const int64_t half = desc.attrs.integer(Attr::head_dim) / 2;
  const std::span frequencies(reinterpret_cast<float*>(workspace), static_cast<size_t>(half));
  rope_frequencies(RopeConfig::from(desc.attrs), frequencies);
  const double factor = desc.attrs.number(Attr::attention_factor);
  const auto ratio = static_cast<int32_t>(desc.attrs.integer(Attr::ratio, 1));
  for_ranges(stream, args.now.tokens, 8, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int32_t position = args.batch->positions[t] / ratio * ratio;
      float* out = args.output<float>(0) + t * half * 2;
      for (float frequency : frequencies) {
        const auto angle = static_cast<double>(static_cast<float>(position) * frequency);
        *out++ = static_cast<float>(std::cos(angle) * factor);
        *out++ = static_cast<float>(std::sin(angle) * factor);
      }
    }
  });
}

const char* refuse_rope(const OpDesc& desc, const DeviceInfo& device) {
  const bool whole = 2 * desc.in(1).type.dim(1).factor == desc.attrs.integer(Attr::head_dim);
  if (!whole || desc.attrs.has(Attr::interleaved) || desc.attrs.has(Attr::inverse))
    return "rotates part of a head, interleaved pairs or backwards";
  return refuse_types(desc, device);
}

void rope(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t heads = desc.attrs.integer(Attr::heads), half = desc.attrs.integer(Attr::head_dim) / 2;
  const int64_t width = 2 * heads * half;
  const Isa isa = cpu_isa();
  for_ranges(stream, args.now.tokens, row_grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      rope_heads(isa, args.input<float>(0) + t * width, args.input<float>(1) + t * half * 2, heads, half,
                 args.output<float>(0) + t * width);
  });
}

// ---- gqa

// The parts of a thread's scratch, and of the states that a spread step keeps between its two passes.
struct GqaWorkspace {
  int64_t states, scratch, ring, per_thread, spread;  // bytes

  GqaWorkspace(const OpDesc& desc, int64_t tokens) {
    const int64_t D = desc.attrs.integer(Attr::head_dim), kv_heads = desc.attrs.integer(Attr::kv_heads);
    const int64_t group = desc.attrs.integer(Attr::heads) / kv_heads, window = desc.attrs.integer(Attr::window);
    const int64_t state = kMaxSplits * SoftmaxState::floats(group, D) * static_cast<int64_t>(sizeof(float));
    states = align64(state);
    scratch = align64(attention_scratch_floats(group, D) * static_cast<int64_t>(sizeof(float)));
    ring = align64(2 * window * D * dtype_bytes(desc.cache_dtype));
    per_thread = states + scratch + ring;
    spread = window > 0 ? 0 : std::min(tokens, kSpreadTokens) * kv_heads * state;
  }
};

// One launch: where everything lies.
struct Gqa {
  const OpDesc& desc;
  const Args& args;
  std::byte* workspace;
  Stream& stream;
  const Isa isa = cpu_isa();
  const int64_t heads = desc.attrs.integer(Attr::heads), kv_heads = desc.attrs.integer(Attr::kv_heads);
  const int64_t D = desc.attrs.integer(Attr::head_dim), window = desc.attrs.integer(Attr::window);
  const int64_t group = heads / kv_heads, tokens = args.now.tokens;
  const float scale = desc.attrs.real(Attr::scale);
  const KvLayout layout{kv_heads, D, window > 0 ? window : kBlockTokens, desc.cache_dtype};
  const KvLayout ring_copy{1, D, window, desc.cache_dtype};
  const GqaWorkspace sizes{desc, tokens};

  int64_t position(int64_t t) const { return args.batch->positions[t]; }
  int64_t sequence(int64_t t) const { return args.batch->sequence_of[t]; }
  const float* q(int64_t t, int64_t kv_head) const {
    return args.input<float>(0) + t * heads * D + kv_head * group * D;
  }
  const float* kv(int which, int64_t t, int64_t kv_head) const {
    return args.input<float>(1 + which) + (t * kv_heads + kv_head) * D;
  }
  float* out(int64_t t, int64_t kv_head) const { return args.output<float>(0) + t * heads * D + kv_head * group * D; }
  const float* sinks(int64_t kv_head) const {
    return desc.inputs.size() > 3 ? args.input<float>(3) + kv_head * group : nullptr;
  }
  std::byte* block(int64_t t, int64_t b) const {
    return args.cache.block(args.batch->block_tables[sequence(t) * args.batch->max_blocks + b]);
  }
  std::byte* ring(int64_t t) const { return args.cache.slot(args.batch->state_slots[sequence(t)]); }

  std::byte* of_thread(int thread) const { return workspace + thread * sizes.per_thread; }
  float* states(int thread) const { return reinterpret_cast<float*>(of_thread(thread)); }
  float* scratch(int thread) const { return reinterpret_cast<float*>(of_thread(thread) + sizes.states); }
  std::byte* ring_of_thread(int thread) const { return of_thread(thread) + sizes.states + sizes.scratch; }
  // States of a spread step: [kv_heads, tokens, kMaxSplits].
  float* spread_states(int64_t t, int64_t kv_head) const {
    return reinterpret_cast<float*>(of_thread(stream.pool->threads())) +
           (kv_head * tokens + t) * kMaxSplits * SoftmaxState::floats(group, D);
  }

  // Rows that token t sees, and their blocks of 64.
  int64_t rows(int64_t t) const { return window > 0 ? std::min(position(t) + 1, window) : position(t) + 1; }
  int64_t blocks(int64_t t) const { return (rows(t) + kBlockTokens - 1) / kBlockTokens; }
  int64_t splits(int64_t t) const { return split_count(blocks(t)); }

  AttentionBlock view(int64_t t, int64_t kv_head, const std::byte* keys, const std::byte* values, int64_t b) const {
    const int64_t first = b * kBlockTokens;
    const int64_t held = window > 0 ? std::min<int64_t>(kBlockTokens, window - first) : kBlockTokens;
    return {.q = q(t, kv_head),
            .group = group,
            .D = D,
            .scale = scale,
            .keys = keys,
            .values = values,
            .rows = held,
            .count = std::min<int64_t>(kBlockTokens, rows(t) - first),
            .dtype = layout.dtype};
  }

  // Split `split` of token t over the pool's blocks, or over a ring of one head.
  void attend_pool(int64_t t, int64_t kv_head, int64_t split, float* state_at, float* scratch_at) const {
    const SoftmaxState state = SoftmaxState::at(state_at, group);
    clear(state, group, D);
    const int64_t n = blocks(t), count = splits(t);
    for (int64_t b = n * split / count; b < n * (split + 1) / count; ++b) {
      std::byte* base = block(t, b);
      attend_block(isa, view(t, kv_head, layout.keys(base, kv_head), layout.values(base, kv_head), b), state,
                   scratch_at);
    }
  }
  void attend_ring(int64_t t, int64_t kv_head, int64_t split, const std::byte* keys, const std::byte* values,
                   float* state_at, float* scratch_at) const {
    const SoftmaxState state = SoftmaxState::at(state_at, group);
    clear(state, group, D);
    const int64_t n = blocks(t), count = splits(t), row_bytes = D * dtype_bytes(layout.dtype);
    for (int64_t b = n * split / count; b < n * (split + 1) / count; ++b) {
      const int64_t offset = b * kBlockTokens * row_bytes;
      attend_block(isa, view(t, kv_head, keys + offset, values + offset, b), state, scratch_at);
    }
  }
  void merge(int64_t t, int64_t kv_head, const float* states_at) const {
    merge_splits(isa, states_at, splits(t), sinks(kv_head), group, D, out(t, kv_head));
  }
};

// Layers that see everything: append the step's keys, then attend to the pool alone.
void append_to_pool(const Gqa& gqa) {
  for_ranges(gqa.stream, gqa.tokens, row_grain(4 * gqa.kv_heads * gqa.D), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      std::byte* base = gqa.block(t, gqa.position(t) / kBlockTokens);
      for (int64_t head = 0; head < gqa.kv_heads; ++head)
        append_row(gqa.layout, gqa.layout.keys(base, head), gqa.layout.values(base, head),
                   gqa.position(t) % kBlockTokens, gqa.kv(0, t, head), gqa.kv(1, t, head));
    }
  });
}

void attend_whole(const Gqa& gqa) {
  gqa.stream.pool->run(gqa.tokens * gqa.kv_heads, [&](int64_t i, int thread) {
    const int64_t t = i % gqa.tokens, kv_head = i / gqa.tokens;  // neighbours read the same head's keys
    float* states = gqa.states(thread);
    for (int64_t s = 0; s < gqa.splits(t); ++s)
      gqa.attend_pool(t, kv_head, s, states + s * SoftmaxState::floats(gqa.group, gqa.D), gqa.scratch(thread));
    gqa.merge(t, kv_head, states);
  });
}

// The same sums with every split a task of its own: for few tokens with long histories.
void attend_spread(const Gqa& gqa) {
  gqa.stream.pool->run(gqa.tokens * gqa.kv_heads * kMaxSplits, [&](int64_t i, int thread) {
    const int64_t s = i % kMaxSplits, t = i / kMaxSplits % gqa.tokens, kv_head = i / kMaxSplits / gqa.tokens;
    if (s >= gqa.splits(t)) return;
    gqa.attend_pool(t, kv_head, s, gqa.spread_states(t, kv_head) + s * SoftmaxState::floats(gqa.group, gqa.D),
                    gqa.scratch(thread));
  });
  gqa.stream.pool->run(gqa.tokens * gqa.kv_heads, [&](int64_t i, int) {
    gqa.merge(i % gqa.tokens, i / gqa.tokens, gqa.spread_states(i % gqa.tokens, i / gqa.tokens));
  });
}

void attend_pool(const Gqa& gqa) {
  append_to_pool(gqa);
  int64_t splits = 1;
  for (int64_t t = 0; t < std::min(gqa.tokens, kSpreadTokens); ++t) splits = std::max(splits, gqa.splits(t));
  if (gqa.tokens > kSpreadTokens || splits == 1 || gqa.stream.pool->threads() == 1) return attend_whole(gqa);
  attend_spread(gqa);
}

// Layers with a window. A chunk overwrites rows that its own first tokens still see, so tiles of tokens work on copies
// of the ring, each as it was before the tile; afterwards the chunk's last tokens go into the ring itself.
struct Run {
  int64_t begin, end;              // tokens of one sequence within a tile
  int64_t chunk_begin, chunk_end;  // all tokens of that sequence in this step
};

Run next_run(const Gqa& gqa, int64_t begin, int64_t tile_end) {
  const int32_t* chunk = gqa.args.batch->sequence_offsets + gqa.sequence(begin);
  return {begin, std::min<int64_t>(tile_end, chunk[1]), chunk[0], chunk[1]};
}

// The ring of one head as it was before token run.begin.
void copy_ring(const Gqa& gqa, const Run& run, int64_t kv_head, std::byte* keys, std::byte* values) {
  const int64_t position = gqa.position(run.begin), since = run.begin - run.chunk_begin;
  if (since < std::min(position, gqa.window)) {
    std::memcpy(keys, gqa.layout.keys(gqa.ring(run.begin), kv_head), static_cast<size_t>(gqa.layout.head_bytes()));
    std::memcpy(values, gqa.layout.values(gqa.ring(run.begin), kv_head), static_cast<size_t>(gqa.layout.head_bytes()));
  }
  for (int64_t t = run.begin - std::min(since, gqa.window); t < run.begin; ++t)
    append_row(gqa.ring_copy, keys, values, gqa.position(t) % gqa.window, gqa.kv(0, t, kv_head), gqa.kv(1, t, kv_head));
}

void attend_run(const Gqa& gqa, const Run& run, int64_t kv_head, int thread) {
  std::byte *keys = gqa.ring_of_thread(thread), *values = keys + gqa.layout.head_bytes();
  if (run.chunk_end - run.chunk_begin == 1) {  // nothing to lose: straight into the ring
    keys = gqa.layout.keys(gqa.ring(run.begin), kv_head), values = gqa.layout.values(gqa.ring(run.begin), kv_head);
  } else {
    copy_ring(gqa, run, kv_head, keys, values);
  }
  float* states = gqa.states(thread);
  for (int64_t t = run.begin; t < run.end; ++t) {
    append_row(gqa.ring_copy, keys, values, gqa.position(t) % gqa.window, gqa.kv(0, t, kv_head), gqa.kv(1, t, kv_head));
    for (int64_t s = 0; s < gqa.splits(t); ++s)
      gqa.attend_ring(t, kv_head, s, keys, values, states + s * SoftmaxState::floats(gqa.group, gqa.D),
                      gqa.scratch(thread));
    gqa.merge(t, kv_head, states);
  }
}

// The last `window` tokens of each chunk, except the single tokens that attend_run has appended.
void append_to_rings(const Gqa& gqa) {
  for_ranges(gqa.stream, gqa.tokens, row_grain(4 * gqa.kv_heads * gqa.D), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const Run run = next_run(gqa, t, end);
      if (run.chunk_end - run.chunk_begin == 1 || t < run.chunk_end - gqa.window) continue;
      for (int64_t head = 0; head < gqa.kv_heads; ++head)
        append_row(gqa.layout, gqa.layout.keys(gqa.ring(t), head), gqa.layout.values(gqa.ring(t), head),
                   gqa.position(t) % gqa.window, gqa.kv(0, t, head), gqa.kv(1, t, head));
    }
  });
}

void attend_rings(const Gqa& gqa) {
  const int64_t wanted = 4 * gqa.stream.pool->threads();  // tasks, so that threads finish together
  const int64_t tile = std::clamp<int64_t>(gqa.tokens * gqa.kv_heads / wanted, 1, kTileTokens);
  const int64_t tiles = (gqa.tokens + tile - 1) / tile;
  gqa.stream.pool->run(tiles * gqa.kv_heads, [&](int64_t i, int thread) {
    const int64_t tile_end = std::min(gqa.tokens, (i % tiles + 1) * tile);
    for (int64_t t = i % tiles * tile; t < tile_end;) {
      const Run run = next_run(gqa, t, tile_end);
      attend_run(gqa, run, i / tiles, thread);
      t = run.end;
    }
  });
  append_to_rings(gqa);
}

const char* refuse_gqa(const OpDesc& desc, const DeviceInfo&) {
  if (desc.cache_dtype != DType::f32 && desc.cache_dtype != DType::bf16) return "the cache must be f32 or bf16";
  if (desc.attrs.integer(Attr::head_dim) % kKeyGroup != 0) return "head_dim must be a multiple of 16";
  if (desc.rotate() != Rotate::none) return "rotations come before it";
  return refuse_types(desc);
}

int64_t gqa_workspace(const OpDesc& desc, const DeviceInfo& device) {
  const GqaWorkspace sizes(desc, desc.bounds.tokens);
  return sizes.per_thread * device.threads + sizes.spread;
}

void gqa(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  if (args.now.tokens == 0) return;
  const Gqa launch{desc, args, workspace, stream};
  launch.window > 0 ? attend_rings(launch) : attend_pool(launch);
}

}  // namespace

const Kernel kRopeTable{.name = "rope_table.cpu",
                        .op = Op::rope_table,
                        .backend = Backend::cpu,
                        .refuse = refuse_table,
                        .workspace_bytes = table_workspace,
                        .launch = rope_table};
const Kernel kRope{.name = "rope.cpu", .op = Op::rope, .backend = Backend::cpu, .refuse = refuse_rope, .launch = rope};
const Kernel kGqa{.name = "gqa.cpu",
                  .op = Op::gqa,
                  .backend = Backend::cpu,
                  .refuse = refuse_gqa,
                  .workspace_bytes = gqa_workspace,
                  .launch = gqa};

}  // namespace moesaic::cpu
