// The routers of all families. Choice and weights are apart: a correction bias decides who is chosen, never how much.
#include <algorithm>
#include <cmath>

#include "kernels/ref/ref.h"

namespace moesaic::ref {
namespace {

double score(Scoring scoring, double logit) {
  if (scoring == Scoring::sigmoid) return 1 / (1 + std::exp(-logit));
  return std::sqrt(logit > 30 ? logit : std::log1p(std::exp(logit)));
}

std::vector<double> scores_of(Scoring scoring, const double* logits, int64_t E) {
  std::vector<double> out(logits, logits + E);
  if (scoring != Scoring::softmax) {
    for (double& s : out) s = score(scoring, s);
    return out;
  }
  const double top = *std::max_element(out.begin(), out.end());
  double total = 0;
  for (double& s : out) total += s = std::exp(s - top);
  for (double& s : out) s /= total;
  return out;
}

// Indices of the `count` largest, ties to the lower index.
std::vector<int32_t> largest(const std::vector<double>& values, int64_t count) {
  std::vector<int32_t> order(values.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  const auto key = [&](int32_t i) {
    return std::isnan(values[static_cast<size_t>(i)]) ? -INFINITY : values[static_cast<size_t>(i)];
  };
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return key(a) != key(b) ? key(a) > key(b) : a < b; });
  order.resize(static_cast<size_t>(count));
  return order;
}

// Grouped choice (DeepSeek-V3): a group scores the sum of its two largest; experts of groups left out never win.
void mask_groups(std::vector<double>& values, int64_t groups, int64_t kept) {
  const size_t size = values.size() / static_cast<size_t>(groups);
  std::vector<double> group_scores;
  for (size_t g = 0; g < static_cast<size_t>(groups); ++g) {
    std::vector<double> members(values.begin() + static_cast<int64_t>(g * size),
                                values.begin() + static_cast<int64_t>((g + 1) * size));
    std::sort(members.begin(), members.end(), std::greater<>());
    group_scores.push_back(members[0] + (size > 1 ? members[1] : 0));
  }
  const std::vector<int32_t> best = largest(group_scores, kept);
  for (size_t e = 0; e < values.size(); ++e)
    if (std::find(best.begin(), best.end(), static_cast<int32_t>(e / size)) == best.end()) values[e] = -INFINITY;
}

std::vector<int32_t> choose(const OpDesc& desc, const Args& args, const std::vector<double>& scores, int64_t token) {
  const int64_t k = desc.attrs.integer(Attr::top_k);
  if (desc.inputs.size() > 1 && desc.in(1).type.rank() == 2) {
    const int32_t* row = args.input<int32_t>(1) + args.batch->token_ids[token] * k;
    return {row, row + k};
  }
  std::vector<double> biased = scores;
  for (size_t e = 0; desc.inputs.size() > 1 && e < biased.size(); ++e) biased[e] += args.input<double>(1)[e];
  if (const int64_t groups = desc.attrs.integer(Attr::groups, 1); groups > 1)
    mask_groups(biased, groups, desc.attrs.integer(Attr::top_groups));
  return largest(biased, k);
}

void route_scored(const OpDesc& desc, const Args& args, int64_t token) {
  const int64_t E = desc.in(0).type.dim(1).factor, k = desc.attrs.integer(Attr::top_k);
  const auto scoring = static_cast<Scoring>(desc.attrs.integer(Attr::scoring));
  const std::vector<double> scores = scores_of(scoring, args.input<double>(0) + token * E, E);
  const std::vector<int32_t> ids = choose(desc, args, scores, token);
  double total = 0;
  for (int32_t id : ids) total += scores[static_cast<size_t>(id)];
  const double epsilon = scoring == Scoring::softmax ? 0 : 1e-20;
  const double divisor = desc.attrs.integer(Attr::normalize, 0) != 0 ? total + epsilon : 1;
  for (int64_t j = 0; j < k; ++j) {
    const int32_t id = ids[static_cast<size_t>(j)];
    args.output<int32_t>(1)[token * k + j] = id;
    args.output<double>(0)[token * k + j] =
        scores[static_cast<size_t>(id)] / divisor * desc.attrs.number(Attr::routed_scale, 1);
  }
}

void route(const OpDesc& desc, const Args& args, std::byte*, Stream&) {
  const int64_t E = desc.in(0).type.dim(1).factor, k = desc.attrs.integer(Attr::top_k);
  for (int64_t t = 0; t < args.now.tokens; ++t) {
    if (desc.attrs.integer(Attr::scoring, 0) != 0) {
      route_scored(desc, args, t);
      continue;
    }
    const std::vector<Choice> chosen = choose_experts(args.input<double>(0) + t * E, E, k);
    for (int64_t j = 0; j < k; ++j) {
      args.output<double>(0)[t * k + j] = chosen[static_cast<size_t>(j)].weight;
      args.output<int32_t>(1)[t * k + j] = chosen[static_cast<size_t>(j)].id;
    }
  }
}

}  // namespace

const Kernel kRoute{.name = "route.ref", .op = Op::route, .backend = Backend::ref, .launch = route};

}  // namespace moesaic::ref
