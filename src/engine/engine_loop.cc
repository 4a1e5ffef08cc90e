#include "engine/engine_loop.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace moesaic {
namespace {

constexpr auto kExpertsEvery = std::chrono::milliseconds(250);  // between copies of the experts' counts

}  // namespace

EngineLoop::EngineLoop(LoadedModel& model, LoopOptions options)
    : model_(model),
      options_(std::move(options)),
      memory_(model, options_.reuse),
      scheduler_(memory_, options_.scheduler),
      experts_(model.compiled.prefill, model.compiled.decode),
      batch_(model.compiled.prefill.limits, model.compiled.decode.limits, model.max_blocks()) {
  const auto sequences = static_cast<size_t>(model.sequences);
  in_batch_.reserve(sequences);
  computed_.reserve(sequences);
  sampled_count_.resize(sequences);
  sampled_.resize(sequences * static_cast<size_t>(1 + model.speculative_tokens));
  last_and_drafts_.reserve(static_cast<size_t>(1 + model.speculative_tokens));
  if (model.draft) drafter_.emplace(model);
  if (model.steps) {
    model.steps->set_valid_vocab(std::min(options_.world.valid_vocab, model.compiled.decode.vocab));
    model.steps->warm_up(model.compiled.decode);
  }
  publish_stats();
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
    if (std::ssize(incoming_) + in_line_ >= options_.max_queue)
      return Status(StatusCode::resource_exhausted,
                    fmt::format("{} requests are waiting already, the most this engine queues; try again later",
                                options_.max_queue));
    incoming_.emplace_back(std::move(request), stream, options_.world);
    incoming_.back().images = std::move(images);
    incoming_.back().arrival = arrivals_++;
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

// Takes what came in. Returns false when the engine closes.
bool EngineLoop::wait_for_work() {
  std::list<Sequence> incoming;
  {
    std::unique_lock lock(mutex_);
    const auto busy = [&] {
      return stopping_ || clear_wanted_ || !incoming_.empty() || !scheduler_.running().empty() ||
             !scheduler_.waiting().empty();
    };
    if (!busy()) {
      publish_stats();
      work_.wait(lock, busy);
    }
    if (stopping_) return false;
    incoming.swap(incoming_);
    in_line_ = std::ssize(scheduler_.waiting()) + std::ssize(incoming);
    if (std::exchange(clear_wanted_, false)) {
      const bool runs = !scheduler_.running().empty();
      clear_result_ = runs ? Status(StatusCode::unavailable,
                                    fmt::format("{} requests run and use the cache; try again when they have ended",
                                                scheduler_.running().size()))
                           : memory_.clear();
      cleared_.notify_all();
    }
  }
  scheduler_.enqueue(std::move(incoming));
  return true;
}

Status EngineLoop::clear_prefix_cache() {
  std::unique_lock lock(mutex_);
  if (!failure_.ok()) return failure_;
  clear_wanted_ = true;
  clear_result_.reset();
  work_.notify_one();
  cleared_.wait(lock, [&] { return clear_result_.has_value() || !failure_.ok(); });
  return clear_result_.value_or(failure_);
}

void EngineLoop::step() {
  drop_given_up();
  scheduler_.admit();
  const size_t earlier = in_flight_.size();
  counted_.step_tokens = 0;
  decode();
  encode_images();
  prefill();
  collect(in_flight_.size() - std::min(in_flight_.size(), earlier));  // everything, where nothing new was started
  drop_ended();
  publish_stats();
}

Status EngineLoop::given_up(const Sequence& s, Clock::time_point now) const {
  if (s.stream->cancelled()) return {StatusCode::cancelled, "the request was cancelled"};
  if (s.request.deadline && s.generated() + s.in_flight == 0 && now >= *s.request.deadline)
    return {StatusCode::deadline_exceeded,
            fmt::format("no token was generated within {:.3g} s, the time this request had",
                        std::chrono::duration<double>(*s.request.deadline - s.submitted).count())};
  return {};
}

void EngineLoop::drop_given_up() {
  const Clock::time_point now = Clock::now();
  for (std::list<Sequence>* sequences : {&scheduler_.running(), &scheduler_.waiting()})
    for (Sequence& sequence : *sequences)
      if (Status status = given_up(sequence, now); !status.ok())
        retire(sequence, status,
               status.code() == StatusCode::cancelled ? FinishReason::cancelled : FinishReason::error);
  drop_ended();
}

// Every sequence that generates gets room for its next tokens, the oldest first; where there is none, the youngest goes
// back in line.
void EngineLoop::reserve_decoding() {
  std::vector<Sequence*> decoding;
  for (Sequence& sequence : scheduler_.running())
    if (sequence.decoding()) decoding.push_back(&sequence);
  std::ranges::sort(decoding, {}, [](const Sequence* s) { return s->arrival; });
  for (Sequence* sequence : decoding) reserve(*sequence);
}

void EngineLoop::reserve(Sequence& sequence) {
  while (sequence.cache.slot >= 0) {
    const int64_t tokens = sequence.cache.length + 1 + std::ssize(sequence.drafts) + options_.scheduler.lookahead;
    if (memory_.extend(sequence, std::min(tokens, sequence.worst_case_tokens()))) return;
    if (!in_flight_.empty()) {  // tokens under way may end sequences
      collect(0);
      continue;
    }
    scheduler_.preempt(scheduler_.youngest());
  }
}

void EngineLoop::decode() {
  const Plan& plan = model_.compiled.decode;
  reserve_decoding();
  drop_ended();
  batch_.clear();
  in_batch_.clear();
  for (Sequence& sequence : scheduler_.running()) {
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
  const auto sequence = std::ranges::find_if(scheduler_.running(), waits);
  if (sequence == scheduler_.running().end()) return;
  try {
    for (const PatchedImage& image : sequence->images) {
      const std::vector<float> rows = model_.vision->encode({image.values, image.rows, image.columns}, *model_.device);
      sequence->image_rows.insert(sequence->image_rows.end(), rows.begin(), rows.end());
    }
    sequence->images.clear();
    sequence->place_image_rows(model_.model.vision->placeholder, model_.model.hidden);
  } catch (const Error& error) {  // no memory for so large an image
    retire(*sequence, {error.code(), error.what(), "images"}, FinishReason::error);
    drop_ended();
  }
}

// A prompt that is scored needs a row of logits for each token.
int64_t EngineLoop::prefill_tokens(const Sequence& sequence, int64_t budget) const {
  const Limits& limits = model_.compiled.prefill.limits;
  const int64_t rows = limits.rows - batch_.rows();
  if (rows < 1 || batch_.sequences() >= limits.sequences) return 0;
  if (sequence.scoring()) budget = std::min(budget, rows);
  return memory_.step_tokens(sequence, std::min(budget, sequence.pending()));
}

void EngineLoop::prefill() {
  const Plan& plan = model_.compiled.prefill;
  // What the step has computed already counts; a chunk of a block's length always fits, so that prompts move on.
  const int64_t most =
      std::max(plan.limits.tokens - counted_.step_tokens, std::min<int64_t>(plan.limits.tokens, kBlockTokens));
  batch_.clear();
  in_batch_.clear();
  for (Sequence& sequence : scheduler_.running()) {
    if (sequence.decoding() || !sequence.images.empty() || sequence.pending() == 0) continue;
    const int64_t count = prefill_tokens(sequence, most - batch_.tokens());
    if (count <= 0) continue;
    const int64_t rows = sequence.scoring() ? count : count == sequence.pending() ? 1 : 0;
    batch_.add({sequence.tokens.data() + sequence.cache.length, static_cast<size_t>(count)}, sequence.cache.length,
               sequence.cache.blocks, sequence.cache.slot, rows, sequence.image_rows_of(sequence.cache.length, count));
    in_batch_.push_back(&sequence);
  }
  run_batch(plan);
}

void EngineLoop::run_batch(const Plan& plan) {
  if (batch_.empty()) return;
  const Clock::time_point start = Clock::now();
  const bool decoding = plan.phase == Phase::decode;
  counted_.step_tokens += batch_.tokens();
  (decoding ? counted_.decode_steps : counted_.prefill_steps) += 1;
  try {
    ++runs_;
    start_masks();
    if (options_.faults.contains(runs_))
      throw Error(StatusCode::internal, fmt::format("injected fault in step {}", runs_));
    model_.steps ? start_batch(plan) : run_on_cpu(plan);
  } catch (const Error& error) {
    if (model_.steps) throw;  // what a failed launch leaves of a GPU's state is not known
    fail_batch(error);
  }
  (decoding ? counted_.decode_seconds : counted_.prefill_seconds) +=
      std::chrono::duration<double>(Clock::now() - start).count();
}

// For the sequences whose tokens are chosen after this step.
void EngineLoop::start_masks() {
  const BatchView view = batch_.view();
  for (int64_t i = 0; i < view.sequences; ++i) {
    Sequence& s = *in_batch_[static_cast<size_t>(i)];
    const int64_t count = view.sequence_offsets[i + 1] - view.sequence_offsets[i];
    if (!s.request.score_only && s.cache.length + count >= s.length()) masks_.start(s);
  }
}

// A step that failed costs the requests that were in it.
void EngineLoop::fail_batch(const Error& error) {
  log(LogLevel::error, "a step of {} requests failed: {}", in_batch_.size(), error.what());
  for (Sequence* sequence : in_batch_) masks_.finish(*sequence);
  for (Sequence* sequence : in_batch_)
    if (sequence->cache.slot >= 0)
      retire(*sequence, {StatusCode::internal, fmt::format("the step failed: {}", error.what())}, FinishReason::error);
  drop_ended();
}

void EngineLoop::run_counted(const Plan& plan) {
  const StepHook hook = experts_;
  run(plan, model_.compiled.cache, model_.memory(), batch_.view(), model_.device->stream(),
      experts_.experts() > 0 ? &hook : nullptr);
}

void EngineLoop::run_on_cpu(const Plan& plan) {
  run_counted(plan);
  const BatchView view = batch_.view();
  computed_.clear();
  for (int64_t i = 0; i < view.sequences; ++i) {
    Sequence& sequence = *in_batch_[static_cast<size_t>(i)];
    const int64_t row = view.sequence_offsets[i];
    const int64_t known = view.sequence_offsets[i + 1] - row - std::ssize(sequence.drafts);
    computed_.push_back({&sequence, sequence.cache.length, known, row});
    sequence.cache.length += known;
    memory_.computed(sequence);
  }
  sample_batch(plan);
  std::erase_if(computed_, [](const ComputedTokens& c) { return c.sequence == nullptr; });
  if (drafter_) drafter_->draft(plan, computed_);
}

// Of one sequence in the batch: the last rows are sampled, those before them score the prompt. A chunk that does not
// end its prompt has no logits to sample.
void EngineLoop::sample_rows(size_t i, std::byte* rows, const Plan& plan) {
  Sequence& s = *in_batch_[i];
  const DType activation = activation_dtype(model_.device->info().backend);
  const int64_t first = batch_.first_row(static_cast<int64_t>(i));
  const auto row_of = [&](int64_t j) { return logits_row(rows, first + j, plan.vocab, activation); };
  int64_t scored = 0;
  if (s.scoring())
    for (; scored < computed_[i].tokens && computed_[i].start + scored + 1 < s.prompt_tokens; ++scored)
      s.score_prompt(row_of(scored), computed_[i].start + scored + 1);
  if (s.pending() > 0 || s.request.score_only) return;
  masks_.finish(s);
  const size_t width = sampled_.size() / sampled_count_.size();
  const auto sampled_row = [&](int64_t j) { return row_of(scored + j); };
  sampled_count_[i] = sample_with_drafts(sampled_row, s.drafts, s.request.sampling, s.sampler, s.length(),
                                         std::span(sampled_).subspan(i * width, width), s.filter());
}

void EngineLoop::sample_batch(const Plan& plan) {
  std::byte* rows = logits(plan, model_.memory());
  model_.device->stream().pool->run(static_cast<int64_t>(in_batch_.size()),
                                    [&](int64_t i, int) { sample_rows(static_cast<size_t>(i), rows, plan); });
  for (size_t i = 0; i < in_batch_.size(); ++i) {
    if (in_batch_[i]->pending() > 0) continue;
    if (in_batch_[i]->request.score_only) end_scoring(*in_batch_[i]);
    else if (take_tokens(i)) continue;
    computed_[i].sequence = nullptr;
  }
  drop_ended();
}

// True when the token ends the sequence.
bool EngineLoop::accept(Sequence& sequence, const SampledToken& token, FinishReason& reason) {
  if (sequence.generated() == 0) counted_.prompt_tokens += sequence.prompt_tokens;
  ++counted_.generated_tokens;
  return sequence.accept(token, reason);
}

void EngineLoop::end_scoring(Sequence& sequence) {
  counted_.prompt_tokens += sequence.prompt_tokens;
  sequence.stream->push({.prompt = std::exchange(sequence.prompt_scores, {})});
  retire(sequence, {}, FinishReason::length);
}

bool EngineLoop::take_tokens(size_t i) {
  Sequence& sequence = *in_batch_[i];
  const int64_t count = sampled_count_[i];
  sequence.count_drafts(count - 1);
  for (int64_t j = 0; j < count; ++j) {
    const SampledToken& token = sampled_[i * (sampled_.size() / sampled_count_.size()) + static_cast<size_t>(j)];
    FinishReason reason = FinishReason::error;
    if (token.status.ok() && !accept(sequence, token, reason)) continue;
    retire(sequence, token.status, reason);
    return false;
  }
  scheduler_.charge(sequence, count);
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
  scored_rows_.clear();
  InFlight step;
  bool by_host = false;
  for (int64_t i = 0; i < view.sequences; ++i) {
    Sequence& sequence = *in_batch_[static_cast<size_t>(i)];
    const int64_t count = view.sequence_offsets[i + 1] - view.sequence_offsets[i];
    const bool sampled = sequence.in_flight > 0 || sequence.cache.length + count == sequence.length();
    const int64_t scored = sequence.scoring() ? count - (sampled && !sequence.request.score_only ? 1 : 0) : 0;
    add_scored_rows(sequence, scored);
    step.sequences.resize(sample_rows_.size(), nullptr);
    by_host |= scored > 0;
    sequence.cache.length += count;
    if (!sampled || sequence.request.score_only) continue;
    sample_rows_.push_back(sample_row(sequence));
    by_host |= sequence.sampled_by_host();
    ++sequence.in_flight;
    step.sequences.push_back(&sequence);
  }
  step.result = model_.steps->run(plan, view, sample_rows_);
  in_flight_.push_back(std::move(step));
  for (Sequence* sequence : in_batch_) memory_.computed(*sequence);
  if (by_host) sample_on_host(plan);
}

// Their rows of logits are there, but nothing is sampled from them.
void EngineLoop::add_scored_rows(Sequence& sequence, int64_t rows) {
  for (int64_t j = 0; j < rows; ++j) {
    const int64_t position = sequence.cache.length + j + 1;
    if (position < sequence.prompt_tokens || sequence.request.score_only)
      scored_rows_.push_back({&sequence, std::ssize(sample_rows_), position});
    sample_rows_.push_back({.slot = sequence.cache.slot});
  }
}

void EngineLoop::take_sampled(Sequence& sequence, const SampledToken& token) {
  --sequence.in_flight;
  if (token.status.ok()) sequence.sampler.append(token.id);
  FinishReason reason = FinishReason::error;
  if (!token.status.ok() || accept(sequence, token, reason)) return retire(sequence, token.status, reason);
  scheduler_.charge(sequence, 1);
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
    masks_.finish(*sequence);
    const auto vocab = static_cast<size_t>(plan->vocab);
    take_sampled(*sequence, sample({logits + i * vocab, vocab}, sequence->request.sampling, sequence->sampler, position,
                                   nullptr, sequence->filter()));
  }
}

void EngineLoop::collect(size_t keep) {
  while (in_flight_.size() > keep) {
    const InFlight step = std::move(in_flight_.front());
    in_flight_.pop_front();
    take_step(step);
  }
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
  for (const ScoredRow& scored : scored_rows_)
    if (scored.position < scored.sequence->prompt_tokens)
      scored.sequence->score_prompt({rows + scored.row * plan.vocab, static_cast<size_t>(plan.vocab)}, scored.position);
    else end_scoring(*scored.sequence);
  take_step(step, &plan, rows);
  drop_ended();
}

void EngineLoop::drop_ended() {
  const auto ended = [&](const Sequence& s) {
    if (!s.ended) return false;
    scheduler_.leave(s);
    return true;
  };
  std::erase_if(scheduler_.running(), ended);
  std::erase_if(scheduler_.waiting(), ended);
}

// The sequence's blocks are free at once: on the CPU no step in flight refers to them, and on a GPU steps run in order,
// so one that does is over before their next owner's begins.
void EngineLoop::retire(Sequence& sequence, Status status, FinishReason reason) {
  for (InFlight& step : in_flight_)
    std::replace(step.sequences.begin(), step.sequences.end(), &sequence, static_cast<Sequence*>(nullptr));
  count(sequence, reason);
  memory_.close(sequence);
  sequence.ended = true;
  publish_stats();  // whoever reads the answer's end finds it counted
  sequence.finish(std::move(status), reason);
}

void EngineLoop::count(const Sequence& sequence, FinishReason reason) {
  counted_.finished_stop += reason == FinishReason::stop;
  counted_.finished_length += reason == FinishReason::length;
  counted_.finished_cancelled += reason == FinishReason::cancelled;
  counted_.finished_error += reason == FinishReason::error;
  counted_.draft_steps += sequence.usage.draft_steps;
  counted_.draft_tokens += sequence.usage.draft_tokens;
  counted_.accepted_draft_tokens += sequence.usage.accepted_draft_tokens;
}

void EngineLoop::publish_stats() {
  const auto live = [](const Sequence& s) { return !s.ended; };
  EngineStats now = counted_;
  now.running = std::ranges::count_if(scheduler_.running(), live);
  now.waiting = std::ranges::count_if(scheduler_.waiting(), live);
  in_line_ = now.waiting;  // also before the loop sleeps, when nothing would count anew
  now.preemptions = scheduler_.preemptions();
  now.experts = experts_.experts();
  memory_.count(now);
  masks_.count(now);
  const bool idle = now.running + now.waiting == 0;
  const std::lock_guard lock(stats_mutex_);
  last_step_ = Clock::now();
  // The experts' counts are many: not at every step.
  if (idle || last_step_ - experts_copied_ > kExpertsEvery)
    now.expert_tokens = experts_.tokens(), experts_copied_ = last_step_;
  else now.expert_tokens = std::move(stats_.expert_tokens);
  stats_ = std::move(now);
  idle_ = idle;
}

EngineStats EngineLoop::stats() const {
  const std::lock_guard lock(stats_mutex_);
  EngineStats stats = stats_;
  if (!idle_) stats.seconds_since_step = std::chrono::duration<double>(Clock::now() - last_step_).count();
  return stats;
}

void EngineLoop::fail_all(const Status& status) {
  const FinishReason reason = status.code() == StatusCode::cancelled ? FinishReason::cancelled : FinishReason::error;
  in_flight_.clear();
  for (Sequence& sequence : scheduler_.running())
    if (sequence.mask_state == MaskState::wanted || sequence.mask_state == MaskState::begun) masks_.finish(sequence);
  const std::lock_guard lock(mutex_);
  failure_ = status;
  cleared_.notify_all();
  for (std::list<Sequence>* sequences : {&scheduler_.running(), &scheduler_.waiting(), &incoming_}) {
    for (Sequence& sequence : *sequences) retire(sequence, status, reason);
    sequences->clear();
  }
}

}  // namespace moesaic
