// Expert products on packed stacks (layout rows16), read as they lie: MXFP4 weights are never widened in memory. With
// float32 activations, or (Q8) with int8 activations per 32 channels, quantised once per launch into the workspace.
#include <algorithm>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/products.h"

namespace moesaic::cpu {
namespace {

constexpr int64_t kTileRows = 64;  // routed rows whose products are kept between the two halves of expert_swiglu

struct Shape3 {
  int64_t E, N, K;
  explicit Shape3(const OpDesc& desc)
      : E(desc.in(3).type.dim(0).factor), N(desc.in(3).type.dim(1).factor), K(desc.in(3).type.dim(2).factor) {}
};

int64_t align(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

// How the workspace is cut: active experts, quantised inputs, then per thread the product's scratch and a tile.
struct Parts {
  int64_t active, quantised, scratch, tile, thread_bytes, total;

  Parts(const OpDesc& desc, const Bounds& bounds, bool q8, int threads) {
    const Shape3 s(desc);
    const int64_t rows = task_rows(s.N, gemm_matrix_bytes(gemm_format(desc.in(3)), 1, s.K), 1);
    active = 0;
    quantised = align(s.E * 4);
    scratch = quantised + (q8 ? align(static_cast<int64_t>(q8_bytes(bounds.of(desc.in(0).type.dim(0)), s.K))) : 0);
    tile = scratch_bytes(s.K);
    thread_bytes = tile + align(kTileRows * rows * 4);
    total = scratch + threads * thread_bytes;
  }
};

const char* refuse_exact(const OpDesc& desc, const DeviceInfo&) {
  if (desc.in(0).type.dtype == DType::e4m3) return "activations must be f32";
  const OperandDesc& w = desc.in(3);
  if (w.format == Format::fp8 || w.format == Format::int4) return "expert weights are not packed for lanes";
  const bool known =
      w.format == Format::mxfp4 || w.stored == DType::bf16 || w.stored == DType::f16 || w.stored == DType::f32;
  return known ? nullptr : "expert weights are not MXFP4, BF16, F16 or F32";
}

const char* refuse_q8(const OpDesc& desc, const DeviceInfo&) {
  if (desc.in(0).type.dtype == DType::e4m3) return "activations must be f32";
  if (desc.precision == Precision::float32) return "rounds activations to int8; float32 was asked for";
  return desc.in(3).format == Format::mxfp4 ? nullptr : "expert weights are not MXFP4";
}

template <bool kQ8>
int64_t workspace_bytes(const OpDesc& desc, const DeviceInfo& device) {
  return Parts(desc, desc.bounds, kQ8, device.threads).total;
}

// One launch: tasks are (expert with rows, range of output rows).
template <bool kQ8>
class Launch {
 public:
  Launch(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream)
      : desc_(desc),
        args_(args),
        workspace_(workspace),
        stream_(stream),
        shape_(desc),
        parts_(desc, args.now, kQ8, stream.pool->threads()),
        format_(gemm_format(desc.in(3))),
        row_bytes_(gemm_matrix_bytes(format_, 1, shape_.K)),
        task_(task_rows(shape_.N, row_bytes_, 1)),
        gather_(desc.attrs.integer(Attr::gather) != 0),
        kernels_(gemm_kernels(cpu_isa())) {}

  void run() {
    const int64_t active = list_active();
    if (active == 0) return;
    if (kQ8) quantise();
    const int64_t tasks = (shape_.N + task_ - 1) / task_;
    stream_.pool->run(active * tasks, [&](int64_t i, int thread) {
      const int64_t begin = i % tasks * task_;
      multiply(reinterpret_cast<const int32_t*>(workspace_)[i / tasks], begin, std::min(begin + task_, shape_.N),
               thread);
    });
  }

 private:
  int64_t list_active() {
    const int32_t* offsets = args_.input<int32_t>(2);
    int64_t active = 0;
    for (int64_t e = 0; e < shape_.E; ++e)
      if (offsets[e + 1] > offsets[e]) reinterpret_cast<int32_t*>(workspace_)[active++] = static_cast<int32_t>(e);
    return active;
  }

  Q8Group* groups() const { return reinterpret_cast<Q8Group*>(workspace_ + parts_.quantised); }

  void quantise() {
    constexpr int64_t kRows = 8;
    const int64_t rows = args_.now.of(desc_.in(0).type.dim(0));
    stream_.pool->run((rows + kRows - 1) / kRows, [&](int64_t i, int) {
      quantize_q8(kernels_, args_.input<float>(0), shape_.K, i * kRows, std::min((i + 1) * kRows, rows), shape_.K,
                  groups());
    });
  }

  void multiply(int64_t e, int64_t begin, int64_t end, int thread) {
    const int32_t* offsets = args_.input<int32_t>(2);
    // Rows of 16-row blocks are contiguous, so a range of them is a matrix of its own.
    const GemmMatrix w{args_.in[3] + (e * shape_.N + begin) * row_bytes_, format_, end - begin, shape_.K};
    const float* bias = desc_.inputs.size() > 4 ? args_.input<float>(4) + e * shape_.N + begin : nullptr;
    std::byte* scratch = workspace_ + parts_.scratch + thread * parts_.thread_bytes;
    for (int64_t r = offsets[e]; r < offsets[e + 1]; r += kTileRows)
      multiply_tile(w, bias, r, std::min<int64_t>(kTileRows, offsets[e + 1] - r), begin, scratch);
  }

  void multiply_tile(const GemmMatrix& w, const float* bias, int64_t r, int64_t count, int64_t begin,
                     std::byte* scratch) {
    float* y = args_.output<float>(0);
    if (desc_.op == Op::expert_linear) return product(w, bias, r, count, y + r * shape_.N + begin, shape_.N, scratch);
    float* tile = reinterpret_cast<float*>(scratch + parts_.tile);
    product(w, bias, r, count, tile, w.N, scratch);
    for (int64_t m = 0; m < count; ++m)
      clamped_swiglu_rows(tile + m * w.N, w.N / 2, desc_.attrs.real(Attr::limit), desc_.attrs.real(Attr::alpha),
                          y + (r + m) * (shape_.N / 2) + begin / 2);
  }

  void product(const GemmMatrix& w, const float* bias, int64_t r, int64_t count, float* y, int64_t stride,
               std::byte* scratch) {
    const int64_t K = shape_.K;
    const int32_t* rows = gather_ ? args_.input<int32_t>(1) + r : nullptr;
    if constexpr (kQ8) {
      const Q8Rows x{groups() + (gather_ ? 0 : r * (K / kMxGroup)), rows, count};
      gemm_q8(kernels_, w, 0, w.N, x, bias, y, stride, scratch);
    } else {
      const GemmRows x{args_.input<float>(0) + (gather_ ? 0 : r * K), K, rows, count};
      gemm_f32(kernels_, w, 0, w.N, x, bias, y, stride, scratch);
    }
  }

  const OpDesc& desc_;
  const Args& args_;
  std::byte* workspace_;
  Stream& stream_;
  const Shape3 shape_;
  const Parts parts_;
  const GemmFormat format_;
  const int64_t row_bytes_, task_;
  const bool gather_;
  const GemmKernels& kernels_;
};

template <bool kQ8>
void launch(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  Launch<kQ8>(desc, args, workspace, stream).run();
}

constexpr Kernel expert_kernel(const char* name, Op op, bool q8) {
  return {.name = name,
          .op = op,
          .backend = Backend::cpu,
          .refuse = q8 ? refuse_q8 : refuse_exact,
          .layout = packed_weight<3>,
          .workspace_bytes = q8 ? workspace_bytes<true> : workspace_bytes<false>,
          .launch = q8 ? launch<true> : launch<false>};
}

}  // namespace

const Kernel kExpertSwigluQ8 = expert_kernel("expert_swiglu.q8.cpu", Op::expert_swiglu, true);
const Kernel kExpertLinearQ8 = expert_kernel("expert_linear.q8.cpu", Op::expert_linear, true);
const Kernel kExpertSwiglu = expert_kernel("expert_swiglu.f32.cpu", Op::expert_swiglu, false);
const Kernel kExpertLinear = expert_kernel("expert_linear.f32.cpu", Op::expert_linear, false);

}  // namespace moesaic::cpu
