#include "engine/engine_loop.h"

#include <algorithm>

#include "base/log.h"

namespace moesaic {

EngineLoop::EngineLoop(LoadedModel& model, const Tokenizer* tokenizer, std::vector<int32_t> eos, int64_t valid_vocab,
                       int64_t max_queue)
    : model_(model),
      tokenizer_(tokenizer),
      eos_(std::move(eos)),
      valid_vocab_(valid_vocab),
      max_queue_(max_queue),
      pool_(model.blocks, model.compiled.cache.block_stride, model.slots, model.compiled.cache.slot_stride),
      batch_(model.compiled.prefill.limits, model.compiled.decode.limits, model.max_blocks()) {
  const auto sequences = static_cast<size_t>(model.slots);
  in_batch_.reserve(sequences);
  computed_.reserve(sequences);
  sampled_count_.resize(sequences);
  sampled_.resize(sequences * static_cast<size_t>(1 + model.speculative_tokens));
  last_and_drafts_.reserve(static_cast<size_t>(1 + model.speculative_tokens));
  if (model.draft) drafter_.emplace(model);
  if (model.steps) {
    model.steps->set_valid_vocab(std::min(valid_vocab, model.compiled.decode.vocab));
    model.steps->warm_up(model.compiled.decode);
  }
  thread_ = std::thread([this] { loop(); });
}

EngineLoop::~EngineLoop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_one();
  thread_.join();
}

Result<std::shared_ptr<CompletionStream>> EngineLoop::submit(Request request, std::vector<PatchedImage> images) {
  auto stream = std::make_shared<CompletionStream>();
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
    if (static_cast<int64_t>(waiting_.size()) >= max_queue_)
      return Status(
          StatusCode::resource_exhausted,
          fmt::format("{} requests are waiting already, the most this engine queues; try again later", max_queue_));
    waiting_.emplace_back(std::move(request), stream, tokenizer_, valid_vocab_);
    waiting_.back().images = std::move(images);
  }
  work_.notify_one();
  return stream;
}

void EngineLoop::loop() {
  try {
    while (wait_for_work()) step();
    fail_all({StatusCode::cancelled, "the engine was closed"});
  } catch (const std::exception& error) {
    log(LogLevel::error, "the engine stopped: {}", error.what());
    fail_all({StatusCode::internal, fmt::format("the engine stopped: {}", error.what())});
  }
}

bool EngineLoop::wait_for_work() {
  std::unique_lock lock(mutex_);
  work_.wait(lock, [&] { return stopping_ || !waiting_.empty() || !running_.empty(); });
  return !stopping_;
}

void EngineLoop::step() {
  drop_cancelled();
  admit();
  const size_t earlier = in_flight_.size();
  decode();
  encode_images();
  prefill();
  collect(in_flight_.size() - std::min(in_flight_.size(), earlier));  // everything, where nothing new was started
}

// First come, first served; a sequence is admitted when its worst case fits, so that it never has to be preempted.
void EngineLoop::admit() {
  const std::lock_guard lock(mutex_);
  while (!waiting_.empty()) {
    Sequence& next = waiting_.front();
    if (!pool_.open(next.cache, next.worst_case_tokens())) return;
    next.started = Clock::now();
    running_.splice(running_.end(), waiting_, waiting_.begin());
  }
}

void EngineLoop::drop_cancelled() {
  const Status status(StatusCode::cancelled, "the request was cancelled");
  for (Sequence& sequence : running_)
    if (sequence.stream->cancelled()) retire(sequence, status, FinishReason::cancelled);
  drop_ended();
  const std::lock_guard lock(mutex_);
  std::erase_if(waiting_, [&](Sequence& s) {
    const bool cancelled = s.stream->cancelled();
    if (cancelled) s.finish(status, FinishReason::cancelled);
    return cancelled;
  });
}

void EngineLoop::decode() {
  const Plan& plan = model_.compiled.decode;
  batch_.clear();
  in_batch_.clear();
  for (Sequence& sequence : running_) {
    if (!sequence.decoding() || !sequence.may_generate() || batch_.sequences() >= plan.limits.sequences) continue;
    static constexpr int32_t kOnDevice[] = {-1};
    const std::span<const int32_t> tokens =
        sequence.in_flight > 0 ? std::span<const int32_t>(kOnDevice) : sequence.last_and_drafts(last_and_drafts_);
    batch_.add(tokens, sequence.cache.length, sequence.cache.blocks, sequence.cache.slot, std::ssize(tokens));
    in_batch_.push_back(&sequence);
  }
  run_batch(plan);
}

// The first images that wait: one sequence's in a step, so that the others are not held up for long.
void EngineLoop::encode_images() {
  const auto waits = [](const Sequence& s) { return !s.images.empty(); };
  const auto sequence = std::find_if(running_.begin(), running_.end(), waits);
  if (sequence == running_.end()) return;
  try {
    for (const PatchedImage& image : sequence->images) {
      const std::vector<float> rows = model_.vision->encode({image.values, image.rows, image.columns}, *model_.device);
      sequence->image_rows.insert(sequence->image_rows.end(), rows.begin(), rows.end());
    }
    sequence->images.clear();
    sequence->place_image_rows(model_.model.vision->placeholder, model_.model.hidden);
  } catch (const Error& error) {  // no memory for so large an image
    retire(*sequence, {error.code(), error.what(), "images"}, FinishReason::error);
    running_.erase(sequence);
  }
}

void EngineLoop::prefill() {
  const Plan& plan = model_.compiled.prefill;
  batch_.clear();
  in_batch_.clear();
  for (Sequence& sequence : running_) {
    const int64_t budget = plan.limits.tokens - batch_.tokens();
    if (sequence.decoding() || !sequence.images.empty() || budget == 0 || batch_.sequences() >= plan.limits.sequences)
      continue;
    const int64_t count = std::min(budget, sequence.pending());
    batch_.add({sequence.tokens.data() + sequence.cache.length, static_cast<size_t>(count)}, sequence.cache.length,
               sequence.cache.blocks, sequence.cache.slot, count == sequence.pending() ? 1 : 0,
               sequence.image_rows_of(sequence.cache.length, count));
    in_batch_.push_back(&sequence);
  }
  run_batch(plan);
}

void EngineLoop::run_batch(const Plan& plan) {
  if (batch_.empty()) return;
  if (model_.steps) return start_batch(plan);
  const BatchView view = batch_.view();
  run(plan, model_.compiled.cache, model_.memory(), view, model_.device->stream());
  computed_.clear();
  for (int64_t i = 0; i < view.sequences; ++i) {
    Sequence& sequence = *in_batch_[static_cast<size_t>(i)];
    const int64_t row = view.sequence_offsets[i];
    const int64_t known = view.sequence_offsets[i + 1] - row - std::ssize(sequence.drafts);
    computed_.push_back({&sequence, sequence.cache.length, known, row});
    sequence.cache.length += known;
  }
  sample_batch(plan);
  std::erase_if(computed_, [](const ComputedTokens& c) { return c.sequence == nullptr; });
  if (drafter_) drafter_->draft(plan, computed_);
}

// A chunk that does not end its prompt has no logits.
void EngineLoop::sample_batch(const Plan& plan) {
  const DType activation = activation_dtype(model_.device->info().backend);
  std::byte* rows = logits(plan, model_.memory());
  const size_t width = sampled_.size() / sampled_count_.size();
  model_.device->stream().pool->run(static_cast<int64_t>(in_batch_.size()), [&](int64_t i, int) {
    Sequence& sequence = *in_batch_[static_cast<size_t>(i)];
    if (sequence.pending() > 0) return;
    const auto row_of = [&](int64_t j) { return logits_row(rows, batch_.first_row(i) + j, plan.vocab, activation); };
    sampled_count_[static_cast<size_t>(i)] =
        sample_with_drafts(row_of, sequence.drafts, sequence.request.sampling, sequence.sampler, sequence.length(),
                           std::span(sampled_).subspan(static_cast<size_t>(i) * width, width));
  });
  for (size_t i = 0; i < in_batch_.size(); ++i)
    if (in_batch_[i]->pending() == 0 && !take_tokens(i)) computed_[i].sequence = nullptr;
  drop_ended();
}

bool EngineLoop::take_tokens(size_t i) {
  Sequence& sequence = *in_batch_[i];
  const int64_t count = sampled_count_[i];
  sequence.count_drafts(count - 1);
  for (int64_t j = 0; j < count; ++j) {
    const SampledToken& token = sampled_[i * (sampled_.size() / sampled_count_.size()) + static_cast<size_t>(j)];
    FinishReason reason = FinishReason::error;
    if (token.status.ok() && !sequence.accept(token, eos_, reason)) continue;
    retire(sequence, token.status, reason);
    return false;
  }
  computed_[i].tokens += count - 1;  // the accepted drafts
  sequence.cache.length += count - 1;
  return true;
}

SampleRow EngineLoop::sample_row(const Sequence& sequence) const {
  const SamplingParams& p = sequence.request.sampling;
  const bool greedy = p.temperature < kGreedyTemperature;
  return {.temperature = greedy ? 0 : p.temperature,
          .top_p = p.top_p,
          .min_p = p.min_p,
          .top_k = p.top_k,
          .uniform = greedy ? 0 : draw_of(sequence.sampler, sequence.length() + sequence.in_flight),
          .slot = sequence.cache.slot};
}

void EngineLoop::start_batch(const Plan& plan) {
  const BatchView view = batch_.view();
  sample_rows_.clear();
  InFlight step;
  bool by_host = false;
  for (int64_t i = 0; i < view.sequences; ++i) {
    Sequence& sequence = *in_batch_[static_cast<size_t>(i)];
    const bool sampled =
        sequence.in_flight > 0 ||
        sequence.cache.length + view.sequence_offsets[i + 1] - view.sequence_offsets[i] == sequence.length();
    sequence.cache.length += view.sequence_offsets[i + 1] - view.sequence_offsets[i];
    if (!sampled) continue;
    sample_rows_.push_back(sample_row(sequence));
    ++sequence.in_flight;
    by_host |= sequence.sampled_by_host();
    step.sequences.push_back(&sequence);
  }
  step.result = model_.steps->run(plan, view, sample_rows_);
  in_flight_.push_back(std::move(step));
  if (by_host) sample_on_host(plan);
}

void EngineLoop::take_sampled(Sequence& sequence, const SampledToken& token) {
  --sequence.in_flight;
  if (token.status.ok()) sequence.sampler.append(token.id);
  FinishReason reason = FinishReason::error;
  if (!token.status.ok() || sequence.accept(token, eos_, reason)) retire(sequence, token.status, reason);
}

// `logits`: the step's rows on the host, where a sequence of it is sampled there.
void EngineLoop::take_step(const InFlight& step, const Plan* plan, float* logits) {
  step.result.done->wait();
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    Sequence* sequence = step.sequences[i];
    if (sequence == nullptr) continue;
    const int64_t position = sequence->length();
    if (logits == nullptr || !sequence->sampled_by_host()) {
      take_sampled(*sequence, sampled_on_device(step.result.rows[i], position));
      continue;
    }
    const auto vocab = static_cast<size_t>(plan->vocab);
    take_sampled(*sequence,
                 sample({logits + i * vocab, vocab}, sequence->request.sampling, sequence->sampler, position));
  }
}

void EngineLoop::collect(size_t keep) {
  while (in_flight_.size() > keep) {
    const InFlight step = std::move(in_flight_.front());
    in_flight_.pop_front();
    take_step(step);
  }
  drop_ended();
}

// The step started last has a sequence whose token the device cannot choose: its logits are read before the next step
// overwrites them. What the device chose for the others stays.
void EngineLoop::sample_on_host(const Plan& plan) {
  collect(1);
  InFlight step = std::move(in_flight_.back());
  in_flight_.pop_back();
  auto* rows =
      reinterpret_cast<float*>(on_host(*model_.device, logits(plan, model_.memory()),
                                       std::ssize(step.sequences) * plan.vocab * int64_t{sizeof(float)}, logits_));
  take_step(step, &plan, rows);
  drop_ended();
}

void EngineLoop::drop_ended() {
  std::erase_if(running_, [](const Sequence& s) { return s.cache.slot < 0; });
}

// The sequence's blocks are free at once: on the CPU no step in flight refers to them, and on a GPU steps run in order,
// so one that does is over before their next owner's begins.
void EngineLoop::retire(Sequence& sequence, Status status, FinishReason reason) {
  for (InFlight& step : in_flight_)
    std::replace(step.sequences.begin(), step.sequences.end(), &sequence, static_cast<Sequence*>(nullptr));
  sequence.finish(std::move(status), reason);
  pool_.close(sequence.cache);
}

void EngineLoop::fail_all(const Status& status) {
  const FinishReason reason = status.code() == StatusCode::cancelled ? FinishReason::cancelled : FinishReason::error;
  const std::lock_guard lock(mutex_);
  failure_ = status;
  for (Sequence& sequence : running_) retire(sequence, status, reason);
  for (Sequence& sequence : waiting_) sequence.finish(status, reason);
  in_flight_.clear();
  running_.clear();
  waiting_.clear();
}

}  // namespace moesaic
