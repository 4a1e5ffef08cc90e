// mla_attend: softmax attention over cached latents, all positions or a chosen few. Rows are taken in order, cut into
// blocks of 64 and splits that follow from their number alone; so a choice of every position gives the bits of no
// choice, and no result depends on the rest of the step.
#include <algorithm>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/mla.h"
#include "kernels/cpu/rows.h"
#include "quant/bf16.h"

namespace moesaic::cpu {
namespace {

constexpr int64_t kHeadGroup = 16;   // heads of a task: each row is read once for them
constexpr int64_t kSpreadTasks = 4;  // with fewer tasks per thread than that, long ranges are spread by split
constexpr int64_t kPositionInput = 3;

int64_t align64(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

struct AttendWorkspace {
  int64_t state, states, scores, per_thread, spread;  // bytes; `state` is one split's

  AttendWorkspace(const OpDesc& desc, int threads) {
    const int64_t group = std::min(kHeadGroup, desc.attrs.integer(Attr::heads));
    const auto float_bytes = static_cast<int64_t>(sizeof(float));
    state = SoftmaxState::floats(group, desc.in(1).type.dim(1).factor) * float_bytes;
    states = align64(kMaxSplits * state);
    scores = align64(group * kBlockTokens * float_bytes);
    per_thread = states + scores;
    spread = threads == 1 ? 0 : kSpreadTasks * threads * states;
  }
};

struct Attend {
  const OpDesc& desc;
  const Args& args;
  std::byte* workspace;
  Stream& stream;
  const Isa isa = cpu_isa();
  const int64_t heads = desc.attrs.integer(Attr::heads), rope = desc.attrs.integer(Attr::rope_dim);
  const int64_t L = desc.in(1).type.dim(1).factor, groups = (heads + kHeadGroup - 1) / kHeadGroup;
  const int64_t chosen = desc.inputs.size() > kPositionInput ? desc.in(kPositionInput).type.dim(1).factor : 0;
  const int64_t tasks = args.now.tokens * groups, row_bytes = (L + rope) * dtype_bytes(desc.cache_dtype);
  const AttendWorkspace sizes{desc, stream.pool->threads()};

  std::byte* row(int64_t t, int64_t position) const {
    const BatchView& batch = *args.batch;
    const int64_t entry = batch.sequence_of[t] * batch.max_blocks + position / kBlockTokens;
    return args.cache.block(batch.block_tables[entry]) + position % kBlockTokens * row_bytes;
  }

  // The positions that token t attends to, in order: visit(position) for those from number `first` to `last`.
  template <typename Visit>
  void visit_positions(int64_t t, int64_t first, int64_t last, Visit visit) const {
    const int64_t own = args.batch->positions[t];
    if (desc.inputs.size() <= kPositionInput) {
      for (int64_t p = first; p < std::min(last, own + 1); ++p) visit(p);
      return;
    }
    const int32_t* list = args.input<int32_t>(kPositionInput) + t * chosen;
    for (int64_t i = 0, number = 0; i < chosen && number < last; ++i) {
      if (list[i] < 0 || list[i] > own) continue;  // none, or not written yet
      if (number++ >= first) visit(list[i]);
    }
  }
  int64_t row_count(int64_t t) const {
    if (desc.inputs.size() <= kPositionInput) return args.batch->positions[t] + 1;
    int64_t count = 0;
    visit_positions(t, 0, chosen, [&](int64_t) { ++count; });
    return count;
  }

  int64_t first_head(int64_t group) const { return group * kHeadGroup; }
  int64_t group_heads(int64_t group) const { return std::min(kHeadGroup, heads - first_head(group)); }
  float* states(int thread) const { return reinterpret_cast<float*>(workspace + thread * sizes.per_thread); }
  float* scores(int thread) const {
    return reinterpret_cast<float*>(workspace + thread * sizes.per_thread + sizes.states);
  }
  float* spread_states(int64_t task) const {
    return reinterpret_cast<float*>(workspace + stream.pool->threads() * sizes.per_thread + task * sizes.states);
  }
  int64_t state_floats(int64_t group) const { return SoftmaxState::floats(group_heads(group), L); }

  // Rows of split `split` of `splits`, where token t has `count` of them.
  void attend_split(int64_t t, int64_t group, int64_t count, int64_t split, int64_t splits, float* state_at,
                    float* scores_at) const {
    const int64_t n = group_heads(group), blocks = (count + kBlockTokens - 1) / kBlockTokens;
    const SoftmaxState state = SoftmaxState::at(state_at, n);
    clear(state, n, L);
    const std::byte* rows[kBlockTokens];
    LatentBlock block{.q = args.input<float>(0) + (t * heads + first_head(group)) * (L + rope),
                      .group = n,
                      .L = L,
                      .rope = rope,
                      .scale = desc.attrs.real(Attr::scale),
                      .rows = rows,
                      .count = 0,
                      .dtype = desc.cache_dtype};
    const auto flush = [&] {
      if (block.count > 0) attend_latents(isa, block, state, scores_at);
      block.count = 0;
    };
    visit_positions(t, blocks * split / splits * kBlockTokens, blocks * (split + 1) / splits * kBlockTokens,
                    [&](int64_t position) {
                      rows[block.count++] = row(t, position);
                      if (block.count == kBlockTokens) flush();
                    });
    flush();
  }
  void merge(int64_t t, int64_t group, int64_t splits, const float* states_at) const {
    float* out = args.output<float>(0) + (t * heads + first_head(group)) * L;
    if (splits == 0) std::fill_n(out, group_heads(group) * L, 0.0f);  // an empty choice
    if (splits > 0) merge_splits(isa, states_at, splits, nullptr, group_heads(group), L, out);
  }
};

int64_t splits_of(int64_t rows) {
  return split_count((rows + kBlockTokens - 1) / kBlockTokens);
}

void append_row(const float* from, int64_t n, DType dtype, std::byte* to) {
  if (dtype == DType::f32) {
    std::copy_n(from, n, reinterpret_cast<float*>(to));
    return;
  }
  std::transform(from, from + n, reinterpret_cast<uint16_t*>(to), [](float x) { return float_to_bf16(x); });
}

void append(const Attend& a) {
  for_ranges(a.stream, a.args.now.tokens, row_grain(a.L + a.rope), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      std::byte* to = a.row(t, a.args.batch->positions[t]);
      append_row(a.args.input<float>(1) + t * a.L, a.L, a.desc.cache_dtype, to);
      append_row(a.args.input<float>(2) + t * a.rope, a.rope, a.desc.cache_dtype,
                 to + a.L * dtype_bytes(a.desc.cache_dtype));
    }
  });
}

void attend_whole(const Attend& a) {
  a.stream.pool->run(a.tasks, [&](int64_t task, int thread) {
    const int64_t t = task / a.groups, group = task % a.groups, count = a.row_count(t), splits = splits_of(count);
    float* states = a.states(thread);
    for (int64_t s = 0; s < splits; ++s)
      a.attend_split(t, group, count, s, splits, states + s * a.state_floats(group), a.scores(thread));
    a.merge(t, group, splits, states);
  });
}

// The same sums with every split a task of its own: for few tokens with long histories.
void attend_spread(const Attend& a) {
  a.stream.pool->run(a.tasks * kMaxSplits, [&](int64_t i, int thread) {
    const int64_t task = i / kMaxSplits, split = i % kMaxSplits, t = task / a.groups, group = task % a.groups;
    const int64_t count = a.row_count(t), splits = splits_of(count);
    if (split >= splits) return;
    a.attend_split(t, group, count, split, splits, a.spread_states(task) + split * a.state_floats(group),
                   a.scores(thread));
  });
  a.stream.pool->run(a.tasks, [&](int64_t task, int) {
    const int64_t t = task / a.groups, group = task % a.groups;
    a.merge(t, group, splits_of(a.row_count(t)), a.spread_states(task));
  });
}

const char* refuse(const OpDesc& desc, const DeviceInfo& device) {
  if (desc.cache_dtype != DType::f32 && desc.cache_dtype != DType::bf16) return "the cache must be f32 or bf16";
  if (desc.in(1).type.dim(1).factor % 16 != 0) return "kv_lora_rank must be a multiple of 16";
  if (desc.rotate() != Rotate::none) return "rotations come before it";
  return refuse_types(desc, device);
}

int64_t workspace_bytes(const OpDesc& desc, const DeviceInfo& device) {
  const AttendWorkspace sizes(desc, device.threads);
  return sizes.per_thread * device.threads + sizes.spread;
}

void launch(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  if (args.now.tokens == 0) return;
  const Attend attend{desc, args, workspace, stream};
  append(attend);
  const int threads = stream.pool->threads();
  threads > 1 && attend.tasks <= kSpreadTasks* threads ? attend_spread(attend) : attend_whole(attend);
}

}  // namespace

const Kernel kMlaAttend{.name = "mla_attend.cpu",
                        .op = Op::mla_attend,
                        .backend = Backend::cpu,
                        .refuse = refuse,
                        .workspace_bytes = workspace_bytes,
                        .launch = launch};

}  // namespace moesaic::cpu
