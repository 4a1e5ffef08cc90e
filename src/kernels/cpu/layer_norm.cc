// layer_norm: rows are short (an indexer's key), so sums run in float64 in one order.
#include <cmath>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/rows.h"

namespace moesaic::cpu {
namespace {

void normalize(const float* x, const float* weight, const float* bias, double eps, int64_t H, float* y) {
  double sum = 0, squares = 0;
  for (int64_t h = 0; h < H; ++h) sum += static_cast<double>(x[h]);
  const double mean = sum / static_cast<double>(H);
  for (int64_t h = 0; h < H; ++h) squares += (static_cast<double>(x[h]) - mean) * (static_cast<double>(x[h]) - mean);
  const double scale = 1 / std::sqrt(squares / static_cast<double>(H) + eps);
  for (int64_t h = 0; h < H; ++h)
    y[h] = static_cast<float>((static_cast<double>(x[h]) - mean) * scale * static_cast<double>(weight[h]) +
                              static_cast<double>(bias[h]));
}

void layer_norm(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t H = width_of(desc.out(0));
  const double eps = desc.attrs.number(Attr::eps);
  for_ranges(stream, rows_of(desc.out(0), args.now), row_grain(H), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      normalize(args.input<float>(0) + t * H, args.input<float>(1), args.input<float>(2), eps, H,
                args.output<float>(0) + t * H);
  });
}

}  // namespace

const Kernel kLayerNorm{.name = "layer_norm.cpu",
                        .op = Op::layer_norm,
                        .backend = Backend::cpu,
                        .refuse = refuse_types,
                        .launch = layer_norm};

}  // namespace moesaic::cpu
