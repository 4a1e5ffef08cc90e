// Speed of the CPU matrix kernels against what this machine reads and multiplies in the same run.
//
//   gemm_bench [--csv FILE] [--seconds S] [--filter TEXT] [--cpu-time yes]
//
// Weights rotate through more memory than the last cache level holds, so that decode rows show memory speed. Each
// product is followed by reading as many bytes of other weights and by a burst of multiply-adds on registers, so that
// other load on the machine falls on both sides of the percentages: they compare medians, and best times in brackets.
// With --cpu-time yes all times are processor time divided by the threads, so that compute-bound rows stay meaningful
// on a machine that others keep busy. Use it with MOESAIC_THREADS=1: Linux counts other threads' time in whole ticks.
// MOESAIC_ISA and MOESAIC_THREADS choose the kernels and threads.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "kernels/cpu/bandwidth.h"
#include "kernels/cpu/gemm.h"
#include "weights/layout.h"

namespace moesaic {
namespace {

constexpr int64_t kRotateBytes = int64_t{512} << 20;

struct Case {
  GemmFormat format;
  bool q8;
  int64_t M, N, K;
};

constexpr Case kCases[] = {
    {GemmFormat::bf16, false, 1, 4096, 2880},    {GemmFormat::f32, false, 1, 4096, 2880},
    {GemmFormat::f16, false, 1, 4096, 2880},     {GemmFormat::mxfp4, true, 1, 5760, 2880},
    {GemmFormat::mxfp4, false, 1, 5760, 2880},   {GemmFormat::bf16, false, 1, 201088, 2880},
    {GemmFormat::bf16, false, 4, 4096, 2880},    {GemmFormat::mxfp4, true, 4, 5760, 2880},
    {GemmFormat::mxfp4, false, 4, 5760, 2880},   {GemmFormat::bf16, false, 8, 4096, 2880},
    {GemmFormat::mxfp4, true, 8, 5760, 2880},    {GemmFormat::mxfp4, false, 8, 5760, 2880},
    {GemmFormat::bf16, false, 16, 4096, 2880},   {GemmFormat::mxfp4, true, 16, 5760, 2880},
    {GemmFormat::mxfp4, false, 16, 5760, 2880},  {GemmFormat::f32, false, 64, 5760, 2880},
    {GemmFormat::mxfp4, true, 64, 5760, 2880},   {GemmFormat::mxfp4, false, 64, 5760, 2880},
    {GemmFormat::bf16, false, 512, 4096, 2880},  {GemmFormat::f32, false, 512, 4096, 2880},
    {GemmFormat::bf16, false, 512, 2880, 4096},  {GemmFormat::mxfp4, true, 512, 5760, 2880},
    {GemmFormat::mxfp4, false, 512, 5760, 2880},
};

const char* format_name(GemmFormat format) {
  constexpr const char* kNames[] = {"f32", "bf16", "f16", "mxfp4"};
  return kNames[static_cast<int>(format)];
}

// Weights of random bits, kept to ordinary magnitudes so that no operand is a subnormal or NaN.
std::vector<std::byte> random_weights(const Case& c, int64_t copies) {
  std::vector<std::byte> out(static_cast<size_t>(copies * gemm_matrix_bytes(c.format, c.N, c.K)));
  uint64_t state = 1;
  for (size_t i = 0; i + 8 <= out.size(); i += 8) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    uint64_t bits = state ^ state >> 29;
    if (c.format != GemmFormat::mxfp4) bits = (bits & 0x8FFF8FFF8FFF8FFFu) | 0x3000300030003000u;
    std::memcpy(out.data() + i, &bits, 8);
  }
  if (c.format == GemmFormat::mxfp4)  // N is a multiple of 16: whole blocks, whose groups begin with 16 scales
    for (size_t i = 0; i < out.size(); ++i)
      if (i % kMxBlockGroupBytes < 16) out[i] = (out[i] & std::byte{7}) | std::byte{0x78};
  return out;
}

// Sorted seconds of a product, seconds to read the bytes of its weights, and FMA rates.
struct Times {
  std::vector<double> product, read, fma;
};

double median(const std::vector<double>& sorted) {
  return sorted[sorted.size() / 2];
}

// One matrix product on all threads.
class Product {
 public:
  Product(const Case& c, ThreadPool& pool) : case_(c), pool_(pool) {
    Rng rng(1);
    x_.resize(static_cast<size_t>(c.M * c.K));
    y_.resize(static_cast<size_t>(c.M * c.N));
    for (float& value : x_) value = static_cast<float>(rng.normal());
    q8_.resize(c.q8 ? static_cast<size_t>(c.M * c.K / kMxGroup) : 0);
    if (c.q8) quantize_q8(kernels_, x_.data(), c.K, 0, c.M, c.K, q8_.data());
    scratch_.resize(gemm_scratch_bytes(c.K) * static_cast<size_t>(pool.threads()));
  }

  void run(const std::byte* data) {
    // Decode: small chunks, so that a thread whose core is taken delays nobody. Prefill: 16 chunks or more.
    const int64_t chunk_rows = case_.M > 16 ? 256 : 64;
    pool_.run((case_.N + chunk_rows - 1) / chunk_rows, [&](int64_t i, int thread) {
      rows(data, i * chunk_rows, std::min(case_.N, (i + 1) * chunk_rows), thread);
    });
  }

 private:
  void rows(const std::byte* data, int64_t begin, int64_t end, int thread) {
    const GemmMatrix w{data, case_.format, case_.N, case_.K};
    std::byte* scratch = scratch_.data() + gemm_scratch_bytes(case_.K) * static_cast<size_t>(thread);
    if (case_.q8) {
      gemm_q8(kernels_, w, begin, end, {q8_.data(), nullptr, case_.M}, nullptr, y_.data(), case_.N, scratch);
    } else {
      gemm_f32(kernels_, w, begin, end, {x_.data(), case_.K, nullptr, case_.M}, nullptr, y_.data(), case_.N, scratch);
    }
  }

  const Case case_;
  ThreadPool& pool_;
  const GemmKernels& kernels_ = gemm_kernels(cpu_isa());
  std::vector<float> x_, y_;
  std::vector<Q8Group> q8_;
  std::vector<std::byte> scratch_;
};

double seconds_now(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

Times time_case(const Case& c, ThreadPool& pool, double seconds, bool cpu_time) {
  const int64_t bytes = gemm_matrix_bytes(c.format, c.N, c.K), copies = std::max<int64_t>(3, kRotateBytes / bytes);
  const std::vector<std::byte> weights = random_weights(c, copies);
  const auto timed = [&](auto body) {
    const clockid_t clock = cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
    const double begin = seconds_now(clock);
    body();
    return (seconds_now(clock) - begin) / (cpu_time ? pool.threads() : 1);
  };
  Product product(c, pool);
  Times times;
  const double end = seconds_now(CLOCK_MONOTONIC) + seconds;
  for (int64_t i = 0; i < 7 || seconds_now(CLOCK_MONOTONIC) < end; ++i) {
    times.product.push_back(timed([&] { product.run(weights.data() + 2 * i % copies * bytes); }));
    times.read.push_back(timed([&] { read_all(pool, weights.data() + (2 * i + 1) % copies * bytes, bytes); }));
    double operations = 0;
    const double fma = timed([&] { operations = multiply_add_all(pool, cpu_isa(), 4000); });
    times.fma.push_back(operations / fma);
  }
  for (auto* list : {&times.product, &times.read, &times.fma}) std::sort(list->begin(), list->end());
  return times;
}

// Prints one row, and writes it to `csv` unless that is null.
void report(const Case& c, const std::string& name, const Times& t, std::FILE* csv) {
  const double ms = median(t.product), best = t.product.front();
  const double bytes = static_cast<double>(gemm_matrix_bytes(c.format, c.N, c.K));
  const double operations = 2.0 * static_cast<double>(c.M * c.N * c.K);
  const double read = 100 * median(t.read) / ms, read_best = 100 * t.read.front() / best;
  const double fma = 100 * operations / ms / median(t.fma), fma_best = 100 * operations / best / t.fma.back();
  fmt::print("{:<24} {:>9.3f} {:>9.3f} {:>7.2f} {:>4.0f} ({:>3.0f}) {:>8.1f} {:>4.0f} ({:>3.0f})\n", name, ms * 1e3,
             best * 1e3, bytes / ms * 1e-9, read, read_best, operations / ms * 1e-9, fma, fma_best);
  std::fflush(stdout);
  if (csv == nullptr) return;
  fmt::print(csv, "{},{},{},{},{},{},{:.4f},{:.4f},{:.3f},{:.1f},{:.1f},{:.2f},{:.1f},{:.1f}\n", isa_name(cpu_isa()),
             format_name(c.format), c.q8 ? "q8" : "f32", c.M, c.N, c.K, ms * 1e3, best * 1e3, bytes / ms * 1e-9, read,
             read_best, operations / ms * 1e-9, fma, fma_best);
}

struct Options {
  std::string csv, filter;
  double seconds = 0.7;
  bool cpu_time = false;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--csv") options.csv = argv[i + 1];
    if (flag == "--cpu-time") options.cpu_time = std::string(argv[i + 1]) == "yes";
    if (flag == "--filter") options.filter = argv[i + 1];
    if (flag == "--seconds") options.seconds = std::atof(argv[i + 1]);
  }
  return options;
}

int run(const Options& options) {
  ThreadPool pool;
  const std::string machine =
      fmt::format("isa {}, threads {}, read {:.1f} GB/s, fma {:.1f} GFLOP/s", isa_name(cpu_isa()), pool.threads(),
                  measure_read_bandwidth(pool) * 1e-9, measure_fma_peak(pool, cpu_isa()) * 1e-9);
  fmt::print("{}\n{:<24} {:>9} {:>9} {:>7} {:>10} {:>8} {:>10}\n", machine, "case", "ms", "best ms", "GB/s",
             "% of read", "GFLOP/s", "% of fma");
  std::FILE* csv = options.csv.empty() ? nullptr : std::fopen(options.csv.c_str(), "w");
  if (csv != nullptr)
    fmt::print(csv, "# {}\nisa,format,mode,M,N,K,ms,best_ms,gb_s,read_pct,best_read_pct,gflop_s,fma_pct,best_fma_pct\n",
               machine);
  for (const Case& c : kCases) {
    const std::string name = fmt::format("{} {} {}x{}x{}", format_name(c.format), c.q8 ? "q8" : "f32", c.M, c.N, c.K);
    if (name.find(options.filter) != std::string::npos)
      report(c, name, time_case(c, pool, options.seconds, options.cpu_time), csv);
  }
  if (csv != nullptr) std::fclose(csv);
  return 0;
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) {
  return moesaic::run(moesaic::parse(argc, argv));
}
