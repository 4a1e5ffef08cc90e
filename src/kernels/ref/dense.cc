#include <cmath>
#include <optional>

#include "kernels/ref/ref.h"

namespace moesaic::ref {
namespace {

int64_t width(const OpDesc& desc) {
  return desc.out(0).type.dim(-1).factor;
}

int64_t row_count(const OpDesc& desc, const Args& args) {
  int64_t n = 1;
  for (int i = 0; i + 1 < desc.out(0).type.rank(); ++i) n *= args.now.of(desc.out(0).type.dim(i));
  return n;
}

void embed(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const WeightReader table(args, desc, 0);
  const int64_t H = width(desc);
  for (int64_t t = 0; t < args.now.tokens; ++t)
    for (int64_t h = 0; h < H; ++h) {
      const float* image = args.batch->image_rows != nullptr ? args.batch->image_rows[t] : nullptr;
      args.output<double>(0)[t * H + h] = image != nullptr ? image[h] : table[args.batch->token_ids[t] * H + h];
    }
}

// y = w * x / sqrt(mean(x^2) + eps), all in full precision (the gpt-oss order: one rounding, at the end).
void normalize(const double* x, const WeightReader* weight, double eps, int64_t H, double* y) {
  double square = 0;
  for (int64_t h = 0; h < H; ++h) square += x[h] * x[h];
  const double scale = 1 / std::sqrt(square / static_cast<double>(H) + eps);
  for (int64_t h = 0; h < H; ++h) y[h] = (weight != nullptr ? (*weight)[h] : 1) * (x[h] * scale);
}

void rms_norm(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  std::optional<WeightReader> weight;
  if (desc.inputs.size() > 1) weight.emplace(args, desc, 1);
  const int64_t heads = desc.attrs.integer(Attr::heads, 1), D = width(desc) / heads, n = row_count(desc, args) * heads;
  for (int64_t i = 0; i < n; ++i)
    normalize(args.input<double>(0) + i * D, weight ? &*weight : nullptr, desc.attrs.number(Attr::eps), D,
              args.output<double>(0) + i * D);
}

void add(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const int64_t n = width(desc) * row_count(desc, args);
  for (int64_t i = 0; i < n; ++i) args.output<double>(0)[i] = args.input<double>(0)[i] + args.input<double>(1)[i];
}

void add_rms_norm(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const WeightReader weight(args, desc, 2);
  const int64_t H = width(desc), n = row_count(desc, args);
  double *sum = args.output<double>(0), *normed = args.output<double>(1);
  for (int64_t i = 0; i < n * H; ++i) sum[i] = args.input<double>(0)[i] + args.input<double>(1)[i];
  for (int64_t t = 0; t < n; ++t) normalize(sum + t * H, &weight, desc.attrs.number(Attr::eps), H, normed + t * H);
}

void linear(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const WeightReader weight(args, desc, 1);
  const int64_t N = width(desc), K = desc.in(1).type.dim(1).factor, n = row_count(desc, args);
  stream.pool->run(N, [&](int64_t j, int) {
    const double bias = desc.inputs.size() > 2 ? WeightReader(args, desc, 2)[j] : 0;
    for (int64_t t = 0; t < n; ++t) {
      double sum = 0;
      for (int64_t k = 0; k < K; ++k) sum += weight[j * K + k] * args.input<double>(0)[t * K + k];
      args.output<double>(0)[t * N + j] = sum + bias;
    }
  });
}

void last_token(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const int64_t H = width(desc);
  for (int64_t s = 0; s < args.now.rows; ++s)
    for (int64_t h = 0; h < H; ++h)
      args.output<double>(0)[s * H + h] = args.input<double>(0)[args.batch->output_rows[s] * H + h];
}

void join_hidden(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const WeightReader weight(args, desc, 1);
  const int64_t H = desc.in(0).type.dim(1).factor, D = desc.in(1).type.dim(0).factor;
  const auto* hidden = reinterpret_cast<const double*>(args.batch->hidden);
  for (int64_t t = 0; t < args.now.tokens; ++t) {
    double* y = args.output<double>(0) + t * (H + D);
    for (int64_t h = 0; h < H; ++h) y[h] = args.input<double>(0)[t * H + h];
    normalize(hidden + args.batch->hidden_rows[t] * D, &weight, desc.attrs.number(Attr::eps), D, y + H);
  }
}

}  // namespace

const Kernel kEmbed{.name = "embed.ref", .op = Op::embed, .backend = Backend::ref, .launch = embed};
const Kernel kRmsNorm{.name = "rms_norm.ref", .op = Op::rms_norm, .backend = Backend::ref, .launch = rms_norm};
const Kernel kAdd{.name = "add.ref", .op = Op::add, .backend = Backend::ref, .launch = add};
const Kernel kAddRmsNorm{
    .name = "add_rms_norm.ref", .op = Op::add_rms_norm, .backend = Backend::ref, .launch = add_rms_norm};
const Kernel kLinear{.name = "linear.ref", .op = Op::linear, .backend = Backend::ref, .launch = linear};
const Kernel kLastToken{.name = "last_token.ref", .op = Op::last_token, .backend = Backend::ref, .launch = last_token};
const Kernel kJoinHidden{
    .name = "join_hidden.ref", .op = Op::join_hidden, .backend = Backend::ref, .launch = join_hidden};

}  // namespace moesaic::ref
