#include <cmath>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/rows.h"

namespace moesaic::cpu {

#define LANES_BODY "kernels/cpu/dense_lanes.inc"
#include "kernels/cpu/for_each_isa.inc"

namespace {

struct DenseLoops {
  float (*sum_squares)(const float* x, int64_t n);
  void (*scale_row)(const float* x, const float* weight, float scale, int64_t n, float* y);
  void (*add_row)(const float* x, const float* y, int64_t n, float* out);
  void (*widen_row)(const uint16_t* bf16, int64_t n, float* out);
};
constexpr DenseLoops kLoops[] = {
    {scalar::sum_squares, scalar::scale_row, scalar::add_row, scalar::widen_row},
    {avx2::sum_squares, avx2::scale_row, avx2::add_row, avx2::widen_row},
    {avx512::sum_squares, avx512::scale_row, avx512::add_row, avx512::widen_row},
};
const DenseLoops& loops() {
  return kLoops[static_cast<int>(cpu_isa())];
}

const char* refuse_embed(const OpDesc& desc, const DeviceInfo&) {
  const OperandDesc& table = desc.in(0);
  const bool known = table.stored == DType::bf16 || table.stored == DType::f32 || table.stored == DType::f16;
  if (table.format != Format::plain || !known) return "the table must be bf16, f16 or f32";
  return refuse_types(desc);
}

void embed_row(const std::byte* table, DType stored, int64_t row, int64_t H, float* out) {
  table += row * H * dtype_bytes(stored);
  if (stored == DType::f32) {
    std::memcpy(out, table, static_cast<size_t>(H) * sizeof(float));
    return;
  }
  const auto* halves = reinterpret_cast<const uint16_t*>(table);
  if (stored == DType::bf16) return loops().widen_row(halves, H, out);
  for (int64_t h = 0; h < H; ++h) out[h] = f16_to_float(halves[h]);
}

void embed(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t H = width_of(desc.out(0));
  for_ranges(stream, args.now.tokens, row_grain(H), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* image = args.batch->image_rows != nullptr ? args.batch->image_rows[t] : nullptr;
      float* out = args.output<float>(0) + t * H;
      if (image != nullptr) std::memcpy(out, image, static_cast<size_t>(H) * sizeof(float));
      else embed_row(args.in[0], desc.in(0).stored, args.batch->token_ids[t], H, out);
    }
  });
}

// y = weight * (x / sqrt(mean(x^2) + eps)) for one row; without a weight, 1.
void normalize(const float* x, const float* weight, float eps, int64_t H, float* y) {
  const float mean = loops().sum_squares(x, H) / static_cast<float>(H);
  const float scale = 1.0f / std::sqrt(mean + eps);
  if (weight != nullptr) return loops().scale_row(x, weight, scale, H, y);
  for (int64_t h = 0; h < H; ++h) y[h] = x[h] * scale;
}

void rms_norm(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t heads = desc.attrs.integer(Attr::heads, 1), D = width_of(desc.out(0)) / heads;
  const float eps = desc.attrs.real(Attr::eps);
  const float* weight = desc.inputs.size() > 1 ? args.input<float>(1) : nullptr;
  for_ranges(stream, rows_of(desc.out(0), args.now) * heads, row_grain(D), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      normalize(args.input<float>(0) + i * D, weight, eps, D, args.output<float>(0) + i * D);
  });
}

void add(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t n = width_of(desc.out(0)) * rows_of(desc.out(0), args.now);
  for_ranges(stream, n, 16384, [&](int64_t begin, int64_t end) {
    loops().add_row(args.input<float>(0) + begin, args.input<float>(1) + begin, end - begin,
                    args.output<float>(0) + begin);
  });
}

void add_rms_norm(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t H = width_of(desc.out(0));
  const float eps = desc.attrs.real(Attr::eps);
  for_ranges(stream, rows_of(desc.out(0), args.now), row_grain(H), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* sum = args.output<float>(0) + t * H;
      loops().add_row(args.input<float>(0) + t * H, args.input<float>(1) + t * H, H, sum);
      normalize(sum, args.input<float>(2), eps, H, args.output<float>(1) + t * H);
    }
  });
}

void last_token(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const int64_t H = width_of(desc.out(0));
  for (int64_t s = 0; s < args.now.rows; ++s)
    std::memcpy(args.output<float>(0) + s * H, args.input<float>(0) + args.batch->output_rows[s] * H,
                static_cast<size_t>(H) * sizeof(float));
}

void join_hidden(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t H = width_of(desc.in(0)), D = width_of(desc.out(0)) - H;
  const float eps = desc.attrs.real(Attr::eps);
  const auto* hidden = reinterpret_cast<const float*>(args.batch->hidden);
  for_ranges(stream, args.now.tokens, row_grain(H + D), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* y = args.output<float>(0) + t * (H + D);
      std::memcpy(y, args.input<float>(0) + t * H, static_cast<size_t>(H) * sizeof(float));
      normalize(hidden + args.batch->hidden_rows[t] * D, args.input<float>(1), eps, D, y + H);
    }
  });
}

}  // namespace

const Kernel kEmbed{
    .name = "embed.cpu", .op = Op::embed, .backend = Backend::cpu, .refuse = refuse_embed, .launch = embed};
const Kernel kRmsNorm{
    .name = "rms_norm.cpu", .op = Op::rms_norm, .backend = Backend::cpu, .refuse = refuse_types, .launch = rms_norm};
const Kernel kAdd{.name = "add.cpu", .op = Op::add, .backend = Backend::cpu, .refuse = refuse_types, .launch = add};
const Kernel kAddRmsNorm{.name = "add_rms_norm.cpu",
                         .op = Op::add_rms_norm,
                         .backend = Backend::cpu,
                         .refuse = refuse_types,
                         .launch = add_rms_norm};
const Kernel kLastToken{.name = "last_token.cpu",
                        .op = Op::last_token,
                        .backend = Backend::cpu,
                        .refuse = refuse_types,
                        .launch = last_token};
const Kernel kJoinHidden{.name = "join_hidden.cpu",
                         .op = Op::join_hidden,
                         .backend = Backend::cpu,
                         .refuse = refuse_types,
                         .launch = join_hidden};

}  // namespace moesaic::cpu
