#include "server/metrics.h"

#include <fmt/format.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <mutex>
#include <numeric>

#include "base/error.h"

namespace moesaic {
namespace {

using prometheus::Labels;
using Buckets = prometheus::Histogram::BucketBoundaries;

// A metric under all the names that were asked for. A foreign list may hold several names, or none.
struct Names {
  const char* own;  // behind "moesaic:"
  std::vector<const char*> vllm = {}, sglang = {};
  const char* help = "";
};

const Buckets kFirstToken = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                             1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const Buckets kBetweenTokens = {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
const Buckets kRequest = {.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const Buckets kHttp = {.001, .005, .01, .05, .1, .5, 1, 5, 10, 60, 300};
const Buckets kChoices = {1, 2, 5, 10, 20};

// 1, 2, 5, 10, 20, 50 ... up to the first that is no less than `largest`.
Buckets one_two_five(int64_t largest) {
  Buckets buckets;
  for (double power = 1;; power *= 10)
    for (double step : {1., 2., 5.}) {
      buckets.push_back(step * power);
      if (step * power >= static_cast<double>(largest)) return buckets;
    }
}

template <typename Metric>
using Same = std::vector<Metric*>;  // one value under several names

void set(const Same<prometheus::Gauge>& gauges, double value) {
  for (auto* gauge : gauges) gauge->Set(value);
}
// Counters of the engine come as totals.
void raise_to(const Same<prometheus::Counter>& counters, double total) {
  for (auto* counter : counters)
    if (total > counter->Value()) counter->Increment(total - counter->Value());
}
void observe(const Same<prometheus::Histogram>& histograms, double value) {
  for (auto* histogram : histograms) histogram->Observe(value);
}
double ratio(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

}  // namespace

struct Metrics::State {
  explicit State(const MetricsOptions& given)
      : options(given), common{{"model_name", given.model_name}, {"engine", "0"}} {}

  MetricsOptions options;
  Labels common;
  prometheus::Registry registry;
  std::mutex mutex;                    // of text()
  std::unique_ptr<EngineFacts> facts;  // guarded by mutex

  bool compatible(const char* with) const {
    return std::find(options.compat.begin(), options.compat.end(), with) != options.compat.end();
  }
  std::vector<std::string> all_names(const Names& names) const {
    std::vector<std::string> all = {std::string("moesaic:") + names.own};
    if (compatible("vllm"))
      for (const char* name : names.vllm) all.push_back(std::string("vllm:") + name);
    if (compatible("sglang"))
      for (const char* name : names.sglang) all.push_back(std::string("sglang:") + name);
    return all;
  }
  Labels with_common(Labels labels) const {
    labels.insert(common.begin(), common.end());
    return labels;
  }
  Same<prometheus::Gauge> gauge(const Names& names, const Labels& labels = {}) {
    Same<prometheus::Gauge> all;
    for (const std::string& name : all_names(names))
      all.push_back(&prometheus::BuildGauge().Name(name).Help(names.help).Register(registry).Add(with_common(labels)));
    return all;
  }
  Same<prometheus::Counter> counter(const Names& names, const Labels& labels = {}) {
    Same<prometheus::Counter> all;
    for (const std::string& name : all_names(names))
      all.push_back(
          &prometheus::BuildCounter().Name(name).Help(names.help).Register(registry).Add(with_common(labels)));
    return all;
  }
  Same<prometheus::Histogram> histogram(const Names& names, const Buckets& buckets) {
    Same<prometheus::Histogram> all;
    for (const std::string& name : all_names(names))
      all.push_back(&prometheus::BuildHistogram().Name(name).Help(names.help).Register(registry).Add(common, buckets));
    return all;
  }
  Same<prometheus::Counter> finished(const char* reason) {
    return counter({"request_success_total", {"request_success_total"}, {}, "Answers, by why they ended"},
                   {{"finished_reason", reason}});
  }
  Same<prometheus::Gauge> memory(const char* kind) {
    return gauge({"device_memory_bytes", {}, {}, "Device memory that was allocated"}, {{"kind", kind}});
  }
  Same<prometheus::Histogram> request_seconds(const Names& names) { return histogram(names, kRequest); }

  void update(const EngineStats& stats);
  void update_experts(const EngineStats& stats);
  void describe_cache(const EngineFacts& facts, const EngineStats& stats);

  Same<prometheus::Gauge> running = gauge(
      {"num_requests_running", {"num_requests_running"}, {"num_running_reqs"}, "Requests that are being computed"});
  Same<prometheus::Gauge> waiting =
      gauge({"num_requests_waiting", {"num_requests_waiting"}, {"num_queue_reqs"}, "Requests in the queue"});
  Same<prometheus::Gauge> cache_use = gauge({"kv_cache_usage_perc",
                                             {"kv_cache_usage_perc", "gpu_cache_usage_perc"},
                                             {"token_usage"},
                                             "Share of the cache in use, 0 to 1"});
  Same<prometheus::Gauge> used_tokens =
      gauge({"kv_cache_used_tokens", {}, {"num_used_tokens"}, "Tokens that the cache's used blocks can hold"});
  Same<prometheus::Gauge> cached_blocks =
      gauge({"kv_cache_blocks_cached", {}, {}, "Blocks kept for reuse, free to take"});
  Same<prometheus::Gauge> hit_rate = gauge({"prefix_cache_hit_ratio",
                                            {},
                                            {"cache_hit_rate"},
                                            "Share of prompt tokens found in the prefix cache since the start"});
  Same<prometheus::Gauge> generation_rate = gauge({"generation_tokens_per_second",
                                                   {},
                                                   {"gen_throughput"},
                                                   "Generated tokens per second over the last five seconds"});
  Same<prometheus::Gauge> slots = gauge({"linear_state_slots", {}, {}, "Slots of recurrent state and rings"});
  Same<prometheus::Gauge> slots_used = gauge({"linear_state_slots_used", {}, {}, "Those in use"});
  Same<prometheus::Gauge> host_blocks_used = gauge({"host_cache_blocks_used", {}, {}, "Cache blocks in host memory"});
  Same<prometheus::Gauge> step_tokens = gauge({"last_step_tokens", {}, {}, "Tokens computed in the last step"});
  Same<prometheus::Gauge> since_step =
      gauge({"seconds_since_step", {}, {}, "Since the engine's thread last stepped or looked for work"});
  Same<prometheus::Gauge> ready = gauge({"ready", {}, {}, "1 once the engine is open"});
  Same<prometheus::Gauge> loaded_bytes = gauge({"load_bytes", {}, {}, "Weights loaded so far"});
  Same<prometheus::Gauge> load_total = gauge({"load_total_bytes", {}, {}, "Weights to load"});
  Same<prometheus::Gauge> load_seconds = gauge({"load_seconds", {}, {}, "From the start until the engine was open"});

  Same<prometheus::Counter> prefix_queries = counter({"prefix_cache_queries_total",
                                                      {"prefix_cache_queries_total"},
                                                      {},
                                                      "Prompt tokens looked up in the prefix cache"});
  Same<prometheus::Counter> prefix_hits =
      counter({"prefix_cache_hits_total", {"prefix_cache_hits_total"}, {}, "Prompt tokens found there"});
  Same<prometheus::Counter> prompt_tokens =
      counter({"prompt_tokens_total", {"prompt_tokens_total"}, {"prompt_tokens_total"}, "Prompt tokens"});
  Same<prometheus::Counter> generated = counter(
      {"generation_tokens_total", {"generation_tokens_total"}, {"generation_tokens_total"}, "Generated tokens"});
  Same<prometheus::Counter> preemptions =
      counter({"num_preemptions_total", {"num_preemptions_total"}, {}, "Sequences set back for want of cache"});
  Same<prometheus::Counter> drafts =
      counter({"spec_decode_num_drafts_total", {"spec_decode_num_drafts_total"}, {}, "Steps that verified drafts"});
  Same<prometheus::Counter> draft_tokens =
      counter({"spec_decode_num_draft_tokens_total", {"spec_decode_num_draft_tokens_total"}, {}, "Drafted tokens"});
  Same<prometheus::Counter> accepted = counter({"spec_decode_num_accepted_tokens_total",
                                                {"spec_decode_num_accepted_tokens_total"},
                                                {},
                                                "Drafted tokens that were accepted"});
  Same<prometheus::Counter> stop = finished("stop"), length = finished("length"), aborted = finished("abort"),
                            failed = finished("error");
  Same<prometheus::Counter> prefill_steps =
      counter({"steps_total", {}, {}, "Steps of the engine"}, {{"phase", "prefill"}});
  Same<prometheus::Counter> decode_steps =
      counter({"steps_total", {}, {}, "Steps of the engine"}, {{"phase", "decode"}});
  Same<prometheus::Counter> prefill_seconds =
      counter({"step_seconds_total", {}, {}, "Time in them"}, {{"phase", "prefill"}});
  Same<prometheus::Counter> decode_seconds =
      counter({"step_seconds_total", {}, {}, "Time in them"}, {{"phase", "decode"}});
  Same<prometheus::Counter> masks = counter({"grammar_masks_total", {}, {}, "Token masks of constrained answers"});
  Same<prometheus::Counter> masks_late =
      counter({"grammar_masks_late_total", {}, {}, "Those that sampling had to wait for"});

  Same<prometheus::Histogram> first_token = histogram({"time_to_first_token_seconds",
                                                       {"time_to_first_token_seconds"},
                                                       {"time_to_first_token_seconds"},
                                                       "From arrival to the first token"},
                                                      kFirstToken);
  Same<prometheus::Histogram> between = histogram({"inter_token_latency_seconds",
                                                   {"inter_token_latency_seconds", "time_per_output_token_seconds"},
                                                   {"inter_token_latency_seconds", "time_per_output_token_seconds"},
                                                   "Between tokens"},
                                                  kBetweenTokens);
  Same<prometheus::Histogram> whole = request_seconds({"e2e_request_latency_seconds",
                                                       {"e2e_request_latency_seconds"},
                                                       {"e2e_request_latency_seconds"},
                                                       "From arrival to the end of the answer"});
  Same<prometheus::Histogram> queued =
      request_seconds({"request_queue_time_seconds", {"request_queue_time_seconds"}, {}, "In the queue"});
  Same<prometheus::Histogram> inference =
      request_seconds({"request_inference_time_seconds", {"request_inference_time_seconds"}, {}, "After the queue"});
  Same<prometheus::Histogram> prefill = request_seconds(
      {"request_prefill_time_seconds", {"request_prefill_time_seconds"}, {}, "From the queue to the first token"});
  Same<prometheus::Histogram> decode = request_seconds(
      {"request_decode_time_seconds", {"request_decode_time_seconds"}, {}, "From the first token to the last"});
  Same<prometheus::Histogram> prompt_size =
      histogram({"request_prompt_tokens", {"request_prompt_tokens"}, {}, "Tokens of a prompt"},
                one_two_five(options.max_model_len));
  Same<prometheus::Histogram> answer_size =
      histogram({"request_generation_tokens", {"request_generation_tokens"}, {}, "Tokens of an answer"},
                one_two_five(options.max_model_len));
  Same<prometheus::Histogram> asked_size =
      histogram({"request_params_max_tokens", {"request_params_max_tokens"}, {}, "max_tokens of requests"},
                one_two_five(options.max_model_len));
  Same<prometheus::Histogram> asked_choices =
      histogram({"request_params_n", {"request_params_n"}, {}, "n of requests"}, kChoices);

  prometheus::Family<prometheus::Counter>& http_requests =
      prometheus::BuildCounter().Name("http_requests_total").Help("HTTP requests").Register(registry);
  prometheus::Family<prometheus::Histogram>& http_seconds =
      prometheus::BuildHistogram()
          .Name("http_request_duration_seconds")
          .Help("From a request's arrival to the end of its answer")
          .Register(registry);
};

void Metrics::State::update(const EngineStats& s) {
  set(running, static_cast<double>(s.running)), set(waiting, static_cast<double>(s.waiting));
  set(cache_use, ratio(s.blocks_used, s.blocks));
  set(used_tokens, static_cast<double>(s.blocks_used * (facts ? facts->block_tokens : 0)));
  set(cached_blocks, static_cast<double>(s.blocks_cached));
  set(hit_rate, ratio(s.prefix_hits, s.prefix_queries));
  set(slots, static_cast<double>(s.slots)), set(slots_used, static_cast<double>(s.slots_used));
  set(host_blocks_used, static_cast<double>(s.host_blocks_used));
  set(step_tokens, static_cast<double>(s.step_tokens));
  set(since_step, s.seconds_since_step);
  const std::pair<const Same<prometheus::Counter>&, int64_t> totals[] = {
      {prefix_queries, s.prefix_queries}, {prefix_hits, s.prefix_hits},        {prompt_tokens, s.prompt_tokens},
      {generated, s.generated_tokens},    {preemptions, s.preemptions},        {drafts, s.draft_steps},
      {draft_tokens, s.draft_tokens},     {accepted, s.accepted_draft_tokens}, {stop, s.finished_stop},
      {length, s.finished_length},        {aborted, s.finished_cancelled},     {failed, s.finished_error},
      {prefill_steps, s.prefill_steps},   {decode_steps, s.decode_steps},      {masks, s.masks},
      {masks_late, s.masks_late}};
  for (const auto& [counters, total] : totals) raise_to(counters, static_cast<double>(total));
  raise_to(prefill_seconds, s.prefill_seconds), raise_to(decode_seconds, s.decode_seconds);
  if (s.experts > 0) update_experts(s);
}

void Metrics::State::update_experts(const EngineStats& stats) {
  const auto experts = static_cast<size_t>(stats.experts);
  for (size_t layer = 0; (layer + 1) * experts <= stats.expert_tokens.size(); ++layer) {
    const auto row = stats.expert_tokens.begin() + static_cast<ptrdiff_t>(layer * experts);
    const auto end = row + static_cast<ptrdiff_t>(experts);
    const std::string name = std::to_string(layer);
    const int64_t sum = std::accumulate(row, end, int64_t{0});
    const Same<prometheus::Gauge> imbalance =
        gauge({"expert_imbalance_ratio", {}, {}, "Tokens of the busiest expert over the mean"}, {{"layer", name}});
    if (sum > 0)
      set(imbalance,
          static_cast<double>(*std::max_element(row, end)) * static_cast<double>(experts) / static_cast<double>(sum));
    for (size_t expert = 0; options.experts && expert < experts; ++expert)
      raise_to(counter({"expert_tokens_total", {}, {}, "Tokens that an expert computed"},
                       {{"layer", name}, {"expert", std::to_string(expert)}}),
               static_cast<double>(row[static_cast<ptrdiff_t>(expert)]));
  }
}

// The Kubernetes inference gateway reads block size and count from these labels.
void Metrics::State::describe_cache(const EngineFacts& given, const EngineStats& stats) {
  const std::string blocks = std::to_string(stats.blocks);
  set(gauge({"cache_config_info", {"cache_config_info"}, {}, "What the cache is, in labels"},
            {{"block_size", std::to_string(given.block_tokens)},
             {"num_gpu_blocks", blocks},
             {"cache_dtype", given.cache_dtype},
             {"enable_prefix_caching", given.prefix_caching ? "True" : "False"}}),
      1);
}

Metrics::Metrics(const MetricsOptions& options) {
  for (const std::string& name : options.compat)
    if (name != "vllm" && name != "sglang" && name != "none")
      fail_argument("--metrics-compat is \"{}\"; expected vllm, sglang, both with a comma between, or none", name);
  state_ = std::make_unique<State>(options);
}
Metrics::~Metrics() = default;

void Metrics::record(const RequestRecord& r) {
  State& s = *state_;
  if (r.reasons.empty()) return;  // never reached the engine
  observe(s.prompt_size, static_cast<double>(r.prompt_tokens));
  observe(s.answer_size, static_cast<double>(r.generated_tokens));
  if (r.max_tokens > 0) observe(s.asked_size, static_cast<double>(r.max_tokens));
  observe(s.asked_choices, r.n);
  observe(s.whole, r.total);
  for (double seconds : r.between_tokens) observe(s.between, seconds);
  if (r.first_token <= 0) return;  // it ended before
  observe(s.first_token, r.first_token);
  observe(s.queued, r.queue);
  observe(s.inference, r.total - r.queue);
  observe(s.prefill, r.first_token - r.queue);
  observe(s.decode, r.total - r.first_token);
}

void Metrics::answered(std::string_view route, std::string_view method, int status, double seconds) {
  const std::string handler(route), verb(method);
  // As FastAPI's instrumentation groups them; 499 is what nginx calls a client that left.
  const std::string group = status == 0 ? "4xx" : fmt::format("{}xx", status / 100);
  state_->http_requests.Add({{"handler", handler}, {"method", verb}, {"status", group}}).Increment();
  state_->http_seconds.Add({{"handler", handler}, {"method", verb}}, kHttp).Observe(seconds);
}

void Metrics::loading(int64_t done_bytes, int64_t total_bytes) {
  set(state_->loaded_bytes, static_cast<double>(done_bytes));
  set(state_->load_total, static_cast<double>(total_bytes));
}

void Metrics::opened(const EngineFacts& facts, const EngineStats& stats) {
  const std::scoped_lock lock(state_->mutex);
  state_->facts = std::make_unique<EngineFacts>(facts);
  set(state_->ready, 1);
  set(state_->load_seconds, facts.load_seconds);
  set(state_->memory("weights"), static_cast<double>(facts.info.weight_bytes));
  set(state_->memory("cache"), static_cast<double>(facts.info.cache_bytes));
  set(state_->memory("activations"), static_cast<double>(facts.info.activation_bytes));
  set(state_->memory("workspace"), static_cast<double>(facts.info.workspace_bytes));
  state_->describe_cache(facts, stats);
}

std::string Metrics::text(const EngineStats* stats, double generation_rate) {
  const std::scoped_lock lock(state_->mutex);
  set(state_->generation_rate, generation_rate);
  if (stats != nullptr) state_->update(*stats);
  return prometheus::TextSerializer().Serialize(state_->registry.Collect());
}

}  // namespace moesaic
