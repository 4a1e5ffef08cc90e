#include "engine/speculation.h"

#include <algorithm>
#include <cstring>

namespace moesaic {

std::span<float> logits_row(std::byte* rows, int64_t row, int64_t vocab, DType activation) {
  std::byte* values = rows + row * vocab * dtype_bytes(activation);
  for (int64_t i = 0; activation == DType::f64 && i < vocab; ++i) {
    double wide;
    std::memcpy(&wide, values + i * 8, 8);
    const float narrow = static_cast<float>(wide);
    std::memcpy(values + i * 4, &narrow, 4);
  }
  return {reinterpret_cast<float*>(values), static_cast<size_t>(vocab)};
}

int64_t sample_with_drafts(function_ref<std::span<float>(int64_t)> row_of, std::span<const DraftToken> drafts,
                           const SamplingParams& params, SamplerState& state, int64_t position,
                           std::span<SampledToken> out, const TokenFilter& filter) {
  for (int64_t j = 0;; ++j) {
    const DraftToken* draft = j < std::ssize(drafts) ? &drafts[static_cast<size_t>(j)] : nullptr;
    SampledToken& token = out[static_cast<size_t>(j)];
    token = sample(row_of(j), params, state, position + j, draft, filter);
    if (!token.status.ok()) return j + 1;
    state.append(token.id);
    if (draft == nullptr || token.id != draft->id) return j + 1;
  }
}

Drafter::Drafter(LoadedModel& model)
    : model_(model),
      layer_(*model.draft),
      count_(model.speculative_tokens),
      batch_(layer_.start_limits(), layer_.next_limits(), model.max_blocks()),
      drafted_(static_cast<size_t>(model.slots)),
      logits_(static_cast<size_t>(model.slots * count_ * model.model.vocab)) {
  in_batch_.reserve(static_cast<size_t>(model.slots));
}

// The model adds a token of its own to those it accepts, so the last one allowed is never drafted.
int64_t Drafter::wanted(const Sequence& sequence) const {
  if (sequence.filtered()) return 0;
  return std::min(count_, sequence.request.max_new_tokens - sequence.generated() - 1);
}

void Drafter::draft(const Plan& plan, std::span<const ComputedTokens> computed) {
  start(plan, computed);
  for (int64_t i = 1; i < count_ && !in_batch_.empty(); ++i) next();
}

// A prompt's chunk, too, goes through the layer: its keys are what later drafts attend to.
void Drafter::start(const Plan& plan, std::span<const ComputedTokens> computed) {
  batch_.clear();
  in_batch_.clear();
  for (const ComputedTokens& c : computed) {
    Sequence& s = *c.sequence;
    if (wanted(s) < 1) continue;
    batch_.add({s.tokens.data() + c.start + 1, static_cast<size_t>(c.tokens)}, c.start, s.cache.blocks, s.cache.slot,
               s.decoding() ? 1 : 0);
    batch_.set_hidden_rows(c.row);
    if (s.decoding()) in_batch_.push_back(&s);
  }
  if (batch_.empty()) return;
  layer_.start(batch_.view(), hidden_states(plan, model_.memory()), model_.device->stream());
  take_drafts();
}

// One more for each sequence whose last draft is not the last it wants; row i of the step before was that of
// in_batch_[i].
void Drafter::next() {
  batch_.clear();
  size_t kept = 0;
  for (size_t i = 0; i < in_batch_.size(); ++i) {
    Sequence& s = *in_batch_[i];
    const auto drafts = static_cast<int64_t>(s.drafts.size());
    if (drafted_[i] < 0 || drafts >= wanted(s)) continue;
    batch_.add({&s.drafts.back().id, 1}, s.cache.length + drafts - 1, s.cache.blocks, s.cache.slot, 1);
    batch_.set_hidden_rows(static_cast<int64_t>(i));
    in_batch_[kept++] = &s;
  }
  in_batch_.resize(kept);
  if (batch_.empty()) return;
  layer_.next(batch_.view(), model_.device->stream());
  take_drafts();
}

void Drafter::take_drafts() {
  const int64_t vocab = model_.model.vocab;
  const DType activation = activation_dtype(model_.device->info().backend);
  std::byte* rows = layer_.logits();
  model_.device->stream().pool->run(static_cast<int64_t>(in_batch_.size()), [&](int64_t i, int) {
    Sequence& s = *in_batch_[static_cast<size_t>(i)];
    const std::span<const float> row = logits_row(rows, i, vocab, activation);
    const int64_t position = s.length() + static_cast<int64_t>(s.drafts.size());
    const int32_t id = draft_token(row, s.request.sampling, s.sampler, position);
    drafted_[static_cast<size_t>(i)] = id;
    if (id >= 0) keep(s, id, row);
  });
}

void Drafter::keep(Sequence& s, int32_t id, std::span<const float> logits) {
  float* copy = logits_.data() + (s.cache.slot * count_ + static_cast<int64_t>(s.drafts.size())) * std::ssize(logits);
  if (s.request.sampling.temperature >= kGreedyTemperature) std::copy(logits.begin(), logits.end(), copy);
  s.drafts.push_back({id, {copy, logits.size()}});
}

}  // namespace moesaic
