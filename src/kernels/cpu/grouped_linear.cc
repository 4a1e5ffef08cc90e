// grouped_linear: group g of the weight's rows times group g of the input's channels.
#include <algorithm>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/widen.h"

namespace moesaic::cpu {
namespace {

struct Groups {
  const OpDesc& desc;
  const Args& args;
  const int64_t count = desc.attrs.integer(Attr::groups), rows = desc.in(1).type.dim(0).factor;
  const int64_t N = rows / count, K = width_of(desc.in(1)), M = args.now.of(desc.in(0).type.dim(0));

  GemmRows x(int64_t group) const { return {args.input<float>(0) + group * K, count * K, nullptr, M}; }
};

const char* refuse(const OpDesc& desc) {
  const bool whole = desc.in(1).type.dim(0).factor / desc.attrs.integer(Attr::groups) % 16 == 0;
  return whole ? refuse_types(desc) : "rows of a group must be a multiple of 16";
}

const char* refuse_packed(const OpDesc& desc, const DeviceInfo&) {
  const OperandDesc& w = desc.in(1);
  const bool plain = w.stored == DType::bf16 || w.stored == DType::f16 || w.stored == DType::f32;
  if (w.format != Format::mxfp4 && (w.format != Format::plain || !plain))
    return "weight is not BF16, F16, F32 or MXFP4";
  return refuse(desc);
}

int64_t packed_workspace(const OpDesc& desc, const DeviceInfo& device) {
  return device.threads * scratch_bytes(width_of(desc.in(1)));
}

void launch_packed(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  const Groups g{desc, args};
  const GemmMatrix w{args.in[1], gemm_format(desc.in(1)), g.rows, g.K};
  const int64_t step = std::min(g.N, task_rows(g.rows, gemm_matrix_bytes(w.format, 1, g.K), stream.pool->threads()));
  const int64_t tasks = (g.N + step - 1) / step;  // of one group
  if (g.M == 0) return;
  stream.pool->run(g.count * tasks, [&](int64_t i, int thread) {
    const int64_t group = i / tasks, begin = group * g.N + i % tasks * step,
                  end = std::min(begin + step, (group + 1) * g.N);
    gemm_f32(gemm_kernels(cpu_isa()), w, begin, end, g.x(group), nullptr, args.output<float>(0), g.rows,
             workspace + thread * scratch_bytes(g.K));
  });
}

const char* refuse_widened(const OpDesc& desc, const DeviceInfo&) {
  return is_widened_format(desc.in(1)) ? refuse(desc) : "weight is neither FP8 with block scales nor INT4";
}

int64_t widened_bytes(int64_t K) {
  return panel_bytes(K) + scratch_bytes(K);
}

int64_t widened_workspace(const OpDesc& desc, const DeviceInfo& device) {
  return device.threads * widened_bytes(width_of(desc.in(1)));
}

void launch_widened(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  const Groups g{desc, args};
  if (g.M == 0) return;
  stream.pool->run(g.rows / 16, [&](int64_t block, int thread) {
    std::byte* scratch = workspace + thread * widened_bytes(g.K);
    widen_rows(wide_matrix(desc.in(1), args.in[1], 0), block * 16, 16, reinterpret_cast<float*>(scratch));
    gemm_f32(gemm_kernels(cpu_isa()), {scratch, GemmFormat::f32, 16, g.K}, 0, 16, g.x(block * 16 / g.N), nullptr,
             args.output<float>(0) + block * 16, g.rows, scratch + panel_bytes(g.K));
  });
}

}  // namespace

const Kernel kGroupedLinear{.name = "grouped_linear.cpu",
                            .op = Op::grouped_linear,
                            .backend = Backend::cpu,
                            .refuse = refuse_packed,
                            .layout = packed_weight<1>,
                            .workspace_bytes = packed_workspace,
                            .launch = launch_packed};
const Kernel kGroupedLinearWiden{.name = "grouped_linear.widen.cpu",
                                 .op = Op::grouped_linear,
                                 .backend = Backend::cpu,
                                 .refuse = refuse_widened,
                                 .workspace_bytes = widened_workspace,
                                 .launch = launch_widened};

}  // namespace moesaic::cpu
