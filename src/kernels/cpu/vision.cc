// The elementwise ops of a vision tower, which runs on one image at a time.
#include <cmath>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/rows.h"
#include "kernels/grid_taps.h"

namespace moesaic::cpu {
namespace {

void patches(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  std::copy_n(args.batch->patches, args.now.tokens * width_of(desc.out(0)), args.output<float>(0));
}

void embed_place(const float* table, int64_t columns, int64_t H, const GridTaps& down, const GridTaps& across,
                 float* out) {
  std::fill_n(out, H, 0.0f);
  for (size_t i = 0; i < 16; ++i) {
    const auto weight = static_cast<float>(down.weight[i / 4] * across.weight[i % 4]);
    const float* cell = table + (down.cell[i / 4] * columns + across.cell[i % 4]) * H;
    for (int64_t h = 0; h < H; ++h) out[h] += weight * cell[h];
  }
}

void grid_embed(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t rows = desc.in(0).type.dim(0).factor, columns = desc.in(0).type.dim(1).factor;
  const int64_t H = width_of(desc.out(0)), wide = args.batch->grid_columns;
  const bool cubic = desc.attrs.integer(Attr::cubic) != 0;
  for_ranges(stream, args.now.tokens, row_grain(16 * H), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      embed_place(args.input<float>(0), columns, H, grid_taps(t / wide, args.batch->grid_rows, rows, cubic),
                  grid_taps(t % wide, wide, columns, cubic), args.output<float>(0) + t * H);
  });
}

// Frequencies and angles are float32, as the reference models compute them.
void grid_rope_table(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t D = desc.attrs.integer(Attr::head_dim), wide = args.batch->grid_columns;
  const double theta = desc.attrs.number(Attr::theta);
  for_ranges(stream, D / 4, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto frequency = static_cast<float>(std::pow(theta, -static_cast<double>(4 * i) / static_cast<double>(D)));
      for (int64_t t = 0; t < args.now.tokens; ++t) {
        float* pairs = args.output<float>(0) + (t * D / 4 + i) * 4;
        for (int64_t place : {t % wide, t / wide}) {
          const auto angle = static_cast<double>(static_cast<float>(place) * frequency);
          *pairs++ = static_cast<float>(std::cos(angle));
          *pairs++ = static_cast<float>(std::sin(angle));
        }
      }
    }
  });
}

const char* refuse_rope(const OpDesc& desc, const DeviceInfo& device) {
  return desc.attrs.integer(Attr::head_dim) % 4 == 0 ? refuse_types(desc, device) : "head_dim must be a multiple of 4";
}

// tanh(u) = 1 - 2 / (1 + e^2u), so x (1 + tanh(u)) / 2 = x / (1 + e^-2u).
float gelu_tanh(float x) {
  constexpr float kTwiceRootTwoOverPi = 1.5957691216f;
  return x / (1 + exp_one(-kTwiceRootTwoOverPi * (x + 0.044715f * x * x * x)));
}

float gelu_exact(float x) {
  return static_cast<float>(0.5 * static_cast<double>(x) * std::erfc(-static_cast<double>(x) / std::sqrt(2.0)));
}

void gelu(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const bool approximate = desc.attrs.integer(Attr::approximate) != 0;
  const int64_t n = width_of(desc.out(0)) * rows_of(desc.out(0), args.now);
  for_ranges(stream, n, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      args.output<float>(0)[i] = approximate ? gelu_tanh(args.input<float>(0)[i]) : gelu_exact(args.input<float>(0)[i]);
  });
}

void merge_patches(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const int64_t m = desc.attrs.integer(Attr::merge), H = width_of(desc.in(0)), columns = args.batch->grid_columns;
  for (int64_t s = 0; s < args.now.rows; ++s)
    for (int64_t j = 0; j < m * m; ++j) {
      const int64_t row = s / (columns / m) * m + j / m, column = s % (columns / m) * m + j % m;
      std::copy_n(args.input<float>(0) + (row * columns + column) * H, H, args.output<float>(0) + (s * m * m + j) * H);
    }
}

}  // namespace

const Kernel kPatches{
    .name = "patches.cpu", .op = Op::patches, .backend = Backend::cpu, .refuse = refuse_types, .launch = patches};
const Kernel kGridEmbed{.name = "grid_embed.cpu",
                        .op = Op::grid_embed,
                        .backend = Backend::cpu,
                        .refuse = refuse_types,
                        .launch = grid_embed};
const Kernel kGridRopeTable{.name = "grid_rope_table.cpu",
                            .op = Op::grid_rope_table,
                            .backend = Backend::cpu,
                            .refuse = refuse_rope,
                            .launch = grid_rope_table};
const Kernel kGelu{.name = "gelu.cpu", .op = Op::gelu, .backend = Backend::cpu, .refuse = refuse_types, .launch = gelu};
const Kernel kMergePatches{.name = "merge_patches.cpu",
                           .op = Op::merge_patches,
                           .backend = Backend::cpu,
                           .refuse = refuse_types,
                           .launch = merge_patches};

}  // namespace moesaic::cpu
