#include "engine/engine_loop.h"

#include <algorithm>
#include <cstring>

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
  sampled_.resize(sequences);
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
  decode();
  encode_images();
  prefill();
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
  std::erase_if(running_, [](const Sequence& s) { return s.cache.slot < 0; });
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
    if (!sequence.decoding() || batch_.tokens() >= plan.limits.tokens) continue;
    batch_.add({&sequence.tokens.back(), 1}, sequence.cache.length, sequence.cache.blocks, sequence.cache.slot, 1);
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
  const BatchView view = batch_.view();
  run(plan, model_.compiled.cache, model_.memory(), view, model_.device->stream());
  for (int64_t i = 0; i < view.sequences; ++i)
    in_batch_[static_cast<size_t>(i)]->cache.length += view.sequence_offsets[i + 1] - view.sequence_offsets[i];
  // A chunk that does not end its prompt has no logits.
  std::erase_if(in_batch_, [](const Sequence* s) { return s->pending() > 0; });
  sample_batch(plan);
}

namespace {

// The reference backend's logits are f64; the sampler reads f32.
void narrow_in_place(std::byte* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    double wide;
    std::memcpy(&wide, values + i * 8, 8);
    const float narrow = static_cast<float>(wide);
    std::memcpy(values + i * 4, &narrow, 4);
  }
}

}  // namespace

void EngineLoop::sample_batch(const Plan& plan) {
  const bool wide = activation_dtype(model_.device->info().backend) == DType::f64;
  std::byte* rows = logits(plan, model_.memory());
  model_.device->stream().pool->run(static_cast<int64_t>(in_batch_.size()), [&](int64_t i, int) {
    Sequence& sequence = *in_batch_[static_cast<size_t>(i)];
    std::byte* bytes = rows + i * plan.vocab * (wide ? 8 : 4);
    if (wide) narrow_in_place(bytes, plan.vocab);
    auto* row = reinterpret_cast<float*>(bytes);
    sampled_[static_cast<size_t>(i)] =
        sample({row, static_cast<size_t>(plan.vocab)}, sequence.request.sampling, sequence.sampler, sequence.length());
  });
  for (size_t i = 0; i < in_batch_.size(); ++i) {
    FinishReason reason = FinishReason::error;
    const SampledToken& token = sampled_[i];
    if (!token.status.ok()) retire(*in_batch_[i], token.status, FinishReason::error);
    else if (in_batch_[i]->accept(token, eos_, reason)) retire(*in_batch_[i], {}, reason);
  }
  std::erase_if(running_, [](const Sequence& s) { return s.cache.slot < 0; });
}

// The sequence's blocks are free at once: no step in flight refers to them.
void EngineLoop::retire(Sequence& sequence, Status status, FinishReason reason) {
  sequence.finish(std::move(status), reason);
  pool_.close(sequence.cache);
}

void EngineLoop::fail_all(const Status& status) {
  const FinishReason reason = status.code() == StatusCode::cancelled ? FinishReason::cancelled : FinishReason::error;
  const std::lock_guard lock(mutex_);
  failure_ = status;
  for (Sequence& sequence : running_) retire(sequence, status, reason);
  for (Sequence& sequence : waiting_) sequence.finish(status, reason);
  running_.clear();
  waiting_.clear();
}

}  // namespace moesaic
