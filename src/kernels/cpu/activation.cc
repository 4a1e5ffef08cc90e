#include "kernels/cpu/activation.h"

#include <limits>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/rows.h"

namespace moesaic::cpu {

#define LANES_BODY "kernels/cpu/activation_lanes.inc"
#include "kernels/cpu/for_each_isa.inc"

void clamped_swiglu_rows(Isa isa, const float* h, int64_t pairs, float limit, float alpha, float* out) {
  if (!(limit > 0)) limit = std::numeric_limits<float>::infinity();
  switch (isa) {
    case Isa::scalar: return scalar::swiglu_loop(h, pairs, limit, alpha, out);
    case Isa::avx2: return avx2::swiglu_loop(h, pairs, limit, alpha, out);
    case Isa::avx512: return avx512::swiglu_loop(h, pairs, limit, alpha, out);
  }
}

void clamped_swiglu_rows(const float* h, int64_t pairs, float limit, float alpha, float* out) {
  clamped_swiglu_rows(cpu_isa(), h, pairs, limit, alpha, out);
}

float exp_one(float x) {
  switch (cpu_isa()) {
    case Isa::scalar: return scalar::exp_first(x);
    case Isa::avx2: return avx2::exp_first(x);
    case Isa::avx512: break;
  }
  return avx512::exp_first(x);
}

namespace {

void clamped_swiglu(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t pairs = rows_of(desc.out(0), args.now) * width_of(desc.out(0));
  const float limit = desc.attrs.real(Attr::limit), alpha = desc.attrs.real(Attr::alpha);
  for_ranges(stream, pairs, 4096, [&](int64_t begin, int64_t end) {
    clamped_swiglu_rows(args.input<float>(0) + 2 * begin, end - begin, limit, alpha, args.output<float>(0) + begin);
  });
}

}  // namespace

const Kernel kClampedSwiglu{.name = "clamped_swiglu.cpu",
                            .op = Op::clamped_swiglu,
                            .backend = Backend::cpu,
                            .refuse = refuse_types,
                            .launch = clamped_swiglu};

}  // namespace moesaic::cpu
