// embed, add, slice, glu, sigmoid_gate, clamped_swiglu, gelu, last_token: a thread takes four neighbouring elements.
#include "kernels/cuda/activations.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/rows.cuh"

namespace moesaic::cuda {
namespace {

// ---- embed

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
__device__ __forceinline__ float widen(Bf16 x) {
  return bf16_to_float(x.bits);
}
__device__ __forceinline__ float widen(F16 x) {
  return f16_to_float(x.bits);
}
__device__ __forceinline__ float widen(float x) {
  return x;
}

template <typename Element, int kWide>
__device__ __forceinline__ Floats<kWide> load_widened(const Element* p) {
  struct alignas(sizeof(Element) * kWide) Pack {
    Element element[kWide];
  };
  const Pack pack = *reinterpret_cast<const Pack*>(p);
  Floats<kWide> out;
  for (int i = 0; i < kWide; ++i) out.v[i] = widen(pack.element[i]);
  return out;
}

// y[t] = table[ids[t]], or images[t] where it is not null. table [V, H], y [T, H]; image rows need no alignment.
template <typename Element, int kWide>
__global__ void embed_kernel(const Element* table, const int32_t* ids, const float* const* images, int64_t T, int H,
                             float* y) {
  after_previous();
  const RowUnit at = row_unit();
  const int h = at.unit * kWide;
  if (at.row >= T || h >= H) return;
  const float* image = images != nullptr ? images[at.row] : nullptr;
  Floats<kWide> out;
  if (image == nullptr) out = load_widened<Element, kWide>(table + static_cast<int64_t>(ids[at.row]) * H + h);
  else
    for (int i = 0; i < kWide; ++i) out.v[i] = image[h + i];
  store_floats<kWide>(y + at.row * H + h, out);
}

template <typename Element>
void embed_as(const Args& args, int64_t H, Stream& stream) {
  const auto* table = args.input<Element>(0);
  float* y = args.output<float>(0);
  const bool fours = in_fours(H, table, y);
  const RowGrid g = row_grid(args.now.tokens, fours ? H / 4 : H);
  launch(fours ? embed_kernel<Element, 4> : embed_kernel<Element, 1>, g.grid, g.block, 0, stream, table,
         args.batch->token_ids, args.batch->image_rows, args.now.tokens, static_cast<int>(H), y);
}

const char* refuse_embed(const OpDesc& desc, const DeviceInfo& device) {
  const OperandDesc& table = desc.in(0);
  const bool known = table.stored == DType::bf16 || table.stored == DType::f32 || table.stored == DType::f16;
  if (table.format != Format::plain || !known) return "the table must be bf16, f16 or f32";
  return refuse_types(desc, device);
}

void embed(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t H = width_of(desc.out(0));
  if (desc.in(0).stored == DType::bf16) embed_as<Bf16>(args, H, stream);
  else if (desc.in(0).stored == DType::f16) embed_as<F16>(args, H, stream);
  else embed_as<float>(args, H, stream);
}

// ---- y[i] = f(in[i]...)

template <typename F, typename... Parts>
__device__ __forceinline__ Floats<4> apply_four(const F& f, const Parts&... parts) {
  Floats<4> out;
  for (int i = 0; i < 4; ++i) out.v[i] = f(parts.v[i]...);
  return out;
}

constexpr int kThreads = 128;

template <typename F, typename... In>
__global__ void map_kernel(F f, int64_t n, bool fours, float* y, const In*... in) {
  after_previous();
  const int64_t begin = 4 * (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x);
  if (fours && begin < n) return store_floats<4>(y + begin, apply_four(f, load_floats<4>(in + begin)...));
  for (int64_t i = begin; i < min(begin + 4, n); ++i) y[i] = f(in[i]...);
}

template <typename F, typename... In>
void map(const F& f, const OpDesc& desc, const Args& args, Stream& stream, const In*... in) {
  const int64_t n = rows_of(desc.out(0), args.now) * width_of(desc.out(0));
  float* y = args.output<float>(0);
  launch(map_kernel<F, In...>, static_cast<unsigned>(ceil_div(n, int64_t{4 * kThreads})), kThreads, 0, stream, f, n,
         in_fours(n, y, in...), y, in...);
}

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct SigmoidGate {
  __device__ float operator()(float x, float gate) const { return x * sigmoid(gate); }
};
struct Silu {
  float limit;
  __device__ float operator()(float gate, float up) const {
    if (limit > 0) gate = at_most(gate, limit), up = within(up, limit);
    return gate * sigmoid(gate) * up;
  }
};
struct Situ {
  float beta, linear_beta;
  __device__ float operator()(float gate, float up) const {
    const float linear = linear_beta > 0 ? linear_beta * tanhf(up / linear_beta) : up;
    return beta * tanhf(gate / beta) * sigmoid(gate) * linear;
  }
};
// tanh(u) = 1 - 2 / (1 + e^2u), so x (1 + tanh(u)) / 2 = x / (1 + e^-2u).
struct GeluTanh {
  __device__ float operator()(float x) const {
    constexpr float kTwiceRootTwoOverPi = 1.5957691216f;
    return x / (1 + expf(-kTwiceRootTwoOverPi * (x + 0.044715f * x * x * x)));
  }
};
// In float64: erfcf loses several ulp in the tail.
struct GeluExact {
  __device__ float operator()(float x) const {
    constexpr double kRootHalf = 0.70710678118654752440;
    const auto wide = static_cast<double>(x);
    return static_cast<float>(0.5 * wide * erfc(-wide * kRootHalf));
  }
};

void add(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  map(Sum{}, desc, args, stream, args.input<float>(0), args.input<float>(1));
}

void sigmoid_gate(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  map(SigmoidGate{}, desc, args, stream, args.input<float>(0), args.input<float>(1));
}

void glu(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const float *gate = args.input<float>(0), *up = args.input<float>(1);
  if (static_cast<Activation>(desc.attrs.integer(Attr::activation)) == Activation::silu)
    return map(Silu{desc.attrs.real(Attr::limit)}, desc, args, stream, gate, up);
  map(Situ{desc.attrs.real(Attr::beta), desc.attrs.real(Attr::linear_beta)}, desc, args, stream, gate, up);
}

void gelu(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  if (desc.attrs.integer(Attr::approximate) != 0) map(GeluTanh{}, desc, args, stream, args.input<float>(0));
  else map(GeluExact{}, desc, args, stream, args.input<float>(0));
}

// ---- clamped_swiglu

// y[i] of the pair gate = h[2i], up = h[2i + 1]; limit 0: no clamp. n outputs, four a thread.
__global__ void clamped_swiglu_kernel(const float* h, float limit, float alpha, int64_t n, bool fours, float* y) {
  after_previous();
  const int64_t begin = 4 * (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x);
  const auto activate = [=](float gate, float up) { return clamped_swiglu(gate, up, limit, alpha); };
  if (fours && begin < n) {
    const Floats<4> a = load_floats<4>(h + 2 * begin), b = load_floats<4>(h + 2 * begin + 4);
    return store_floats<4>(y + begin, {activate(a.v[0], a.v[1]), activate(a.v[2], a.v[3]), activate(b.v[0], b.v[1]),
                                       activate(b.v[2], b.v[3])});
  }
  for (int64_t i = begin; i < min(begin + 4, n); ++i) y[i] = activate(h[2 * i], h[2 * i + 1]);
}

void clamped_swiglu_op(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t n = rows_of(desc.out(0), args.now) * width_of(desc.out(0));
  const float* h = args.input<float>(0);
  float* y = args.output<float>(0);
  launch(clamped_swiglu_kernel, static_cast<unsigned>(ceil_div(n, int64_t{4 * kThreads})), kThreads, 0, stream, h,
         desc.attrs.real(Attr::limit), desc.attrs.real(Attr::alpha), n, in_fours(n, h, y), y);
}

// ---- copies

struct PartOfRow {
  int64_t D, begin;
  __device__ int64_t operator()(int64_t row) const { return row * D + begin; }
};
struct ChosenRow {
  const int32_t* rows;
  int64_t H;
  __device__ int64_t operator()(int64_t row) const { return rows[row] * H; }
};

void slice(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t heads = desc.attrs.integer(Attr::heads), count = desc.attrs.integer(Attr::count);
  const PartOfRow part{width_of(desc.in(0)) / heads, desc.attrs.integer(Attr::begin)};
  const float* x = args.input<float>(0);
  float* y = args.output<float>(0);
  const bool fours = in_fours(count, x, y) && part.D % 4 == 0 && part.begin % 4 == 0;
  copy_rows(part, fours, x, rows_of(desc.in(0), args.now) * heads, count, y, stream);
}

void last_token(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t H = width_of(desc.out(0));
  const float* x = args.input<float>(0);
  float* y = args.output<float>(0);
  copy_rows(ChosenRow{args.batch->output_rows, H}, in_fours(H, x, y), x, args.now.rows, H, y, stream);
}

constexpr Kernel plain(const char* name, Op op, decltype(Kernel::launch) launch) {
  return {.name = name, .op = op, .backend = Backend::cuda, .refuse = refuse_types, .launch = launch};
}

}  // namespace

const Kernel kEmbed{
    .name = "embed.cuda", .op = Op::embed, .backend = Backend::cuda, .refuse = refuse_embed, .launch = embed};
const Kernel kAdd = plain("add.cuda", Op::add, add);
const Kernel kSlice = plain("slice.cuda", Op::slice, slice);
const Kernel kGlu = plain("glu.cuda", Op::glu, glu);
const Kernel kSigmoidGate = plain("sigmoid_gate.cuda", Op::sigmoid_gate, sigmoid_gate);
const Kernel kClampedSwiglu = plain("clamped_swiglu.cuda", Op::clamped_swiglu, clamped_swiglu_op);
const Kernel kGelu = plain("gelu.cuda", Op::gelu, gelu);
const Kernel kLastToken = plain("last_token.cuda", Op::last_token, last_token);

}  // namespace moesaic::cuda
