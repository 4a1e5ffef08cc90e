// /metrics and /stats: names, labels, types, and that numbers are those of the engine and of requests.
#include "server/metrics.h"

#include <gmock/gmock.h>

#include <set>
#include <sstream>

#include "base/error.h"
#include "server/recent.h"

namespace moesaic {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

EngineStats some_stats() {
  EngineStats s;
  s.running = 3, s.waiting = 5, s.blocks = 100, s.blocks_used = 25;
  s.prefix_queries = 1000, s.prefix_hits = 400, s.prompt_tokens = 1200, s.generated_tokens = 340;
  s.preemptions = 2, s.finished_stop = 7, s.finished_length = 8, s.finished_cancelled = 9, s.finished_error = 1;
  s.draft_steps = 11, s.draft_tokens = 33, s.accepted_draft_tokens = 22;
  s.experts = 2, s.expert_tokens = {30, 10, 5, 5};
  return s;
}

RequestRecord some_request() {
  RequestRecord r;
  r.prompt_tokens = 12, r.generated_tokens = 3, r.max_tokens = 16, r.n = 1;
  r.queue = 0.5, r.first_token = 2.0, r.total = 3.0, r.between_tokens = {0.02, 0.06};
  r.reasons = {FinishReason::stop};
  return r;
}

// The value of a series, written as it stands on the page; NaN where it is missing.
double value(const std::string& page, const std::string& series) {
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(series + " ")) return std::stod(line.substr(series.size() + 1));
  return std::nan("");
}

const std::string kLabels = R"({engine="0",model_name="demo"})";

TEST(Metrics, CarryTheEnginesNumbersUnderVllmsNames) {
  Metrics metrics({.model_name = "demo"});
  const EngineStats stats = some_stats();
  EngineFacts facts;
  facts.info.weight_bytes = 1000;
  facts.cache_dtype = "f32";
  metrics.opened(facts, stats);
  const std::string page = metrics.text(&stats);
  for (const char* prefix : {"vllm:", "moesaic:"}) {
    const auto of = [&](const std::string& name) { return value(page, prefix + name + kLabels); };
    EXPECT_EQ(of("num_requests_running"), 3);
    EXPECT_EQ(of("num_requests_waiting"), 5);
    EXPECT_EQ(of("kv_cache_usage_perc"), 0.25);
    EXPECT_EQ(of("prefix_cache_queries_total"), 1000);
    EXPECT_EQ(of("prefix_cache_hits_total"), 400);
    EXPECT_EQ(of("prompt_tokens_total"), 1200);
    EXPECT_EQ(of("generation_tokens_total"), 340);
    EXPECT_EQ(of("num_preemptions_total"), 2);
    EXPECT_EQ(of("spec_decode_num_drafts_total"), 11);
    EXPECT_EQ(of("spec_decode_num_draft_tokens_total"), 33);
    EXPECT_EQ(of("spec_decode_num_accepted_tokens_total"), 22);
  }
  EXPECT_EQ(value(page, "vllm:gpu_cache_usage_perc" + kLabels), 0.25);
  const auto finished = [&](const std::string& reason) {
    return value(page,
                 R"(vllm:request_success_total{engine="0",finished_reason=")" + reason + R"(",model_name="demo"})");
  };
  EXPECT_EQ(finished("stop"), 7);
  EXPECT_EQ(finished("length"), 8);
  EXPECT_EQ(finished("abort"), 9);
  EXPECT_EQ(finished("error"), 1);
  EXPECT_THAT(page, HasSubstr("# TYPE vllm:request_success_total counter"));
  EXPECT_THAT(page, HasSubstr("# TYPE vllm:num_requests_running gauge"));
  EXPECT_EQ(
      value(
          page,
          R"(vllm:cache_config_info{block_size="64",cache_dtype="f32",enable_prefix_caching="True",engine="0",model_name="demo",num_gpu_blocks="100"})"),
      1);
  EXPECT_EQ(value(page, R"(moesaic:expert_imbalance_ratio{engine="0",layer="0",model_name="demo"})"), 1.5);
  EXPECT_EQ(value(page, R"(moesaic:device_memory_bytes{engine="0",kind="weights",model_name="demo"})"), 1000);
  EXPECT_THAT(page, Not(HasSubstr("sglang:")));
  EXPECT_THAT(page, Not(HasSubstr("expert_tokens_total")));
}

TEST(Metrics, CountersFollowTheEngineAndNeverFall) {
  Metrics metrics({.model_name = "demo"});
  EngineStats stats = some_stats();
  metrics.text(&stats);
  stats.generated_tokens = 400;
  EXPECT_EQ(value(metrics.text(&stats), "vllm:generation_tokens_total" + kLabels), 400);
  stats.generated_tokens = 350;  // as a snapshot taken before the last one has it
  EXPECT_EQ(value(metrics.text(&stats), "vllm:generation_tokens_total" + kLabels), 400);
}

TEST(Metrics, RequestsFillTheHistograms) {
  Metrics metrics({.model_name = "demo"});
  metrics.record(some_request());
  RequestRecord refused;
  refused.status = 400;
  metrics.record(refused);  // never reached the engine
  const std::string page = metrics.text(nullptr);
  const auto sum = [&](const std::string& name) { return value(page, "vllm:" + name + "_sum" + kLabels); };
  const auto count = [&](const std::string& name) { return value(page, "vllm:" + name + "_count" + kLabels); };
  EXPECT_EQ(sum("time_to_first_token_seconds"), 2);
  EXPECT_EQ(count("time_to_first_token_seconds"), 1);
  EXPECT_NEAR(sum("inter_token_latency_seconds"), 0.08, 1e-12);
  EXPECT_EQ(count("time_per_output_token_seconds"), 2);
  EXPECT_EQ(sum("e2e_request_latency_seconds"), 3);
  EXPECT_EQ(sum("request_queue_time_seconds"), 0.5);
  EXPECT_EQ(sum("request_inference_time_seconds"), 2.5);
  EXPECT_EQ(sum("request_prefill_time_seconds"), 1.5);
  EXPECT_EQ(sum("request_decode_time_seconds"), 1);
  EXPECT_EQ(sum("request_prompt_tokens"), 12);
  EXPECT_EQ(sum("request_generation_tokens"), 3);
  EXPECT_EQ(sum("request_params_max_tokens"), 16);
  EXPECT_EQ(count("request_params_n"), 1);
  const auto bucket = [&](const std::string& name, const std::string& le) {
    return value(page, "vllm:" + name + R"(_bucket{engine="0",model_name="demo",le=")" + le + R"("})");
  };
  EXPECT_EQ(bucket("time_to_first_token_seconds", "1"), 0);
  EXPECT_EQ(bucket("time_to_first_token_seconds", "2.5"), 1);
  EXPECT_EQ(bucket("time_to_first_token_seconds", "0.001"), 0);
  EXPECT_EQ(bucket("inter_token_latency_seconds", "0.025"), 1);
  EXPECT_EQ(bucket("e2e_request_latency_seconds", "+Inf"), 1);
}

TEST(Metrics, SglangsNamesOnRequestAndNoneForNobody) {
  Metrics both({.model_name = "demo", .compat = {"vllm", "sglang"}, .experts = true});
  const EngineStats stats = some_stats();
  const std::string page = both.text(&stats, 17.5);
  EXPECT_EQ(value(page, "sglang:num_running_reqs" + kLabels), 3);
  EXPECT_EQ(value(page, "sglang:num_queue_reqs" + kLabels), 5);
  EXPECT_EQ(value(page, "sglang:token_usage" + kLabels), 0.25);
  EXPECT_EQ(value(page, "sglang:cache_hit_rate" + kLabels), 0.4);
  EXPECT_EQ(value(page, "sglang:gen_throughput" + kLabels), 17.5);
  EXPECT_EQ(value(page, "vllm:num_requests_running" + kLabels), 3);
  EXPECT_EQ(value(page, R"(moesaic:expert_tokens_total{engine="0",expert="1",layer="0",model_name="demo"})"), 10);
  Metrics none({.model_name = "demo", .compat = {"none"}});
  EXPECT_THAT(none.text(&stats), Not(HasSubstr("vllm:")));
  EXPECT_THROW(Metrics({.model_name = "demo", .compat = {"llamacpp"}}), Error);
}

TEST(Metrics, HttpRequestsAreCountedByRouteAndGroup) {
  Metrics metrics({.model_name = "demo"});
  for (int status : {200, 201, 404}) metrics.answered("/v1/models", "GET", status, 0.02);
  const std::string page = metrics.text(nullptr);
  EXPECT_EQ(value(page, R"(http_requests_total{handler="/v1/models",method="GET",status="2xx"})"), 2);
  EXPECT_EQ(value(page, R"(http_requests_total{handler="/v1/models",method="GET",status="4xx"})"), 1);
  EXPECT_EQ(value(page, R"(http_request_duration_seconds_count{handler="/v1/models",method="GET"})"), 3);
}

TEST(Metrics, LoadingShowsBeforeThereIsAnEngine) {
  Metrics metrics({.model_name = R"(a "quoted" name)"});
  metrics.loading(25, 100);
  const std::string page = metrics.text(nullptr);
  const std::string labels = R"({engine="0",model_name="a \"quoted\" name"})";
  EXPECT_EQ(value(page, "moesaic:load_bytes" + labels), 25);
  EXPECT_EQ(value(page, "moesaic:load_total_bytes" + labels), 100);
  EXPECT_EQ(value(page, "moesaic:ready" + labels), 0);
}

// Each line is a comment or a series with a number, and no series comes twice.
TEST(Metrics, ThePageIsWellFormed) {
  Metrics metrics({.model_name = "demo", .compat = {"vllm", "sglang"}, .experts = true});
  metrics.record(some_request());
  const EngineStats stats = some_stats();
  metrics.opened({}, stats);
  metrics.answered("/v1/models", "GET", 200, 0.1);
  std::istringstream lines(metrics.text(&stats));
  std::set<std::string> seen;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# HELP ") || line.starts_with("# TYPE ")) {
      EXPECT_TRUE(seen.insert(line).second) << line;
      continue;
    }
    const size_t space = line.rfind(' ');
    ASSERT_NE(space, std::string::npos) << line;
    EXPECT_TRUE(seen.insert(line.substr(0, space)).second) << line;
    EXPECT_NO_THROW(std::stod(line.substr(space + 1))) << line;
  }
  EXPECT_GT(seen.size(), 300);
}

TEST(Recent, PercentilesAreOfTheLastMinute) {
  RecentValues values;
  const RecentClock::time_point start{};
  values.add(1000, start);
  for (int i = 1; i <= 100; ++i) values.add(i, start + std::chrono::seconds(61));
  const Percentiles p = values.percentiles(start + std::chrono::seconds(62));
  EXPECT_EQ(p.p50, 50);
  EXPECT_EQ(p.p90, 90);
  EXPECT_EQ(p.p99, 99);
  EXPECT_EQ(values.percentiles(start + std::chrono::seconds(300)).p50, 0);
  RecentValues one;
  one.add(7, start);
  EXPECT_EQ(one.percentiles(start).p99, 7);
}

TEST(Recent, RatesAreOfTheLastSeconds) {
  RecentRate rate;
  const RecentClock::time_point start{};
  EXPECT_EQ(rate.per_second(), 0);
  for (int i = 0; i <= 20; ++i) rate.sample(i < 10 ? 0 : (i - 10) * 100, start + std::chrono::seconds(i));
  EXPECT_EQ(rate.per_second(), 100);
}

TEST(Recent, StatsHaveTheDashboardsKeys) {
  Recent recent;
  recent.record(some_request());
  const EngineStats stats = some_stats();
  const JsonObject out = stats_object("demo", 12.5, &stats, recent);
  for (const char* key : {"model",
                          "uptime_seconds",
                          "running",
                          "waiting",
                          "blocks",
                          "blocks_used",
                          "blocks_cached",
                          "slots",
                          "slots_used",
                          "prompt_tokens_per_second",
                          "generation_tokens_per_second",
                          "prompt_tokens",
                          "generation_tokens",
                          "prefix_queries",
                          "prefix_hits",
                          "preemptions",
                          "step_tokens",
                          "finished",
                          "latency",
                          "experts"})
    EXPECT_TRUE(out.contains(key)) << key;
  EXPECT_EQ(out.at("running").as_int64(), 3);
  EXPECT_EQ(out.at("latency").as_object().at("ttft").as_object().at("p50").as_double(), 2);
  EXPECT_EQ(out.at("experts").as_array().size(), 2);
  EXPECT_EQ(out.at("experts").as_array()[0].as_array()[0].as_int64(), 30);
  EXPECT_TRUE(stats_object("demo", 0, nullptr, recent).at("experts").as_array().empty());
}

}  // namespace
}  // namespace moesaic
