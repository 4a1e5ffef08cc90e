// The parts of a load test that need no server: URLs, events, plans, statistics, the plot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/temp_dir.h"
#include "client/event_reader.h"
#include "client/http_client.h"
#include "client/traffic_plan.h"
#include "client/traffic_plot.h"
#include "client/traffic_summary.h"

namespace moesaic {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ParseUrl, TakesHostPortAndPath) {
  const auto parts = [](const char* text) {
    const Url u = parse_url(text);
    return u.host + "|" + u.port + "|" + u.path + "|" + u.authority();
  };
  EXPECT_EQ(parts("http://localhost:8000"), "localhost|8000||localhost:8000");
  EXPECT_EQ(parts("http://localhost:8000/"), "localhost|8000||localhost:8000");
  EXPECT_EQ(parts("http://a.b/c/d/"), "a.b|80|/c/d|a.b:80");
  EXPECT_EQ(parts("http://[::1]:9/x"), "::1|9|/x|[::1]:9");
  EXPECT_EQ(parts("http://[::1]"), "::1|80||[::1]:80");
}

TEST(ParseUrl, RefusesOthers) {
  for (const char* text : {"", "localhost:8000", "https://a", "http://", "http://:80", "http://a:", "http://a:x",
                           "http://a:0", "http://a:65536", "http://a:-1"})
    EXPECT_THROW(parse_url(text), Error) << text;
}

std::vector<std::string> events_of(const std::vector<std::string_view>& pieces) {
  EventReader reader;
  std::vector<std::string> out;
  for (std::string_view piece : pieces) reader.feed(piece, [&](std::string_view data) { out.emplace_back(data); });
  return out;
}

TEST(EventReader, ReadsDataAndSkipsTheRest) {
  EXPECT_THAT(events_of({"data: a\n\n: ping\n\nevent: x\ndata:b\ndata: c\nid: 7\n\r\ndata: d\r\n\r\ndata: e\r\r"}),
              ElementsAre("a", "b\nc", "d", "e"));
  EXPECT_THAT(events_of({"data\n\n", "data: unfinished\n"}), ElementsAre(""));
  EXPECT_THAT(events_of({"database: x\n\n"}), ElementsAre());
}

TEST(EventReader, ItDoesNotMatterWhereBytesAreCut) {
  const std::string_view text = "data: one\r\n\r\n: c\ndata: two\n\ndata: {\"x\": 1}\r\n\r\n";
  const auto whole = events_of({text});
  ASSERT_EQ(whole.size(), 3);
  for (size_t i = 0; i <= text.size(); ++i)
    for (size_t j = i; j <= text.size(); ++j)
      ASSERT_EQ(events_of({text.substr(0, i), text.substr(i, j - i), text.substr(j)}), whole) << i << ' ' << j;
}

double gap_deviation(double burstiness) {  // of gaps between arrivals, in units of their mean
  const auto times = arrival_times(20000, 10, burstiness, 1);
  double sum = 0, last = 0;
  for (double t : times) sum += std::pow((t - last) * 10 - 1, 2), last = t;
  return std::sqrt(sum / 20000);
}

TEST(ArrivalTimes, AreAPoissonProcessOfTheRateAsked) {
  const auto times = arrival_times(20000, 10, 1, 1);
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
  EXPECT_NEAR(times.back(), 2000, 1e-6);
  // Gaps of a gamma distribution of shape k have deviation 1/sqrt(k) in units of their mean.
  EXPECT_NEAR(gap_deviation(1), 1, 0.03);
  EXPECT_NEAR(gap_deviation(4), 0.5, 0.02);
  EXPECT_NEAR(gap_deviation(0.25), 2, 0.1);
  int64_t long_gaps = 0;
  for (size_t i = 1; i < times.size(); ++i) long_gaps += times[i] - times[i - 1] > 0.2;
  EXPECT_NEAR(static_cast<double>(long_gaps) / 20000, std::exp(-2.0), 0.01);
}

TEST(ArrivalTimes, DependOnTheSeedAlone) {
  EXPECT_EQ(arrival_times(50, 3, 1, 7), arrival_times(50, 3, 1, 7));
  EXPECT_NE(arrival_times(50, 3, 1, 7), arrival_times(50, 3, 1, 8));
  EXPECT_THAT(arrival_times(3, INFINITY, 1, 7), ElementsAre(0, 0, 0));
}

int64_t words_in(const std::string& text) {
  return 1 + std::count(text.begin(), text.end(), ' ');
}

TEST(RandomTraffic, LengthsKeepToTheirRange) {
  const auto plan = random_traffic(
      {.count = 2000, .input_tokens = 100, .output_tokens = 10, .range_ratio = 0.5, .seed = 3}, {.per_word = 2});
  int64_t least = 1000, most = 0;
  for (const PlannedRequest& r : plan) {
    least = std::min(least, r.prompt_tokens), most = std::max(most, r.prompt_tokens);
    EXPECT_EQ(words_in(r.prompt), std::llround(static_cast<double>(r.prompt_tokens) / 2));
    EXPECT_TRUE(r.output_tokens >= 5 && r.output_tokens <= 15) << r.output_tokens;
  }
  EXPECT_EQ(least, 50);
  EXPECT_EQ(most, 150);
}

TEST(RandomTraffic, PromptsDifferAfterTheSharedPrefix) {
  const auto plan =
      random_traffic({.count = 2, .input_tokens = 20, .output_tokens = 1, .prefix_tokens = 30, .seed = 3}, {});
  const auto [a, b] = std::mismatch(plan[0].prompt.begin(), plan[0].prompt.end(), plan[1].prompt.begin());
  const int64_t same = std::count(plan[0].prompt.begin(), a, ' ');
  EXPECT_TRUE(same >= 30 && same < 40) << same;
  EXPECT_EQ(words_in(plan[0].prompt), 50);
  EXPECT_EQ(plan[0].prompt_tokens, 50);
  const auto again =
      random_traffic({.count = 2, .input_tokens = 20, .output_tokens = 1, .prefix_tokens = 30, .seed = 3}, {});
  EXPECT_EQ(again[1].prompt, plan[1].prompt);
}

TEST(ShareGpt, TakesUsualConversations) {
  const TempDir dir;
  const std::string question(40, 'q'), answer(80, 'a'), huge(9000, 'h');
  const std::string path =
      dir.write("x.json", fmt::format(R"([{{"conversations":[{{"value":"{0}"}},{{"value":"{1}"}}]}},
      {{"conversations":[{{"value":"{0}"}}]}}, {{"conversations":[{{"value":"hi"}},{{"value":"{1}"}}]}},
      {{"conversations":[{{"value":"{2}"}},{{"value":"{1}"}}]}}])",
                                      question, answer, huge));
  const auto plan = sharegpt_traffic(path, 3, 0, 1);
  ASSERT_EQ(plan.size(), 3);
  for (const PlannedRequest& r : plan) {
    EXPECT_EQ(r.prompt, question);
    EXPECT_EQ(r.output_tokens, 20);
  }
  EXPECT_EQ(sharegpt_traffic(path, 1, 9, 1).front().output_tokens, 9);
  EXPECT_THROW(sharegpt_traffic(dir.write("y.json", "{}"), 1, 0, 1), Error);
  EXPECT_THROW(sharegpt_traffic(dir.write("z.json", "[{}]"), 1, 0, 1), Error);
  EXPECT_THROW(sharegpt_traffic(dir.write("e.json", "[]"), 1, 0, 1), Error);
}

TEST(Percentile, InterpolatesAsNumpyDoes) {
  const std::vector<double> v = {1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(percentile(v, 50), 2.5);
  EXPECT_DOUBLE_EQ(percentile(v, 99), 3.97);
  EXPECT_DOUBLE_EQ(percentile(v, 0), 1);
  EXPECT_DOUBLE_EQ(percentile(v, 100), 4);
  EXPECT_EQ(percentile({}, 50), 0);
}

RequestOutcome outcome_of(double start, double ttft, double gap, int tokens) {
  RequestOutcome o;
  o.started = o.ended = true, o.error = "", o.status = 200;
  o.start = start, o.first_token = start + ttft;
  for (int i = 0; i < tokens; ++i) o.tokens_at.push_back(o.first_token + gap * i);
  o.end = o.tokens_at.back();
  o.prompt_tokens = 10, o.output_tokens = tokens;
  return o;
}

TEST(Summary, ComputesWhatVllmDoes) {
  RequestOutcome failed;
  failed.started = failed.ended = true, failed.error = "HTTP 500: x";
  const std::vector<RequestOutcome> outcomes = {outcome_of(0, 0.1, 0.05, 5), outcome_of(0.5, 0.3, 0.1, 11),
                                                outcome_of(1, 0.2, 0, 1), failed};
  const TrafficSummary s = summarize(outcomes, 2, {90}, {.ttft = 250, .tpot = 200, .e2el = {}});
  EXPECT_EQ(s.completed, 3);
  EXPECT_EQ(s.failed, 1);
  EXPECT_EQ(s.input_tokens, 30);
  EXPECT_EQ(s.output_tokens, 17);
  EXPECT_DOUBLE_EQ(s.request_throughput, 1.5);
  EXPECT_DOUBLE_EQ(s.output_throughput, 8.5);
  EXPECT_DOUBLE_EQ(s.total_throughput, 23.5);
  EXPECT_DOUBLE_EQ(s.goodput, 1);  // the second one's first token took 300 ms
  EXPECT_NEAR(s.ttft.mean, 200, 1e-9);
  EXPECT_NEAR(s.ttft.median, 200, 1e-9);
  EXPECT_NEAR(s.ttft.percentiles[0], 280, 1e-9);
  EXPECT_EQ(s.tpot.count, 2);  // a single token has no time per further token
  EXPECT_NEAR(s.tpot.mean, 75, 1e-9);
  EXPECT_EQ(s.itl.count, 14);
  EXPECT_NEAR(s.itl.mean, (4 * 50 + 10 * 100) / 14.0, 1e-9);
  EXPECT_NEAR(s.e2el.mean, (300 + 1300 + 200) / 3.0, 1e-9);
  EXPECT_EQ(s.peak_concurrency, 2);
}

TEST(Summary, OfNothingIsZero) {
  const TrafficSummary s = summarize({}, 0, {99}, {});
  EXPECT_EQ(s.request_throughput, 0);
  EXPECT_EQ(s.ttft.percentiles.at(0), 0);
}

TEST(Summary, ThroughputOverTimeAddsUp) {
  const std::vector<RequestOutcome> outcomes = {outcome_of(0, 0.1, 0.05, 5), outcome_of(0.5, 0.3, 0.1, 11)};
  const auto slices = throughput_over_time(outcomes, 2, 8);
  EXPECT_NEAR(std::accumulate(slices.begin(), slices.end(), 0.0) * 2 / 8, 16, 1e-9);
  EXPECT_EQ(slices[0], 3 / 0.25);  // at 0.10, 0.15 and 0.20 s
}

TEST(Goodput, IsParsedOrRefused) {
  const GoodputLimits limits = parse_goodput({"ttft:500", "tpot:50.5"});
  EXPECT_EQ(limits.ttft, 500);
  EXPECT_EQ(limits.tpot, 50.5);
  EXPECT_FALSE(limits.e2el);
  for (const char* bad : {"ttft", "ttft:", "ttft:x", "ttft:-1", "ttft:0", "speed:1", "ttft:5x"})
    EXPECT_THROW(parse_goodput({bad}), Error) << bad;
}

TEST(Plot, IsOneSvgWithEachCurve) {
  const std::vector<RequestOutcome> outcomes = {outcome_of(0, 0.1, 0.05, 5), outcome_of(0.5, 0.3, 0.1, 11)};
  const std::string svg = plot_traffic(outcomes, summarize(outcomes, 2, {}, {}), "a <b> & \"c\"");
  EXPECT_THAT(svg, testing::StartsWith("<svg "));
  EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
  EXPECT_THAT(svg, HasSubstr("a &lt;b> &amp; \"c\""));
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme:dark"));
  for (const char* name : {"TTFT", "TPOT", "ITL", "E2E"}) EXPECT_THAT(svg, HasSubstr(name));
  size_t curves = 0;
  for (size_t at = 0; (at = svg.find("<polyline", at)) != std::string::npos; ++at) ++curves;
  EXPECT_EQ(curves, 5);
  EXPECT_THAT(svg, testing::Not(HasSubstr("nan")));
  EXPECT_THAT(svg, testing::Not(HasSubstr("inf")));
  // Also when nothing completed.
  EXPECT_THAT(plot_traffic({}, summarize({}, 0, {}, {}), ""), testing::Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace moesaic
