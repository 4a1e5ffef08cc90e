// Routers whose choice and weights are apart: sigmoid, softmax over all experts, sqrt(softplus); a correction bias,
// groups, or a table of ids by token (hash routing).
#include <cmath>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/rows.h"

namespace moesaic::cpu {
namespace {

const char* refuse(const OpDesc& desc, const DeviceInfo& device) {
  if (!desc.attrs.has(Attr::scoring)) return "softmax over the chosen is another kernel's";
  return refuse_types(desc, device);
}

// Per thread: scores and biased scores of one token's experts, and the groups' scores.
int64_t thread_floats(const OpDesc& desc) {
  return (2 * width_of(desc.in(0)) + desc.attrs.integer(Attr::groups, 1) + 15) / 16 * 16;
}

int64_t workspace_bytes(const OpDesc& desc, const DeviceInfo& device) {
  return device.threads * thread_floats(desc) * 4;
}

void score_all(Scoring scoring, const float* logits, int64_t E, float* scores) {
  if (scoring == Scoring::sigmoid) {
    for (int64_t e = 0; e < E; ++e) scores[e] = 1 / (1 + exp_one(-logits[e]));
  } else if (scoring == Scoring::sqrt_softplus) {
    for (int64_t e = 0; e < E; ++e) scores[e] = std::sqrt(logits[e] > 30 ? logits[e] : std::log1p(exp_one(logits[e])));
  } else {
    float top = -INFINITY, total = 0;
    for (int64_t e = 0; e < E; ++e) top = std::max(top, logits[e]);
    for (int64_t e = 0; e < E; ++e) total += scores[e] = exp_one(logits[e] - top);
    for (int64_t e = 0; e < E; ++e) scores[e] /= total;
  }
}

// Takes the largest of values[0, n) out, by setting it to -inf, and returns its index; ties to the lowest. NaN loses.
int64_t take_largest(float* values, int64_t n) {
  int64_t best = 0;
  float top = -INFINITY;
  for (int64_t i = 0; i < n; ++i)
    if (values[i] > top) top = values[i], best = i;
  values[best] = -INFINITY;
  return best;
}

// Sum of a group's two largest; a group of one has that one.
float group_score(const float* values, int64_t size) {
  float first = -INFINITY, second = -INFINITY;
  for (int64_t i = 0; i < size; ++i) {
    if (values[i] > first) second = first, first = values[i];
    else if (values[i] > second) second = values[i];
  }
  return size > 1 ? first + second : first;
}

void mask_groups(float* biased, int64_t E, int64_t groups, int64_t kept, float* scores) {
  const int64_t size = E / groups;
  for (int64_t g = 0; g < groups; ++g) scores[g] = group_score(biased + g * size, size);
  for (int64_t i = 0; i < kept; ++i) scores[take_largest(scores, groups)] = NAN;  // marks the chosen
  for (int64_t e = 0; e < E; ++e)
    if (!std::isnan(scores[e / size])) biased[e] = -INFINITY;
}

void choose(const OpDesc& desc, const Args& args, int64_t t, const float* scores, float* biased, int32_t* ids) {
  const int64_t E = width_of(desc.in(0)), k = width_of(desc.out(0));
  if (desc.inputs.size() > 1 && desc.in(1).type.rank() == 2) {
    for (int64_t j = 0; j < k; ++j) ids[j] = args.input<int32_t>(1)[args.batch->token_ids[t] * k + j];
    return;
  }
  const float* bias = desc.inputs.size() > 1 ? args.input<float>(1) : nullptr;
  for (int64_t e = 0; e < E; ++e) biased[e] = bias != nullptr ? scores[e] + bias[e] : scores[e];
  const int64_t groups = desc.attrs.integer(Attr::groups, 1);
  if (groups > 1) mask_groups(biased, E, groups, desc.attrs.integer(Attr::top_groups), biased + E);
  for (int64_t j = 0; j < k; ++j) ids[j] = static_cast<int32_t>(take_largest(biased, E));
}

void route_token(const OpDesc& desc, const Args& args, int64_t t, float* scratch) {
  const int64_t E = width_of(desc.in(0)), k = width_of(desc.out(0));
  const auto scoring = static_cast<Scoring>(desc.attrs.integer(Attr::scoring));
  float* weights = args.output<float>(0) + t * k;
  int32_t* ids = args.output<int32_t>(1) + t * k;
  score_all(scoring, args.input<float>(0) + t * E, E, scratch);
  choose(desc, args, t, scratch, scratch + E, ids);
  float total = 0;
  for (int64_t j = 0; j < k; ++j) total += scratch[ids[j]];
  const float epsilon = scoring == Scoring::softmax ? 0 : 1e-20f;
  const float divisor = desc.attrs.integer(Attr::normalize, 0) != 0 ? total + epsilon : 1;
  const auto scale = static_cast<float>(desc.attrs.number(Attr::routed_scale, 1));
  for (int64_t j = 0; j < k; ++j) weights[j] = scratch[ids[j]] / divisor * scale;
}

void launch(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  constexpr int64_t kGrain = 8;
  const int64_t tokens = args.now.tokens;
  stream.pool->run((tokens + kGrain - 1) / kGrain, [&](int64_t i, int thread) {
    float* scratch = reinterpret_cast<float*>(workspace) + thread * thread_floats(desc);
    for (int64_t t = i * kGrain; t < std::min((i + 1) * kGrain, tokens); ++t) route_token(desc, args, t, scratch);
  });
}

}  // namespace

const Kernel kRouteScored{.name = "route.scored.cpu",
                          .op = Op::route,
                          .backend = Backend::cpu,
                          .refuse = refuse,
                          .workspace_bytes = workspace_bytes,
                          .launch = launch};

}  // namespace moesaic::cpu
