// full_attention: every patch of an image sees every other. Keys and transposed values are packed once per head
// (weights/layout.h's rows16, as gemm.h reads it); then blocks of queries take two matrix products with a softmax
// between. A query's result does not depend on the others.
#include <limits>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/rows.h"

namespace moesaic::cpu {

#define LANES_BODY "kernels/cpu/softmax.inc"
#include "kernels/cpu/for_each_isa.inc"

namespace {

constexpr int64_t kQueries = 32;  // of one task

int64_t aligned(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

struct Sizes {
  int64_t heads, D;
  int64_t most;  // tokens of the largest step

  explicit Sizes(const OpDesc& desc)
      : heads(desc.attrs.integer(Attr::heads)), D(desc.attrs.integer(Attr::head_dim)), most(desc.bounds.tokens) {}
  int64_t packed_bytes() const { return aligned(most * D * 4); }  // of one head's keys, or of its values
  int64_t score_stride() const { return (most + kLanes - 1) / kLanes * kLanes; }
  int64_t scratch_bytes() const { return aligned(static_cast<int64_t>(gemm_scratch_bytes(std::max(most, D)))); }
  int64_t thread_bytes() const { return aligned(kQueries * score_stride() * 4) + scratch_bytes(); }
};

int64_t workspace_bytes(const OpDesc& desc, const DeviceInfo& device) {
  const Sizes s(desc);
  return 2 * s.heads * s.packed_bytes() + device.threads * s.thread_bytes();
}

// Packs element (n, k) of a matrix [N, K] found at from[n * row_step + k * column_step].
void pack(const float* from, int64_t N, int64_t K, int64_t row_step, int64_t column_step, float* to) {
  for (int64_t first = 0; first < N; first += 16) {
    const int64_t rows = std::min<int64_t>(16, N - first);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t k = 0; k < K; ++k)
        to[first * K + (rows == 16 ? k * 16 + r : r * K + k)] = from[(first + r) * row_step + k * column_step];
  }
}

float soften_row(float* scores, int64_t count) {
  float largest = -std::numeric_limits<float>::infinity(), total = 0;
  switch (cpu_isa()) {
    case Isa::scalar: scalar::soften(scores, count, largest, total); break;
    case Isa::avx2: avx2::soften(scores, count, largest, total); break;
    case Isa::avx512: avx512::soften(scores, count, largest, total); break;
  }
  return total;
}

void launch(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  const Sizes s(desc);
  const int64_t T = args.now.tokens, width = s.heads * s.D, blocks = (T + kQueries - 1) / kQueries;
  const float scale = desc.attrs.real(Attr::scale);
  const auto keys = [&](int64_t head) { return reinterpret_cast<float*>(workspace + head * s.packed_bytes()); };
  const auto values = [&](int64_t head) { return keys(s.heads + head); };
  if (T == 0) return;
  stream.pool->run(s.heads, [&](int64_t head, int) {
    pack(args.input<float>(1) + head * s.D, T, s.D, width, 1, keys(head));
    pack(args.input<float>(2) + head * s.D, s.D, T, 1, width, values(head));
  });
  const GemmKernels& kernels = gemm_kernels(cpu_isa());
  stream.pool->run(s.heads * blocks, [&](int64_t task, int thread) {
    const int64_t head = task / blocks, first = task % blocks * kQueries, count = std::min(kQueries, T - first);
    std::byte* own = workspace + 2 * s.heads * s.packed_bytes() + thread * s.thread_bytes();
    auto* scores = reinterpret_cast<float*>(own + s.scratch_bytes());
    const GemmRows q{args.input<float>(0) + first * width + head * s.D, width, nullptr, count};
    gemm_f32(kernels, {reinterpret_cast<std::byte*>(keys(head)), GemmFormat::f32, T, s.D}, 0, T, q, nullptr, scores,
             s.score_stride(), own);
    float totals[kQueries];
    for (int64_t i = 0; i < count; ++i) {
      float* row = scores + i * s.score_stride();
      for (int64_t k = 0; k < T; ++k) row[k] *= scale;
      totals[i] = soften_row(row, T);
    }
    float* out = args.output<float>(0) + first * width + head * s.D;
    gemm_f32(kernels, {reinterpret_cast<std::byte*>(values(head)), GemmFormat::f32, s.D, T}, 0, s.D,
             {scores, s.score_stride(), nullptr, count}, nullptr, out, width, own);
    for (int64_t i = 0; i < count; ++i)
      for (int64_t d = 0; d < s.D; ++d) out[i * width + d] /= totals[i];
  });
}

}  // namespace

const Kernel kFullAttention{.name = "full_attention.cpu",
                            .op = Op::full_attention,
                            .backend = Backend::cpu,
                            .refuse = refuse_types,
                            .workspace_bytes = workspace_bytes,
                            .launch = launch};

}  // namespace moesaic::cpu
