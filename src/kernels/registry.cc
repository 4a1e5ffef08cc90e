#include <algorithm>

#include "kernels/kernel.h"

namespace moesaic {
namespace {

double elements(const ValueType& type, const Bounds& now) {
  double n = 1;
  for (Dim d : type.dims) n *= static_cast<double>(now.of(d));
  return n;
}

double operand_bytes(const OperandDesc& operand, const Bounds& now) {
  const double n = elements(operand.type, now);
  if (!operand.is_weight) return n * static_cast<double>(dtype_bytes(operand.type.dtype));
  if (operand.format == Format::mxfp4) return n / 2 + n / 32;
  if (operand.format == Format::int4) return n / 2 + n / 16;
  if (operand.format == Format::fp8) return n + 4 * n / static_cast<double>(operand.scale_rows * operand.scale_cols);
  return n * static_cast<double>(dtype_bytes(operand.stored));
}

// Expected share of experts that `routed` rows, spread evenly, reach.
double reached(double routed, double experts) {
  return std::min(1.0, routed / experts);
}

double flops(const OpDesc& desc, const Bounds& now) {
  switch (desc.op) {
    case Op::linear:
    case Op::grouped_linear:
      return 2 * elements(desc.out(0).type, now) * static_cast<double>(desc.in(1).type.dim(1).factor);
    case Op::expert_linear:
      return 2 * elements(desc.out(0).type, now) * static_cast<double>(desc.in(3).type.dim(2).factor);
    case Op::mla_absorb: return 2 * elements(desc.out(0).type, now) * desc.attrs.number(Attr::nope_dim);
    case Op::mla_up: return 2 * elements(desc.out(0).type, now) * static_cast<double>(desc.in(1).type.dim(1).factor);
    case Op::expert_swiglu:
      return 4 * elements(desc.out(0).type, now) * static_cast<double>(desc.in(3).type.dim(2).factor);
    case Op::short_conv:
      return 2 * elements(desc.out(0).type, now) * static_cast<double>(desc.in(1).type.dim(2).factor);
    case Op::kda: return 7 * elements(desc.out(0).type, now) * desc.attrs.number(Attr::head_dim);
    default: return elements(desc.out(0).type, now);
  }
}

}  // namespace

Cost op_cost(const OpDesc& desc, const Bounds& now) {
  Cost cost;
  for (const OperandDesc& in : desc.inputs) {
    double bytes = operand_bytes(in, now);
    if (in.is_weight && in.kind == WeightKind::embedding)
      bytes *= static_cast<double>(now.tokens) / static_cast<double>(in.type.dim(0).factor);
    if (in.is_weight && in.kind == WeightKind::experts)
      bytes *=
          reached(static_cast<double>(now.of(desc.out(0).type.dim(0))), static_cast<double>(in.type.dim(0).factor));
    (in.is_weight ? cost.weight_bytes : cost.activation_bytes) += bytes;
  }
  for (const OperandDesc& out : desc.outputs) cost.activation_bytes += operand_bytes(out, now);
  cost.flops = flops(desc, now);
  return cost;
}

const Registry& registry_of(Backend backend) {
  static const Registry kRef = [] {
    Registry r;
    register_ref(r);
    return r;
  }();
  static const Registry kCpu = [] {
    Registry r;
    register_cpu(r);
    return r;
  }();
  static const Registry kCuda = [] {
    Registry r;
    register_cuda(r);
    return r;
  }();
  return backend == Backend::ref ? kRef : backend == Backend::cpu ? kCpu : kCuda;
}

}  // namespace moesaic
