// mla_absorb, mla_attend and mla_up: multi-head latent attention on the latents themselves. The two products with
// kv_b_proj read it row_major, widened to f32 panels of 16 output rows in scratch.
#include "kernels/cpu/mla.h"

#include <algorithm>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/rows.h"
#include "quant/bf16.h"
#include "quant/fp8.h"

namespace moesaic::cpu {
namespace {

constexpr int64_t kPanelRows = 16;

// ---- kv_b_proj [heads * (nope + v), L]

struct KvB {
  const OperandDesc& weight;
  const std::byte* data;
  int64_t heads, nope, v, rope;
  const int64_t L = weight.type.dim(1).factor;

  KvB(const OpDesc& desc, const Args& args)
      : weight(desc.in(1)),
        data(args.in[1]),
        heads(desc.attrs.integer(Attr::heads)),
        nope(desc.attrs.integer(Attr::nope_dim)),
        v(desc.attrs.integer(Attr::v_dim)),
        rope(desc.attrs.integer(Attr::rope_dim, 0)) {}

  // Columns [begin, begin + count) of one row, each `stride` floats after the one before.
  void widen(int64_t row, int64_t begin, int64_t count, float* out, int64_t stride) const {
    const int64_t at = row * L + begin;
    if (weight.format == Format::fp8) return widen_fp8(row, begin, count, out, stride);
    const auto* halves = reinterpret_cast<const uint16_t*>(data) + at;
    const auto* floats = reinterpret_cast<const float*>(data) + at;
    for (int64_t i = 0; i < count; ++i)
      out[i * stride] = weight.stored == DType::f32    ? floats[i]
                        : weight.stored == DType::bf16 ? bf16_to_float(halves[i])
                                                       : f16_to_float(halves[i]);
  }

 private:
  void widen_fp8(int64_t row, int64_t begin, int64_t count, float* out, int64_t stride) const {
    const int64_t N = weight.type.dim(0).factor, columns = (L + weight.scale_cols - 1) / weight.scale_cols;
    const auto* scales = reinterpret_cast<const float*>(data + (N * L + 3) / 4 * 4) + row / weight.scale_rows * columns;
    for (int64_t i = 0; i < count; ++i)
      out[i * stride] =
          e4m3_to_float(static_cast<uint8_t>(data[row * L + begin + i])) * scales[(begin + i) / weight.scale_cols];
  }
};

const char* refuse_kv_b(const OpDesc& desc, const DeviceInfo& device) {
  const OperandDesc& w = desc.in(1);
  const bool plain =
      w.format == Format::plain && (w.stored == DType::bf16 || w.stored == DType::f16 || w.stored == DType::f32);
  if (!plain && w.format != Format::fp8) return "kv_b_proj must be BF16, F16, F32 or FP8 with block scales";
  if (w.type.dim(1).factor % kPanelRows != 0) return "kv_lora_rank must be a multiple of 16";
  return refuse_types(desc, device);
}

// A panel [K][16] and the product's own scratch, per thread.
int64_t panel_bytes(int64_t K) {
  return (kPanelRows * K * static_cast<int64_t>(sizeof(float)) + 255) / 256 * 256 + scratch_bytes(K);
}

// y[t * y_stride + n] = sum over k of panel[n][k] * x[t * x_stride + k].
void multiply(float* panel, int64_t rows, int64_t K, const GemmRows& x, float* y, int64_t y_stride) {
  const GemmMatrix matrix{reinterpret_cast<const std::byte*>(panel), GemmFormat::f32, rows, K};
  std::byte* scratch = reinterpret_cast<std::byte*>(panel) + panel_bytes(K) - scratch_bytes(K);
  gemm_f32(gemm_kernels(cpu_isa()), matrix, 0, rows, x, nullptr, y, y_stride, scratch);
}

// ---- mla_absorb: per head, latent channel l of the query is the sum over n of q[n] W[n][l]

int64_t absorb_workspace(const OpDesc& desc, const DeviceInfo& device) {
  return device.threads * panel_bytes(desc.attrs.integer(Attr::nope_dim));
}

void absorb(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  const KvB w(desc, args);
  const int64_t T = args.now.tokens, blocks = w.L / kPanelRows;
  const int64_t in_width = w.nope + w.rope, out_width = w.L + w.rope;
  if (T == 0) return;
  stream.pool->run(w.heads * blocks, [&](int64_t i, int thread) {
    const int64_t head = i / blocks, l = i % blocks * kPanelRows;
    auto* panel = reinterpret_cast<float*>(workspace + thread * panel_bytes(w.nope));
    for (int64_t n = 0; n < w.nope; ++n) w.widen(head * (w.nope + w.v) + n, l, kPanelRows, panel + n * kPanelRows, 1);
    multiply(panel, kPanelRows, w.nope, {args.input<float>(0) + head * in_width, w.heads * in_width, nullptr, T},
             args.output<float>(0) + head * out_width + l, w.heads * out_width);
  });
  for_ranges(stream, T * w.heads, row_grain(w.rope), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      std::copy_n(args.input<float>(0) + row * in_width + w.nope, w.rope,
                  args.output<float>(0) + row * out_width + w.L);
  });
}

// ---- mla_up: per head, v channel n is the sum over l of W[nope + n][l] o[l]

int64_t up_workspace(const OpDesc& desc, const DeviceInfo& device) {
  return device.threads * panel_bytes(desc.in(1).type.dim(1).factor);
}

void up(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  const KvB w(desc, args);
  const int64_t T = args.now.tokens, blocks = (w.v + kPanelRows - 1) / kPanelRows;
  if (T == 0) return;
  stream.pool->run(w.heads * blocks, [&](int64_t i, int thread) {
    const int64_t head = i / blocks, n = i % blocks * kPanelRows, rows = std::min(kPanelRows, w.v - n);
    auto* panel = reinterpret_cast<float*>(workspace + thread * panel_bytes(w.L));
    for (int64_t r = 0; r < rows; ++r) {  // fewer than 16 rows are packed row after row
      float* out = rows == kPanelRows ? panel + r : panel + r * w.L;
      w.widen(head * (w.nope + w.v) + w.nope + n + r, 0, w.L, out, rows == kPanelRows ? kPanelRows : 1);
    }
    multiply(panel, rows, w.L, {args.input<float>(0) + head * w.L, w.heads * w.L, nullptr, T},
             args.output<float>(0) + head * w.v + n, w.heads * w.v);
  });
}

}  // namespace

const Kernel kMlaAbsorb{.name = "mla_absorb.cpu",
                        .op = Op::mla_absorb,
                        .backend = Backend::cpu,
                        .refuse = refuse_kv_b,
                        .workspace_bytes = absorb_workspace,
                        .launch = absorb};
const Kernel kMlaUp{.name = "mla_up.cpu",
                    .op = Op::mla_up,
                    .backend = Backend::cpu,
                    .refuse = refuse_kv_b,
                    .workspace_bytes = up_workspace,
                    .launch = up};

}  // namespace moesaic::cpu
