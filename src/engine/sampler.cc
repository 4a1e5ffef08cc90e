#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "base/error.h"
#include "base/rng.h"

namespace moesaic {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

bool adjusts(const SamplingParams& p) {
  return !p.logit_bias.empty() || p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0;
}

uint64_t fresh_seed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

struct Scan {
  float best = -kInf;
  float second = -kInf;  // equals best if two tokens share it
  bool bad = false;      // NaN or +inf somewhere

  void add(float x) {
    bad |= !(x < kInf);
    second = std::max(second, std::min(best, x));
    best = std::max(best, x);
  }
};

// Independent lanes, so that the loop is not one chain of dependent comparisons.
Scan scan(std::span<const float> logits) {
  constexpr size_t kLanes = 8;
  std::array<Scan, kLanes> lanes;
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane].add(logits[i + lane]);
  }
  Scan all;
  for (; i < logits.size(); ++i) all.add(logits[i]);
  for (const Scan& lane : lanes) {
    all.second = std::max({all.second, lane.second, std::min(all.best, lane.best)});
    all.best = std::max(all.best, lane.best);
    all.bad |= lane.bad;
  }
  return all;
}

Status non_finite(std::span<const float> logits, int64_t position) {
  const auto bad = std::find_if(logits.begin(), logits.end(), [](float x) { return !(x < kInf); });
  if (bad == logits.end()) {
    return {StatusCode::internal, fmt::format("all {} logits at position {} are -inf", logits.size(), position)};
  }
  return {StatusCode::internal, fmt::format("the logit of token {} at position {} is {}; expected a finite number",
                                            bad - logits.begin(), position, *bad)};
}

double log_sum_exp(std::span<const float> logits, float best) {
  double sum = 0;
  for (float x : logits) sum += std::exp(x - best);
  return best + std::log(sum);
}

// Insertion into a short sorted list; a later equal logit goes behind, so ties stay ordered by id.
void collect_top(std::span<const float> logits, double log_norm, int wanted, SampledToken& out) {
  const int limit = static_cast<int>(std::min<size_t>(logits.size(), static_cast<size_t>(wanted)));
  for (size_t i = 0; i < logits.size(); ++i) {
    if (out.top_count == limit && !(logits[i] > out.top[limit - 1].logprob)) continue;
    int at = out.top_count < limit ? out.top_count++ : limit - 1;
    for (; at > 0 && out.top[at - 1].logprob < logits[i]; --at) out.top[at] = out.top[at - 1];
    out.top[at] = {static_cast<int32_t>(i), logits[i]};
  }
  for (int i = 0; i < out.top_count; ++i) out.top[i].logprob = static_cast<float>(out.top[i].logprob - log_norm);
}

// Unsigned integers in the order of the floats; adding 0 merges -0 with +0, which are a tie.
uint32_t order_key(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

float logit_of(uint32_t key) {
  return std::bit_cast<float>((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key);
}

constexpr int kDigitBits = 8;
constexpr int kTopDigit = 32 - kDigitBits;
using Bins = std::array<double, size_t{1} << kDigitBits>;

// The bin, from the top, in which the running sum reaches `need`; takes the bins above it off `need`. If rounding
// leaves the sum just short, it is the lowest bin that holds anything.
uint32_t find_bin(const Bins& bins, double& need) {
  uint32_t lowest = 0;
  for (uint32_t b = bins.size(); b-- > 0;) {
    if (bins[b] <= 0) continue;
    if (bins[b] >= need) return b;
    need -= bins[b];
    lowest = b;
  }
  need = bins[lowest];
  return lowest;
}

// Cuts `d` behind the last token needed for the best tokens' mass to reach need(total mass). A radix selection on the
// logits' bits, one digit per pass from the top: linear time and a fixed table, where sorting would need a copy.
template <typename Mass, typename Need>
void cut_after(Distribution& d, Mass mass, Need need_of) {
  const auto count = static_cast<int32_t>(d.logits.size());
  double need = 0;
  uint64_t prefix = 0;
  for (int shift = kTopDigit; shift >= 0; shift -= kDigitBits) {
    Bins bins{};
    double total = 0;
    for (int32_t i = 0; i < count; ++i) {
      const uint64_t key = order_key(d.logits[i]);
      if (key >> (shift + kDigitBits) != prefix) continue;
      const double m = mass(i);
      bins[(key >> shift) % bins.size()] += m;
      total += m;
    }
    if (shift == kTopDigit) need = need_of(total);
    prefix = (prefix << kDigitBits) | find_bin(bins, need);
  }
  const float cut = logit_of(static_cast<uint32_t>(prefix));
  int32_t last = 0;
  for (int32_t i = 0; i < count && need > 0; ++i) {  // the tokens tied at the cut, lowest id first
    if (d.logits[i] != cut) continue;
    const double m = mass(i);
    if (m > 0) last = i;  // not into ties that an earlier cut removed, should rounding leave need above 0
    need -= m;
  }
  d.cut_logit = cut;
  d.cut_id = last;
}

}  // namespace

SamplerState::SamplerState(const SamplingParams& params, std::span<const int32_t> prompt, int64_t valid_vocab,
                           uint32_t choice)
    : seed_(params.seed ? *params.seed : fresh_seed()), choice_(choice), valid_vocab_(valid_vocab) {
  CHECK(valid_vocab > 0 && valid_vocab <= std::numeric_limits<int32_t>::max(), "valid_vocab {}", valid_vocab);
  if (!adjusts(params)) return;
  entry_of_.assign(static_cast<size_t>(valid_vocab), -1);
  entries_.reserve(static_cast<size_t>(valid_vocab));
  for (const auto& [id, bias] : params.logit_bias) {
    if (Entry* e = entry(id)) e->bias += bias;
  }
  for (int32_t token : prompt) {
    if (Entry* e = entry(token)) e->seen = true;
  }
}

SamplerState::Entry* SamplerState::entry(int32_t token) {
  if (token < 0 || static_cast<size_t>(token) >= entry_of_.size()) return nullptr;
  int32_t& index = entry_of_[token];
  if (index < 0) {
    index = static_cast<int32_t>(entries_.size());
    entries_.push_back({.id = token});
  }
  return &entries_[index];
}

const SamplerState::Entry* SamplerState::find(int32_t token) const {
  if (token < 0 || static_cast<size_t>(token) >= entry_of_.size() || entry_of_[token] < 0) return nullptr;
  return &entries_[entry_of_[token]];
}

void SamplerState::append(int32_t token) {
  Entry* e = entry(token);
  if (e == nullptr) return;
  e->seen = true;
  ++e->output_count;
}

void adjust_logits(std::span<float> logits, const SamplingParams& params, SamplerState& state) {
  constexpr float kMax = std::numeric_limits<float>::max();
  for (SamplerState::Entry& e : state.entries()) {
    if (static_cast<size_t>(e.id) >= logits.size()) continue;
    float& x = logits[e.id];
    e.raw = x;
    if (x == -kInf) continue;  // masked stays masked
    x += e.bias;
    if (e.seen) x = x > 0 ? x / params.repetition_penalty : x * params.repetition_penalty;
    x -= params.frequency_penalty * static_cast<float>(e.output_count);
    if (e.output_count > 0) x -= params.presence_penalty;
    x = std::clamp(x, -kMax, kMax);  // an extreme repetition penalty must not make a finite logit infinite
  }
}

float Distribution::weight(int32_t id) const {
  const float x = logits[id];
  if (x < cut_logit || (x == cut_logit && id > cut_id)) return 0;
  const float w = std::exp((x - best) / temperature);
  return w >= min_p ? w : 0;
}

double Distribution::total() const {
  double sum = 0;
  for (int32_t i = 0; i < static_cast<int32_t>(logits.size()); ++i) sum += static_cast<double>(weight(i));
  return sum;
}

int32_t Distribution::draw(double u) const {
  constexpr int32_t kParts = 256;  // partial sums, so that the second look is at one part only
  const auto count = static_cast<int32_t>(logits.size());
  const int32_t step = count / kParts + 1;
  std::array<double, kParts> sums{};
  double total = 0;
  for (int32_t i = 0; i < count; ++i) sums[i / step] += weight(i);
  for (double sum : sums) total += sum;

  double target = u * total;
  int32_t part = -1;
  for (int32_t p = 0; p < kParts; ++p) {
    if (sums[p] <= 0) continue;
    if (part >= 0) target -= sums[part];
    part = p;
    if (target < sums[p]) break;
  }
  if (part < 0) return -1;
  int32_t chosen = -1;
  double sum = 0;
  for (int32_t i = part * step; i < std::min(count, (part + 1) * step) && sum <= target; ++i) {
    const double w = weight(i);
    if (w > 0) chosen = i;
    sum += w;
  }
  return chosen;
}

Distribution filter(std::span<const float> logits, float best, const SamplingParams& params) {
  Distribution d{.logits = logits, .best = best, .temperature = params.temperature};
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < logits.size()) {
    cut_after(
        d, [](int32_t) { return 1.0; }, [&](double) { return static_cast<double>(params.top_k); });
  }
  if (params.top_p < 1) {
    cut_after(
        d, [&d](int32_t i) -> double { return d.weight(i); }, [&](double total) { return params.top_p * total; });
  }
  d.min_p = params.min_p;
  return d;
}

int32_t verify_draft(const Distribution& p, const Distribution& q, int32_t draft, double u, double v) {
  const double p_total = p.total(), q_total = q.total();
  const auto excess = [&](int32_t i) {
    return static_cast<double>(p.weight(i)) / p_total - static_cast<double>(q.weight(i)) / q_total;
  };
  const double accepted = static_cast<double>(p.weight(draft)) / p_total;
  if (u * static_cast<double>(q.weight(draft)) / q_total < accepted) return draft;
  const auto count = static_cast<int32_t>(p.logits.size());
  double rest = 0;
  for (int32_t i = 0; i < count; ++i) rest += std::max(0.0, excess(i));
  int32_t chosen = -1;
  double sum = 0;
  for (int32_t i = 0; i < count && sum <= v * rest; ++i) {
    const double w = excess(i);
    if (w > 0) chosen = i, sum += w;
  }
  return chosen >= 0 ? chosen : p.draw(v);  // where p equals q but for rounding
}

namespace {

std::span<const float> valid(std::span<const float> logits, const SamplerState& state) {
  return logits.first(std::min(logits.size(), static_cast<size_t>(state.valid_vocab())));
}

Distribution draft_distribution(std::span<const float> logits, const SamplingParams& params,
                                const SamplerState& state) {
  const std::span<const float> known = valid(logits, state);
  return filter(known, *std::max_element(known.begin(), known.end()), params);
}

// The draws of a position: for its token and for its drafts, which must not depend on each other.
Rng draws(const SamplerState& state, int64_t position, bool of_draft) {
  return Rng(mix64(of_draft ? ~state.seed() : state.seed()) + state.choice(), static_cast<uint64_t>(position));
}

}  // namespace

int32_t draft_token(std::span<const float> logits, const SamplingParams& params, const SamplerState& state,
                    int64_t position) {
  logits = valid(logits, state);
  const Scan found = scan(logits);
  if (found.bad || found.best == -kInf) return -1;
  if (params.temperature < kGreedyTemperature)
    return static_cast<int32_t>(std::find(logits.begin(), logits.end(), found.best) - logits.begin());
  return filter(logits, found.best, params).draw(draws(state, position, true).uniform());
}

void TokenFilter::apply(std::span<float> logits) const {
  for (size_t word = 0; word < allowed.size() && word * 32 < logits.size(); ++word) {
    if (allowed[word] == ~uint32_t{0}) continue;
    const size_t end = std::min(logits.size(), word * 32 + 32);
    for (size_t i = word * 32; i < end; ++i)
      if ((allowed[word] >> (i % 32) & 1) == 0) logits[i] = -kInf;
  }
  for (int32_t id : banned)
    if (id >= 0 && static_cast<size_t>(id) < logits.size()) logits[static_cast<size_t>(id)] = -kInf;
}

SampledToken score_token(std::span<const float> logits, int32_t token, int logprobs, int64_t valid_vocab) {
  logits = logits.first(std::min(logits.size(), static_cast<size_t>(valid_vocab)));
  SampledToken out;
  out.id = token;
  const Scan found = scan(logits);
  if (found.bad || found.best == -kInf) {
    out.status = non_finite(logits, 0);
    return out;
  }
  const double log_norm = log_sum_exp(logits, found.best);
  if (logprobs > 0) collect_top(logits, log_norm, std::min(logprobs, kMaxLogprobs), out);
  const auto id = static_cast<size_t>(token);
  out.logprob = id < logits.size() ? static_cast<float>(logits[id] - log_norm) : -kInf;
  return out;
}

SampledToken sample(std::span<float> logits, const SamplingParams& params, SamplerState& state, int64_t position,
                    const DraftToken* draft, const TokenFilter& filter) {
  logits = logits.first(std::min(logits.size(), static_cast<size_t>(state.valid_vocab())));
  SampledToken out;
  Scan found = scan(logits);
  if (found.bad || found.best == -kInf) {
    out.status = non_finite(logits, position);
    return out;
  }
  const double log_norm = log_sum_exp(logits, found.best);
  if (params.logprobs > 0) collect_top(logits, log_norm, std::min(params.logprobs, kMaxLogprobs), out);
  if (!state.entries().empty()) {
    adjust_logits(logits, params, state);
    found = scan(logits);
  }
  if (filter.active()) {
    filter.apply(logits);
    found = scan(logits);
    if (found.best == -kInf) {
      out.status = {StatusCode::internal,
                    fmt::format("no token with a finite logit is allowed at position {}", position)};
      return out;
    }
  }
  out.gap = found.best - found.second;
  if (params.temperature < kGreedyTemperature) {
    out.id = static_cast<int32_t>(std::find(logits.begin(), logits.end(), found.best) - logits.begin());
  } else {
    Rng rng = draws(state, position, false);
    const Distribution p = moesaic::filter(logits, found.best, params);
    const double u = rng.uniform();
    out.id = draft == nullptr
                 ? p.draw(u)
                 : verify_draft(p, draft_distribution(draft->logits, params, state), draft->id, u, rng.uniform());
    CHECK(out.id >= 0, "no token has a positive weight at temperature {}", params.temperature);
  }
  const SamplerState::Entry* entry = state.find(out.id);
  out.logprob = static_cast<float>((entry != nullptr ? entry->raw : logits[out.id]) - log_norm);
  return out;
}

double draw_of(const SamplerState& state, int64_t position) {
  return draws(state, position, false).uniform();
}

SampledToken sampled_on_device(const SampledRow& row, int64_t position) {
  SampledToken out;
  out.id = row.id, out.logprob = row.logprob, out.gap = row.gap;
  if (row.id >= 0) return out;
  out.status = {StatusCode::internal,
                row.bad > 0 ? fmt::format("the logit of token {} at position {} is not finite", row.bad - 1, position)
                            : fmt::format("all logits at position {} are -inf", position)};
  return out;
}

}  // namespace moesaic
