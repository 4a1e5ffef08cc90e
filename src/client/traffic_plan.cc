#include "client/traffic_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"

namespace moesaic {
namespace {

// Streams of one seed, so that one choice does not move another.
enum Stream : uint64_t { kArrivals, kLengths, kPrefix, kShuffle, kPrompts };

constexpr std::array<std::string_view, 64> kWords = {
    "the",  "a",     "and",  "to",    "was",    "in",   "he",    "she",  "it",    "they", "on",   "with", "for",
    "day",  "one",   "play", "big",   "little", "said", "saw",   "tree", "mom",   "dad",  "dog",  "cat",  "bird",
    "ball", "house", "box",  "water", "sun",    "book", "happy", "sad",  "good",  "new",  "red",  "blue", "green",
    "go",   "went",  "come", "look",  "find",   "help", "want",  "like", "love",  "make", "time", "home", "friend",
    "girl", "boy",   "park", "fun",   "back",   "very", "then",  "when", "there", "all",  "not",  "but"};

// Limits and rate of other benchmarks' ShareGPT data sets.
constexpr int64_t kLeastTokens = 4, kLongestPrompt = 1024, kLongestTotal = 2048, kCharactersPerToken = 4;

// Marsaglia and Tsang 2000, "A simple method for generating gamma variables"; scale 1.
double gamma(Rng& rng, double shape) {
  if (shape < 1) return gamma(rng, shape + 1) * std::pow(1 - rng.uniform(), 1 / shape);
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = rng.normal(), v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(1 - rng.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

int64_t draw_length(Rng& rng, int64_t length, double ratio) {
  const auto low = static_cast<int64_t>(std::floor(static_cast<double>(length) * (1 - ratio)));
  const auto high = static_cast<int64_t>(std::ceil(static_cast<double>(length) * (1 + ratio)));
  return std::max<int64_t>(1, low + rng.below(high - low + 1));
}

int64_t guess_tokens(std::string_view text) {
  return static_cast<int64_t>(text.size()) / kCharactersPerToken;
}

// Nothing when the conversation is not one to measure with.
bool read_conversation(const Json& value, const std::string& where, int64_t output_tokens, PlannedRequest& request) {
  const Json* turns = json_find(json_object(value, where), "conversations");
  if (turns == nullptr || !turns->is_array())
    fail_data(where, "an entry has no \"conversations\"; expected a file in ShareGPT's form");
  if (turns->get_array().size() < 2) return false;
  request.prompt = json_string(json_object(turns->get_array()[0], where), "value", where);
  const std::string answer = json_string(json_object(turns->get_array()[1], where), "value", where);
  request.prompt_tokens = guess_tokens(request.prompt);
  request.output_tokens = output_tokens > 0 ? output_tokens : guess_tokens(answer);
  return request.prompt_tokens >= kLeastTokens && request.output_tokens >= kLeastTokens &&
         request.prompt_tokens <= kLongestPrompt && request.prompt_tokens + request.output_tokens <= kLongestTotal;
}

}  // namespace

std::vector<double> arrival_times(int64_t count, double rate, double burstiness, uint64_t seed) {
  std::vector<double> times(static_cast<size_t>(count), 0.0);
  if (std::isinf(rate) || count == 0) return times;
  Rng rng(seed, kArrivals);
  double sum = 0;
  for (double& time : times) time = sum += gamma(rng, burstiness);
  for (double& time : times) time *= static_cast<double>(count) / rate / sum;
  return times;
}

int64_t TokenScale::words_for(int64_t tokens) const {
  return std::max<int64_t>(1, std::llround((static_cast<double>(tokens) - fixed) / per_word));
}

std::string random_words(int64_t words, uint64_t seed, uint64_t stream) {
  Rng rng(seed, kPrompts + stream);
  std::string text;
  for (int64_t i = 0; i < words; ++i) {
    if (i > 0) text += ' ';
    text += kWords[static_cast<size_t>(rng.below(kWords.size()))];
  }
  return text;
}

std::vector<PlannedRequest> random_traffic(const RandomTraffic& traffic, const TokenScale& scale) {
  Rng lengths(traffic.seed, kLengths);
  const auto prefix_words = std::llround(static_cast<double>(traffic.prefix_tokens) / scale.per_word);
  const std::string prefix = prefix_words > 0 ? random_words(prefix_words, mix64(traffic.seed), kPrefix) + ' ' : "";
  std::vector<PlannedRequest> requests(static_cast<size_t>(traffic.count));
  for (size_t i = 0; i < requests.size(); ++i) {
    PlannedRequest& r = requests[i];
    const int64_t own = draw_length(lengths, traffic.input_tokens, traffic.range_ratio);
    r.output_tokens = draw_length(lengths, traffic.output_tokens, traffic.range_ratio);
    r.prompt_tokens = traffic.prefix_tokens + own;
    r.prompt = prefix + random_words(scale.words_for(own), traffic.seed, i);
  }
  return requests;
}

std::vector<PlannedRequest> sharegpt_traffic(const std::string& path, int64_t count, int64_t output_tokens,
                                             uint64_t seed) {
  const Json file = read_json_file(path);
  if (!file.is_array()) fail_data(path, "is not a JSON array; expected a file in ShareGPT's form");
  std::vector<PlannedRequest> usable;
  PlannedRequest request;
  for (const Json& entry : file.get_array())
    if (read_conversation(entry, path, output_tokens, request)) usable.push_back(request);
  if (usable.empty()) fail_data(path, "has no conversation of two turns and a usual length");
  Rng rng(seed, kShuffle);
  for (size_t i = usable.size(); i > 1; --i)
    std::swap(usable[i - 1], usable[static_cast<size_t>(rng.below(static_cast<int64_t>(i)))]);
  std::vector<PlannedRequest> out;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) out.push_back(usable[i % usable.size()]);
  return out;
}

}  // namespace moesaic
