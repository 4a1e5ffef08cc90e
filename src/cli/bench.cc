// moesaic bench: speed of prompts and of generation, in the manner of llama-bench, beside what the machine can do.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <fstream>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/table.h"
#include "engine/load_options.h"
#include "engine/machine_limits.h"
#include "engine/speed.h"

namespace moesaic {
namespace {

struct Test {
  int64_t prompt = 0;                          // tokens, or
  int64_t generate = 0, batch = 1, depth = 0;  // steps, sequences, tokens in the cache
  SpeedResult result;

  std::string name() const {
    if (prompt > 0) return fmt::format("pp{}", prompt);
    return fmt::format("tg{}{}{}", generate, batch > 1 ? fmt::format(" b{}", batch) : "",
                       depth > 0 ? fmt::format(" @ d{}", depth) : "");
  }
};

struct Statistics {
  double mean = 0, deviation = 0, median = 0;
};

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

Statistics tokens_per_second(const SpeedResult& result) {
  std::vector<double> rates;
  Statistics s;
  for (double seconds : result.seconds) rates.push_back(static_cast<double>(result.tokens) / seconds);
  const double n = static_cast<double>(rates.size());
  for (double rate : rates) s.mean += rate / n;
  for (double rate : rates) s.deviation += (rate - s.mean) * (rate - s.mean) / std::max(1.0, n - 1);
  s.deviation = std::sqrt(s.deviation);
  s.median = median_of(rates);
  return s;
}

// Everything about a run but the tests.
struct Setting {
  std::string model, backend, precision, cache, isa, machine, date, commit;
  int threads = 1;
  int64_t bytes = 0, parameters = 0;
  MachineLimits limits;
};

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm tm{};
  gmtime_r(&now, &tm);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm)};
}

std::string model_name(const LoadOptions& load, const LoadedModel& loaded) {
  const std::filesystem::path given(load.model);
  if (given.extension() == ".json" && given.stem() != "config") return given.stem().string();
  const std::filesystem::path path = loaded.directory.lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

Setting describe(const LoadOptions& load, const LoadedModel& loaded) {
  const DeviceInfo& device = loaded.device->info();
  const char* commit = std::getenv("MOESAIC_COMMIT");
  Setting s;
  s.model = model_name(load, loaded) + (load.dummy_weights ? " (random weights)" : "");
  s.backend = backend_name(device.backend);
  s.precision = device.backend == Backend::ref ? "float64" : precision_name(load.precision);
  s.cache = dtype_name(cache_dtype(load));
  const bool gpu = device.backend == Backend::cuda;
  s.isa = gpu ? "sm_90a" : isa_name(device.isa);
  s.machine = gpu ? device.name : cpu_name(), s.date = utc_now(), s.commit = commit != nullptr ? commit : "";
  s.threads = device.threads;
  s.bytes = loaded.compiled.weights.bytes;
  for (const WeightSlot& slot : loaded.compiled.weights.slots) s.parameters += slot.spec.shape.elements();
  return s;
}

std::vector<Test> list_tests(const BenchOptions& options) {
  const auto or_default = [](const std::vector<int64_t>& given, std::vector<int64_t> otherwise) {
    return given.empty() ? otherwise : given;
  };
  std::vector<Test> tests;
  for (int64_t length : or_default(options.prompt_lengths, {128, 512})) {
    if (length == 0) continue;
    tests.emplace_back();
    tests.back().prompt = length;
  }
  for (int64_t depth : or_default(options.depths, {0})) {
    for (int64_t batch : or_default(options.batch_sizes, {1, 4})) {
      if (options.generate == 0) continue;
      tests.emplace_back();
      tests.back().generate = options.generate, tests.back().batch = batch, tests.back().depth = depth;
    }
  }
  if (tests.empty()) fail_argument("-p 0 and -n 0 leave nothing to measure; give one of them a length");
  return tests;
}

// Room for exactly what the tests need.
LoadOptions limits_for(LoadOptions load, const std::vector<Test>& tests) {
  int64_t longest = 1, batch = 1;
  for (const Test& test : tests) {
    longest = std::max({longest, test.prompt, test.depth + test.generate});
    batch = std::max(batch, test.batch);
  }
  const Model model = open_model(load.model, false).model;
  const int64_t context = load.max_model_len > 0 ? load.max_model_len : model.max_positions;
  if (longest > context)
    fail_argument("the longest test takes {} tokens; the context is {}: use smaller -p, or -d and -n", longest,
                  context);
  load.max_sequences = batch;
  load.max_model_len = longest;
  load.cache_tokens = 0;
  return load;
}

int64_t progress_total(const std::vector<Test>& tests, int repetitions, bool profile) {
  int64_t total = 0;
  for (const Test& t : tests)
    total += t.prompt > 0 ? SpeedMeter::prompt_progress(t.prompt, repetitions, profile)
                          : SpeedMeter::generate_progress(t.batch, t.depth, t.generate, repetitions, profile);
  return total;
}

MachineLimits run_tests(LoadedModel& loaded, std::vector<Test>& tests, const BenchOptions& options, bool profile) {
  Device& device = *loaded.device;
  MachineLimits limits;
  limits.read_before = measure_read(device);
  {
    Progress bar("measuring", progress_total(tests, options.repetitions, profile), ProgressUnit::items,
                 options.load.progress);
    SpeedMeter meter(loaded, bar);
    for (Test& t : tests)
      t.result = t.prompt > 0 ? meter.prompt(t.prompt, options.repetitions, profile)
                              : meter.generate(t.batch, t.depth, t.generate, options.repetitions, profile);
  }
  int64_t rows = 1;
  for (const Test& t : tests) rows = std::max(rows, std::min(t.prompt, loaded.compiled.prefill.limits.tokens));
  measure_arithmetic(device, largest_product(loaded.compiled.prefill, rows), limits);
  limits.read_after = measure_read(device);
  return limits;
}

// Rates of a test's median repetition, per second, and per step of generation.
struct Rates {
  double seconds = 0, read = 0, flops = 0;
  double step_weights = 0, step_cache = 0, experts = 0;
};

Rates rates_of(const SpeedResult& r) {
  const double seconds = median_of(r.seconds), steps = static_cast<double>(r.steps);
  return {seconds,
          r.work.read_bytes() / seconds,
          r.work.flops / seconds,
          r.work.weight_bytes / steps,
          r.work.cache_bytes / steps,
          r.work.routings > 0 ? static_cast<double>(r.work.experts_reached) / static_cast<double>(r.work.routings) : 0};
}

std::string percent(double part, double whole) {
  return fmt::format("{:.0f}%", 100 * part / whole);
}

void print_speeds(const Setting& s, const std::vector<Test>& tests) {
  Table table({"model", "size", "params", "backend", "threads", "test", "t/s ± sd"});
  for (const Test& test : tests) {
    const Statistics speed = tokens_per_second(test.result);
    table.add({s.model, human_bytes(static_cast<double>(s.bytes)), human_count(static_cast<double>(s.parameters)),
               s.backend + " " + s.isa, std::to_string(s.threads), test.name(),
               fmt::format("{:.2f} ± {:.2f}", speed.mean, speed.deviation)});
  }
  table.print();
}

void print_generation(const Setting& s, const std::vector<Test>& tests) {
  Table table({"generation", "weights/step", "cache/step", "read/token", "experts/layer", "GB/s", "of read bandwidth"});
  bool any = false, cached = false;
  for (const Test& test : tests) {
    if (test.prompt > 0) continue;
    const Rates rates = rates_of(test.result);
    any = true;
    cached |= rates.read > s.limits.read();
    table.add({test.name(), human_bytes(rates.step_weights), human_bytes(rates.step_cache),
               human_bytes(test.result.work.read_bytes() / static_cast<double>(test.result.tokens)),
               fmt::format("{:.1f}", rates.experts), fmt::format("{:.2f}", rates.read / 1e9),
               percent(rates.read, s.limits.read())});
  }
  if (!any) return;
  fmt::print("\n");
  table.print();
  fmt::print(
      "read bandwidth: {:.2f} GB/s before and {:.2f} GB/s after the tests, {} threads; the percentage is of the "
      "higher one\n",
      s.limits.read_before / 1e9, s.limits.read_after / 1e9, s.threads);
  if (cached) fmt::print("above 100%: what a step reads fits the processor's caches in part\n");
  fmt::print("tokens are random; experts are those that they reached, counted in the warm-up\n");
}

void print_prompts(const Setting& s, const std::vector<Test>& tests) {
  const bool gpu = s.backend == backend_name(Backend::cuda);
  Table table({"prompt", "GFLOP", "GFLOP/s", gpu ? "of bf16 product" : "of f32 product", "of FMA peak"});
  bool any = false;
  for (const Test& test : tests) {
    if (test.prompt == 0) continue;
    const Rates rates = rates_of(test.result);
    any = true;
    table.add({test.name(), fmt::format("{:.2f}", test.result.work.flops / 1e9),
               fmt::format("{:.1f}", rates.flops / 1e9), percent(rates.flops, s.limits.product),
               gpu ? "-" : percent(rates.flops, s.limits.peak)});
  }
  if (!any) return;
  fmt::print("\n");
  table.print();
  const auto [M, N, K] = s.limits.shape;
  if (gpu) {
    fmt::print("bf16 product: {:.1f} GFLOP/s, our own gemm [{}, {}] x [{}, {}] after the tests\n",
               s.limits.product / 1e9, M, K, K, N);
    return;
  }
  fmt::print("f32 product: {:.1f} GFLOP/s, our own float32 gemm [{}, {}] x [{}, {}] after the tests, {} threads\n",
             s.limits.product / 1e9, M, K, K, N, s.threads);
  fmt::print("FMA peak: {:.1f} GFLOP/s, float32 on registers alone; int8 products of the fast mode may exceed both\n",
             s.limits.peak / 1e9);
  if (s.limits.product > s.limits.peak)
    fmt::print("the product was faster than the FMA peak: other programs used the processor; repeat on an idle one\n");
}

// The share of the time that the machine's limits would have taken: reading the bytes, or doing the operations.
double ceiling_seconds(const Work& work, const MachineLimits& limits) {
  const double bytes = work.read_bytes() + work.activation_bytes;
  return std::max(limits.read() > 0 ? bytes / limits.read() : 0, limits.product > 0 ? work.flops / limits.product : 0);
}

void print_profiles(const Setting& s, const std::vector<Test>& tests) {
  for (const Test& test : tests) {
    double total = 0;
    for (const StepTimer::Row& row : test.result.profile) total += row.seconds;
    Table table({test.name(), "calls", "ms", "share", "MB", "GFLOP", "GB/s", "GFLOP/s", "of ceiling"});
    for (const StepTimer::Row& row : test.result.profile) {
      const double bytes = row.work.read_bytes() + row.work.activation_bytes;
      table.add({std::string(op_info(row.op).name), std::to_string(row.calls), fmt::format("{:.3f}", row.seconds * 1e3),
                 percent(row.seconds, total), fmt::format("{:.2f}", bytes / 1e6),
                 fmt::format("{:.3f}", row.work.flops / 1e9), fmt::format("{:.2f}", bytes / row.seconds / 1e9),
                 fmt::format("{:.2f}", row.work.flops / row.seconds / 1e9),
                 percent(ceiling_seconds(row.work, s.limits), row.seconds)});
    }
    fmt::print("\n");
    table.print();
  }
  fmt::print(
      "bytes are weights, cache and activations, each counted once; the ceiling is the time for them at the read "
      "bandwidth, or for the operations at the product's rate, whichever is longer\n");
}

// The format of chrome://tracing and Perfetto: one track a test.
void write_trace(const std::string& path, const std::vector<Test>& tests) {
  JsonArray events;
  int track = 0;
  for (const Test& test : tests) {
    events.push_back(
        {{"ph", "M"}, {"name", "thread_name"}, {"pid", 1}, {"tid", ++track}, {"args", {{"name", test.name()}}}});
    for (const StepTimer::Span& span : test.result.spans)
      events.push_back({{"ph", "X"},
                        {"name", span.label},
                        {"cat", op_info(span.op).name},
                        {"pid", 1},
                        {"tid", track},
                        {"ts", span.start * 1e6},
                        {"dur", span.seconds * 1e6}});
  }
  std::ofstream file(path);
  file << write_json(JsonObject{{"traceEvents", events}}) << '\n';
  if (!file.flush()) throw Error(StatusCode::internal, "could not be written", path);
}

JsonArray profile_json(const std::vector<StepTimer::Row>& rows) {
  JsonArray out;
  for (const StepTimer::Row& row : rows)
    out.push_back({{"op", op_info(row.op).name},
                   {"calls", row.calls},
                   {"seconds", row.seconds},
                   {"weight_bytes", row.work.weight_bytes},
                   {"cache_bytes", row.work.cache_bytes},
                   {"flops", row.work.flops}});
  return out;
}

JsonObject test_json(const Test& test) {
  const Statistics speed = tokens_per_second(test.result);
  const Rates rates = rates_of(test.result);
  JsonArray seconds;
  for (double s : test.result.seconds) seconds.emplace_back(s);
  return {{"test", test.name()},
          {"n_prompt", test.prompt},
          {"n_gen", test.generate},
          {"batch", test.batch},
          {"depth", test.depth},
          {"tokens_per_second", {{"mean", speed.mean}, {"sd", speed.deviation}, {"median", speed.median}}},
          {"seconds", seconds},
          {"weight_bytes_per_step", rates.step_weights},
          {"cache_bytes_per_step", rates.step_cache},
          {"experts_per_layer", rates.experts},
          {"read_bytes_per_second", rates.read},
          {"flops", test.result.work.flops},
          {"flops_per_second", rates.flops},
          {"profile", profile_json(test.result.profile)}};
}

void print_json(const Setting& s, const std::vector<Test>& tests) {
  JsonArray rows;
  for (const Test& test : tests) rows.push_back(test_json(test));
  const auto [M, N, K] = s.limits.shape;
  const JsonObject limits{{"read_bytes_per_second_before", s.limits.read_before},
                          {"read_bytes_per_second_after", s.limits.read_after},
                          {"f32_product", {{"M", M}, {"N", N}, {"K", K}, {"flops_per_second", s.limits.product}}},
                          {"fma_flops_per_second", s.limits.peak}};
  const JsonObject out{{"model", s.model},
                       {"size_bytes", s.bytes},
                       {"parameters", s.parameters},
                       {"backend", s.backend},
                       {"precision", s.precision},
                       {"cache", s.cache},
                       {"machine", s.machine},
                       {"isa", s.isa},
                       {"threads", s.threads},
                       {"date", s.date},
                       {"commit", s.commit},
                       {"limits", limits},
                       {"tests", rows}};
  fmt::print("{}\n", write_json(out, {.indent = 2}));
}

constexpr const char* kCsvHeader =
    "date,commit,machine,isa,threads,model,backend,precision,cache,size_bytes,parameters,test,tokens_per_second_mean,"
    "tokens_per_second_sd,tokens_per_second_median,weight_bytes_per_step,cache_bytes_per_step,experts_per_layer,"
    "read_gb_per_s,read_bandwidth_before_gb_per_s,read_bandwidth_after_gb_per_s,gflop_per_s,product_gflop_per_s,"
    "peak_gflop_per_s";

// Whether the file needs the header. Throws Error when it cannot be appended to, before anything is measured.
bool check_csv(const std::string& path) {
  std::string header;
  std::getline(std::ifstream(path), header);
  if (!header.empty() && header != kCsvHeader)
    fail_data(path, "has other columns than this program writes; give --csv another file");
  if (!std::ofstream(path, std::ios::app)) throw Error(StatusCode::invalid_argument, "cannot be written to", path);
  return header.empty();
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string out = "\"";
  for (char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

void append_csv(const std::string& path, bool header, const Setting& s, const std::vector<Test>& tests) {
  std::ofstream file(path, std::ios::app);
  if (header) file << kCsvHeader << '\n';
  for (const Test& test : tests) {
    const Statistics speed = tokens_per_second(test.result);
    const Rates rates = rates_of(test.result);
    file << fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},", s.date, csv_field(s.commit), csv_field(s.machine),
                        s.isa, s.threads, csv_field(s.model), s.backend, s.precision, s.cache, s.bytes, s.parameters,
                        test.name());
    file << fmt::format("{:.3f},{:.3f},{:.3f},{:.0f},{:.0f},{:.2f},", speed.mean, speed.deviation, speed.median,
                        rates.step_weights, rates.step_cache, rates.experts);
    file << fmt::format("{:.3f},{:.3f},{:.3f},{:.3f},{:.3f},{:.3f}\n", rates.read / 1e9, s.limits.read_before / 1e9,
                        s.limits.read_after / 1e9, rates.flops / 1e9, s.limits.product / 1e9, s.limits.peak / 1e9);
  }
  file.flush();
  if (!file) throw Error(StatusCode::internal, "could not be written", path);
}

}  // namespace

int run_bench(const BenchOptions& options) {
  std::vector<Test> tests = list_tests(options);
  const LoadOptions load = limits_for(options.load, tests);
  const bool csv_header = !options.csv.empty() && check_csv(options.csv);
  const bool profile = options.profile || options.json || !options.trace.empty() || log_enabled(LogLevel::info);
  LoadedModel loaded = load_model(load);
  Setting setting = describe(load, loaded);
  const int64_t planned = loaded.device_bytes();
  setting.limits = run_tests(loaded, tests, options, profile);
  if (!options.csv.empty()) append_csv(options.csv, csv_header, setting, tests);
  if (!options.trace.empty()) write_trace(options.trace, tests);
  if (options.json) return print_json(setting, tests), 0;
  print_speeds(setting, tests);
  print_generation(setting, tests);
  print_prompts(setting, tests);
  if (profile) print_profiles(setting, tests);
  if (const int64_t used = loaded.device->memory_in_use(); used > 0)
    fmt::print("\ndevice memory: {} planned, {} in use after the tests ({:+.1f}%)\n", planned, used,
               100 * static_cast<double>(used - planned) / static_cast<double>(planned));
  fmt::print(
      "\nprecision {}, cache {}, {} ({}), {} repetitions after a warm-up; sizes and percentages from the median\n",
      setting.precision, setting.cache, loaded.device->info().name, setting.machine, options.repetitions);
  return 0;
}

}  // namespace moesaic
