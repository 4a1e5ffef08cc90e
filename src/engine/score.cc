#include "engine/score.h"

#include <algorithm>
#include <cmath>

namespace moesaic {
namespace {

constexpr int64_t kMaxChunk = 512;

template <typename T>
double log_softmax(std::span<const T> logits, int64_t target) {
  const double top = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (T logit : logits) sum += std::exp(static_cast<double>(logit) - top);
  return static_cast<double>(logits[static_cast<size_t>(target)]) - top - std::log(sum);
}

}  // namespace

double kl_divergence(std::span<const double> p, std::span<const double> q) {
  CHECK(p.size() == q.size() && !p.empty(), "{} and {} logits", p.size(), q.size());
  const double p_top = *std::max_element(p.begin(), p.end()), q_top = *std::max_element(q.begin(), q.end());
  double p_sum = 0, q_sum = 0, difference = 0;  // sum of e^(p - p_top) (p - q)
  for (size_t i = 0; i < p.size(); ++i) {
    const double weight = std::exp(p[i] - p_top);
    p_sum += weight;
    q_sum += std::exp(q[i] - q_top);
    difference += weight * ((p[i] - p_top) - (q[i] - q_top));
  }
  return difference / p_sum - std::log(p_sum) + std::log(q_sum);
}

double log_softmax_at(std::span<const float> logits, int64_t target) {
  return log_softmax(logits, target);
}

double log_softmax_at(std::span<const double> logits, int64_t target) {
  return log_softmax(logits, target);
}

LoadOptions score_limits(LoadOptions options, int64_t targets, int64_t chunk) {
  const Model model = open_model(options.model, false).model;
  const int64_t context = options.max_model_len > 0 ? options.max_model_len : model.max_positions;
  if (targets > context)
    fail_argument("a window of {} tokens is longer than the context of {} ({}); use a smaller --window", targets,
                  context, options.max_model_len > 0 ? "--max-model-len" : "max_position_embeddings of config.json");
  const int64_t row_bytes = model.vocab * dtype_bytes(activation_dtype(options.backend));
  const int64_t rows = std::clamp<int64_t>(kScoreLogitsBytes / row_bytes, 1, kMaxChunk);
  options.max_sequences = 1;
  options.max_model_len = targets;
  options.cache_tokens = 0;
  options.prefill_tokens = options.prefill_rows = std::min(targets, chunk > 0 ? chunk : rows);
  return options;
}

Scorer::Scorer(LoadedModel& loaded)
    : loaded_(loaded),
      pool_(loaded.blocks, loaded.compiled.cache.block_stride, loaded.slots, loaded.compiled.cache.slot_stride),
      batch_(loaded.compiled.prefill.limits, loaded.compiled.decode.limits, loaded.max_blocks()) {
  CHECK(pool_.open(cache_, loaded.max_model_len), "no room for {} tokens", loaded.max_model_len);
}

std::span<const double> Scorer::score(std::span<const int32_t> tokens, const EachRow& each) {
  const Limits& limits = loaded_.compiled.prefill.limits;
  const int64_t targets = static_cast<int64_t>(tokens.size()) - 1, step = std::min(limits.tokens, limits.rows);
  CHECK(targets >= 1 && targets <= loaded_.max_model_len, "{} tokens", targets);
  log_probabilities_.clear();
  for (int64_t begin = 0; begin < targets; begin += step)
    score_chunk(tokens, begin, std::min(step, targets - begin), each);
  return log_probabilities_;
}

void Scorer::score_chunk(std::span<const int32_t> tokens, int64_t begin, int64_t count, const EachRow& each) {
  const Plan& plan = loaded_.compiled.prefill;
  batch_.clear();
  batch_.add(tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)), begin, cache_.blocks, cache_.slot,
             count);
  loaded_.run_step(plan, batch_.view());
  const int64_t row_bytes = plan.vocab * dtype_bytes(activation_dtype(loaded_.device->info().backend));
  const std::byte* rows = on_host(*loaded_.device, logits(plan, loaded_.memory()), count * row_bytes, host_);
  const auto vocab = static_cast<size_t>(plan.vocab);
  const bool wide = activation_dtype(loaded_.device->info().backend) == DType::f64;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t target = tokens[static_cast<size_t>(begin + i + 1)];
    CHECK(target >= 0 && target < plan.vocab, "token {}", target);
    const size_t row = static_cast<size_t>(i) * vocab;
    const double value = wide ? log_softmax_at({reinterpret_cast<const double*>(rows) + row, vocab}, target)
                              : log_softmax_at({reinterpret_cast<const float*>(rows) + row, vocab}, target);
    if (!std::isfinite(value))
      throw Error(StatusCode::internal, fmt::format("the logits after token {} of a text are not finite", begin + i));
    log_probabilities_.push_back(value);
    if (!each) continue;
    row_.resize(vocab);
    for (size_t v = 0; v < vocab; ++v)
      row_[v] = wide ? reinterpret_cast<const double*>(rows)[row + v] : reinterpret_cast<const float*>(rows)[row + v];
    each(begin + i, row_);
  }
}

}  // namespace moesaic
