// The ops of a vision tower, which runs on one image at a time.
#include <algorithm>
#include <cmath>

#include "kernels/grid_taps.h"
#include "kernels/ref/ref.h"

namespace moesaic::ref {
namespace {

void patches(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  std::copy_n(args.batch->patches, args.now.tokens * desc.attrs.integer(Attr::count), args.output<double>(0));
}

void grid_embed(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const WeightReader table(args, desc, 0);
  const int64_t rows = desc.in(0).type.dim(0).factor, columns = desc.in(0).type.dim(1).factor;
  const int64_t H = desc.in(0).type.dim(2).factor;
  const bool cubic = desc.attrs.integer(Attr::cubic) != 0;
  std::fill_n(args.output<double>(0), args.now.tokens * H, 0.0);
  for (int64_t t = 0; t < args.now.tokens; ++t) {
    const GridTaps down = grid_taps(t / args.batch->grid_columns, args.batch->grid_rows, rows, cubic);
    const GridTaps across = grid_taps(t % args.batch->grid_columns, args.batch->grid_columns, columns, cubic);
    for (size_t i = 0; i < 16; ++i)
      for (int64_t h = 0; h < H; ++h)
        args.output<double>(0)[t * H + h] += down.weight[i / 4] * across.weight[i % 4] *
                                             table[(down.cell[i / 4] * columns + across.cell[i % 4]) * H + h];
  }
}

// Frequencies and angles are float32, as the reference models compute them.
void grid_rope_table(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const int64_t D = desc.attrs.integer(Attr::head_dim);
  for (int64_t t = 0; t < args.now.tokens; ++t) {
    for (int64_t pair = 0; pair < D / 2; ++pair) {
      const int64_t place = pair % 2 == 0 ? t % args.batch->grid_columns : t / args.batch->grid_columns;
      const double exponent = static_cast<double>(pair / 2 * 4) / static_cast<double>(D);
      const auto frequency = static_cast<float>(std::pow(desc.attrs.number(Attr::theta), -exponent));
      const float angle = static_cast<float>(place) * frequency;
      args.output<double>(0)[(t * (D / 2) + pair) * 2] = std::cos(static_cast<double>(angle));
      args.output<double>(0)[(t * (D / 2) + pair) * 2 + 1] = std::sin(static_cast<double>(angle));
    }
  }
}

void full_attention(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t heads = desc.attrs.integer(Attr::heads), D = desc.attrs.integer(Attr::head_dim), T = args.now.tokens;
  const auto row = [&](int input, int64_t t, int64_t head) {
    return args.input<double>(input) + (t * heads + head) * D;
  };
  stream.pool->run(heads * T, [&](int64_t i, int) {
    const int64_t head = i % heads, t = i / heads;
    std::vector<double> weights;
    for (int64_t key = 0; key < T; ++key) {
      double score = 0;
      for (int64_t d = 0; d < D; ++d) score += row(0, t, head)[d] * row(1, key, head)[d];
      weights.push_back(score * desc.attrs.number(Attr::scale));
    }
    const double top = *std::max_element(weights.begin(), weights.end());
    double total = 0;
    for (double& w : weights) total += w = std::exp(w - top);
    double* out = args.output<double>(0) + (t * heads + head) * D;
    std::fill_n(out, D, 0.0);
    for (int64_t key = 0; key < T; ++key)
      for (int64_t d = 0; d < D; ++d) out[d] += weights[static_cast<size_t>(key)] / total * row(2, key, head)[d];
  });
}

// x * Phi(x), or the tanh form of torch's approximate="tanh".
double gelu_of(double x, bool approximate) {
  constexpr double kRootTwoOverPi = 0.79788456080286535588;
  if (approximate) return 0.5 * x * (1 + std::tanh(kRootTwoOverPi * (x + 0.044715 * x * x * x)));
  return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
}

void gelu(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  int64_t n = 1;
  for (Dim d : desc.out(0).type.dims) n *= args.now.of(d);
  for (int64_t i = 0; i < n; ++i)
    args.output<double>(0)[i] = gelu_of(args.input<double>(0)[i], desc.attrs.integer(Attr::approximate) != 0);
}

void merge_patches(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const int64_t m = desc.attrs.integer(Attr::merge), H = desc.in(0).type.dim(1).factor;
  const int64_t columns = args.batch->grid_columns;
  for (int64_t s = 0; s < args.now.rows; ++s)
    for (int64_t j = 0; j < m * m; ++j) {
      const int64_t row = s / (columns / m) * m + j / m, column = s % (columns / m) * m + j % m;
      std::copy_n(args.input<double>(0) + (row * columns + column) * H, H,
                  args.output<double>(0) + (s * m * m + j) * H);
    }
}

}  // namespace

const Kernel kPatches{.name = "patches.ref", .op = Op::patches, .backend = Backend::ref, .launch = patches};
const Kernel kGridEmbed{.name = "grid_embed.ref", .op = Op::grid_embed, .backend = Backend::ref, .launch = grid_embed};
const Kernel kGridRopeTable{
    .name = "grid_rope_table.ref", .op = Op::grid_rope_table, .backend = Backend::ref, .launch = grid_rope_table};
const Kernel kFullAttention{
    .name = "full_attention.ref", .op = Op::full_attention, .backend = Backend::ref, .launch = full_attention};
const Kernel kGelu{.name = "gelu.ref", .op = Op::gelu, .backend = Backend::ref, .launch = gelu};
const Kernel kMergePatches{
    .name = "merge_patches.ref", .op = Op::merge_patches, .backend = Backend::ref, .launch = merge_patches};

}  // namespace moesaic::ref
