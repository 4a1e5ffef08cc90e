#include "kernels/cpu/activation.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/rows.h"

namespace moesaic::cpu {

#define LANES_BODY "kernels/cpu/routing_lanes.inc"
#include "kernels/cpu/for_each_isa.inc"

namespace {

// Whether logit a ranks before b. NaN ranks first, so that it shows in the token's output instead of being dropped.
bool ranks_before(float a, float b) {
  return a > b || (a != a && b == b);
}

// The k best of logits[E], best first, ties to the lower index; weights are the softmax over them.
void route_token(const float* logits, int64_t E, int64_t k, float* weights, int32_t* ids) {
  int64_t found = 0;
  for (int64_t e = 0; e < E; ++e) {
    int64_t j = found;
    while (j > 0 && ranks_before(logits[e], weights[j - 1])) --j;
    if (j == k) continue;
    found = std::min(found + 1, k);
    for (int64_t i = found - 1; i > j; --i) weights[i] = weights[i - 1], ids[i] = ids[i - 1];
    weights[j] = logits[e], ids[j] = static_cast<int32_t>(e);
  }
  const float top = weights[0];
  float total = 0;
  for (int64_t j = 0; j < k; ++j) total += weights[j] = exp_one(weights[j] - top);
  for (int64_t j = 0; j < k; ++j) weights[j] /= total;
}

const char* refuse_route(const OpDesc& desc, const DeviceInfo& device) {
  if (desc.attrs.has(Attr::scoring)) return "scores other than the softmax over the chosen";
  return refuse_types(desc, device);
}

void route(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  const int64_t E = width_of(desc.in(0)), k = width_of(desc.out(0));
  for_ranges(stream, args.now.tokens, row_grain(E), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      route_token(args.input<float>(0) + t * E, E, k, args.output<float>(0) + t * k, args.output<int32_t>(1) + t * k);
  });
}

// A counting sort: offsets[e] first counts, then is where expert e's next row goes, then ends one expert too far. Ids
// of -1 have no row.
void dispatch(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const int64_t E = desc.attrs.integer(Attr::experts), k = width_of(desc.in(0)), R = args.now.tokens * k;
  const int32_t* ids = args.input<int32_t>(0);
  int32_t *rows = args.output<int32_t>(0), *offsets = args.output<int32_t>(1), *places = args.output<int32_t>(2);
  std::fill_n(offsets, E + 1, 0);
  std::fill_n(rows, R, 0);
  for (int64_t r = 0; r < R; ++r)
    if (ids[r] >= 0) ++offsets[ids[r] + 1];
  for (int64_t e = 0; e < E; ++e) offsets[e + 1] += offsets[e];
  for (int64_t t = 0, r = 0; t < args.now.tokens; ++t) {
    for (int64_t j = 0; j < k; ++j, ++r) {
      places[r] = ids[r] >= 0 ? offsets[ids[r]]++ : -1;
      if (places[r] >= 0) rows[places[r]] = static_cast<int32_t>(t);
    }
  }
  for (int64_t e = E - 1; e > 0; --e) offsets[e] = offsets[e - 1];
  offsets[0] = 0;
}

void combine(const OpDesc& desc, const Args& args, std::byte*, Stream& stream) {
  constexpr decltype(&scalar::combine_row) kRows[] = {scalar::combine_row, avx2::combine_row, avx512::combine_row};
  const auto combine_row = kRows[static_cast<int>(cpu_isa())];
  const int64_t H = width_of(desc.out(0)), k = width_of(desc.in(2));
  for_ranges(stream, args.now.tokens, row_grain(H * k), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      combine_row(args.input<float>(0), args.input<int32_t>(1) + t * k, args.input<float>(2) + t * k, k, H,
                  args.output<float>(0) + t * H);
  });
}

}  // namespace

const Kernel kRoute{
    .name = "route.cpu", .op = Op::route, .backend = Backend::cpu, .refuse = refuse_route, .launch = route};
const Kernel kDispatch{
    .name = "dispatch.cpu", .op = Op::dispatch, .backend = Backend::cpu, .refuse = refuse_types, .launch = dispatch};
const Kernel kCombine{
    .name = "combine.cpu", .op = Op::combine, .backend = Backend::cpu, .refuse = refuse_types, .launch = combine};

}  // namespace moesaic::cpu
