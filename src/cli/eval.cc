// moesaic eval: mean negative log-likelihood and perplexity of a text in independent windows.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/progress.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "engine/load_options.h"
#include "engine/score.h"
#include "text/tokenizer.h"
#include "weights/safetensors.h"

namespace moesaic {
namespace {

// Sums over windows of `targets` tokens each.
struct Likelihood {
  int64_t windows = 0, targets = 0, left_out = 0;
  double sum = 0, square_sum = 0;  // of the windows' mean negative log-likelihoods
  double seconds = 0;
  // Of every token's distribution from that of the precision it is compared with.
  double divergence = 0, largest_divergence = 0;
  int64_t same_choice = 0;

  double mean() const { return sum / static_cast<double>(windows); }
  int64_t tokens() const { return windows * targets; }
  // Of the mean, from the spread of the windows; 0 for a single one.
  double standard_error() const {
    if (windows < 2) return 0;
    const double n = static_cast<double>(windows), variance = (square_sum - n * mean() * mean()) / (n - 1);
    return std::sqrt(std::max(0.0, variance) / n);
  }
};

std::vector<int32_t> read_tokens(const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  const char* name = file.find("eval.tokens") != nullptr ? "eval.tokens" : "tokens";
  if (file.find(name) == nullptr)
    fail_data(path, "has neither eval.tokens nor tokens; expected one of them, I64 [tokens]");
  const Tensor tensor = file.tensor(name);
  if (tensor.dtype != DType::i64 || tensor.shape.rank() != 1)
    fail_data(path, "{} is {} {}; expected I64 [tokens]", name, dtype_name(tensor.dtype), to_string(tensor.shape));
  std::vector<int32_t> tokens(static_cast<size_t>(tensor.shape.elements()));
  for (size_t i = 0; i < tokens.size(); ++i) {
    int64_t id;
    std::memcpy(&id, tensor.data + i * 8, 8);
    if (id < 0 || id > INT32_MAX) fail_data(path, "{} holds {}; expected token ids", name, id);
    tokens[i] = static_cast<int32_t>(id);
  }
  return tokens;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file.is_open() || file.bad()) throw Error(StatusCode::not_found, "cannot be read; expected a text file", path);
  return text;
}

// The whole file is one text. Names of special tokens in it become those tokens, so that documents can be separated.
std::vector<int32_t> encode_text(const std::string& path, const std::filesystem::path& directory) {
  if (!std::filesystem::exists(directory / "tokenizer.json"))
    throw Error(StatusCode::not_found,
                "the model has no tokenizer.json; give token ids with --tokens instead of --text", directory.string());
  return load_tokenizer(directory / "tokenizer.json")->encode(read_text(path));
}

std::vector<int32_t> load_tokens(const EvalOptions& options, const ModelSource& source, std::string& where) {
  if (options.text.empty() == options.tokens.empty()) fail_argument("give one of --text FILE and --tokens FILE");
  where =
      options.tokens == "golden" ? (source.directory / "golden.safetensors").string() : options.text + options.tokens;
  auto tokens = options.text.empty() ? read_tokens(where) : encode_text(where, source.directory);
  if (tokens.size() < 2)
    fail_data(where, "has {} tokens; expected at least 2, one to predict from and one to predict", tokens.size());
  for (int32_t id : tokens)
    if (id >= source.model.vocab)
      fail_data(where, "holds token {}; the model's vocabulary has {} tokens", id, source.model.vocab);
  return tokens;
}

size_t most_likely(std::span<const double> logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// A window's logits in the precision to compare with.
class Yardstick {
 public:
  Yardstick(LoadedModel& loaded, Likelihood& result) : scorer_(loaded), result_(result) {}

  void score(std::span<const int32_t> tokens) {
    logits_.clear();
    scorer_.score(tokens,
                  [&](int64_t, std::span<const double> row) { logits_.insert(logits_.end(), row.begin(), row.end()); });
  }
  void compare(int64_t i, std::span<const double> row) {
    const std::vector<double> other(logits_.begin() + i * std::ssize(row), logits_.begin() + (i + 1) * std::ssize(row));
    const double divergence = kl_divergence(other, row);
    result_.divergence += divergence;
    result_.largest_divergence = std::max(result_.largest_divergence, divergence);
    result_.same_choice += most_likely(other) == most_likely(row);
  }

 private:
  Scorer scorer_;
  Likelihood& result_;
  std::vector<float> logits_;  // [window, vocab]
};

// `other`: the same model in another precision; null: none.
Likelihood measure(LoadedModel& loaded, LoadedModel* other, std::span<const int32_t> tokens, int64_t window,
                   int64_t windows, bool show_progress) {
  Likelihood result{.targets = window};
  Scorer scorer(loaded);
  std::optional<Yardstick> yardstick;
  if (other != nullptr) yardstick.emplace(*other, result);
  Scorer::EachRow each;
  if (yardstick) each = [&](int64_t i, std::span<const double> row) { yardstick->compare(i, row); };
  Progress bar("scoring", windows * window, ProgressUnit::items, show_progress);
  const auto start = std::chrono::steady_clock::now();
  for (; result.windows < windows; ++result.windows) {
    const auto text = tokens.subspan(static_cast<size_t>(result.windows * window), static_cast<size_t>(window + 1));
    if (yardstick) yardstick->score(text);
    double sum = 0;
    for (double value : scorer.score(text, each)) sum -= value;
    const double mean = sum / static_cast<double>(window);
    result.sum += mean;
    result.square_sum += mean * mean;
    bar.advance(window);
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

std::string precision_of(const LoadOptions& load) {
  if (load.backend == Backend::ref) return "float64";
  return precision_name(load.precision);
}

void print_likelihood(const Likelihood& r, const EvalOptions& options, const std::string& device) {
  const LoadOptions& load = options.load;
  const double speed = static_cast<double>(r.tokens()) / r.seconds;
  fmt::print(
      "{} tokens in {} {} of {}: mean NLL {:.5f}, perplexity {:.4f}, standard error {}, {:.2f} s, {:.1f} tokens/s\n",
      r.tokens(), r.windows, r.windows == 1 ? "window" : "windows", r.targets, r.mean(), std::exp(r.mean()),
      r.windows > 1 ? fmt::format("{:.5f}", r.standard_error()) : "unknown", r.seconds, speed);
  fmt::print("precision {}, device {}", precision_of(load), device);
  if (r.left_out > 0) fmt::print("; {} tokens after the last window were left out", r.left_out);
  fmt::print("\n");
  if (options.against.empty()) return;
  const auto n = static_cast<double>(r.tokens());
  fmt::print(
      "from {}: mean KL divergence {:.3e} nats, largest {:.3e}; the most likely token is the same for {:.2f} %\n",
      options.against, r.divergence / n, r.largest_divergence, 100 * static_cast<double>(r.same_choice) / n);
}

void print_json(const Likelihood& r, const EvalOptions& options, const std::string& device) {
  const LoadOptions& load = options.load;
  JsonObject out{{"tokens", r.tokens()},
                 {"windows", r.windows},
                 {"window", r.targets},
                 {"tokens_left_out", r.left_out},
                 {"mean_nll", finite_or_null(r.mean())},
                 {"perplexity", finite_or_null(std::exp(r.mean()))},
                 {"standard_error", r.windows > 1 ? finite_or_null(r.standard_error()) : Json(nullptr)},
                 {"seconds", r.seconds},
                 {"tokens_per_second", static_cast<double>(r.tokens()) / r.seconds},
                 {"precision", precision_of(load)},
                 {"device", device}};
  if (!options.against.empty()) {
    const auto n = static_cast<double>(r.tokens());
    out["against"] = JsonObject{{"precision", options.against},
                                {"mean_kl_divergence", finite_or_null(r.divergence / n)},
                                {"largest_kl_divergence", finite_or_null(r.largest_divergence)},
                                {"same_most_likely", static_cast<double>(r.same_choice) / n}};
  }
  fmt::print("{}\n", write_json(out, {.indent = 2}));
}

}  // namespace

// Window w predicts tokens w*W+1 to w*W+W, the first of them from token w*W alone. What is left at the end counts only
// in a text that is shorter than one window.
int run_eval(const EvalOptions& options) {
  std::string where;
  const auto tokens = load_tokens(options, open_model(options.load.model, false), where);
  const int64_t targets = static_cast<int64_t>(tokens.size()) - 1, window = std::min(options.window, targets);
  const int64_t all = targets / window;
  const int64_t windows = options.max_windows > 0 ? std::min(all, options.max_windows) : all;
  LoadedModel loaded = load_model(score_limits(options.load, options.window));
  std::optional<LoadedModel> other;
  if (!options.against.empty()) {
    LoadOptions load = options.load;
    load.precision = parse_precision(options.against);
    other = load_model(score_limits(load, options.window));
  }
  Likelihood result = measure(loaded, other ? &*other : nullptr, tokens, window, windows, options.load.progress);
  result.left_out = targets - result.tokens();
  const auto print = options.json ? print_json : print_likelihood;
  print(result, options, loaded.device->info().name);
  return 0;
}

}  // namespace moesaic
