// Speed of the CPU matrix kernels against what this machine reads and multiplies in the same run.
//
//   gemm_bench [--csv FILE] [--seconds S] [--filter TEXT]
//
// Weights rotate through more memory than the last cache level holds, so that decode rows show memory speed.
// MOESAIC_ISA and MOESAIC_THREADS choose the kernels and threads.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "kernels/cpu/bandwidth.h"
#include "kernels/cpu/gemm.h"
#include "weights/layout.h"

namespace moesaic {
namespace {

using Clock = std::chrono::steady_clock;

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

struct Times {
  double median, best;
};

Times time_case(const Case& c, ThreadPool& pool, double seconds) {
  const GemmKernels& kernels = gemm_kernels(cpu_isa());
  const int64_t bytes = gemm_matrix_bytes(c.format, c.N, c.K), copies = std::max<int64_t>(2, kRotateBytes / bytes);
  const std::vector<std::byte> weights = random_weights(c, copies);
  Rng rng(1);
  std::vector<float> x(static_cast<size_t>(c.M * c.K)), y(static_cast<size_t>(c.M * c.N));
  for (float& value : x) value = static_cast<float>(rng.normal());
  std::vector<Q8Group> q8(c.q8 ? static_cast<size_t>(c.M * c.K / kMxGroup) : 0);
  if (c.q8) quantize_q8(kernels, x.data(), c.K, 0, c.M, c.K, q8.data());
  const size_t scratch_bytes = gemm_scratch_bytes(c.K);
  std::vector<std::byte> scratch(scratch_bytes * static_cast<size_t>(pool.threads()));
  // Decode: small chunks, so that a thread whose core is taken delays nobody. Prefill: 16 chunks or more.
  const int64_t chunk_rows = std::clamp<int64_t>(c.N / 16 / 64 * 64, 64, c.M > 16 ? 256 : 64);
  const int64_t chunks = (c.N + chunk_rows - 1) / chunk_rows;
  const auto run = [&](const std::byte* data) {
    const GemmMatrix w{data, c.format, c.N, c.K};
    pool.run(chunks, [&](int64_t i, int thread) {
      const int64_t begin = i * chunk_rows, end = std::min(c.N, begin + chunk_rows);
      std::byte* own = scratch.data() + scratch_bytes * static_cast<size_t>(thread);
      if (c.q8) {
        gemm_q8(kernels, w, begin, end, {q8.data(), nullptr, c.M}, nullptr, y.data(), c.N, own);
      } else {
        gemm_f32(kernels, w, begin, end, {x.data(), c.K, nullptr, c.M}, nullptr, y.data(), c.N, own);
      }
    });
  };
  std::vector<double> times;
  const auto start = Clock::now();
  for (int64_t i = 0; times.size() < 5 || Clock::now() - start < std::chrono::duration<double>(seconds); ++i) {
    const auto begin = Clock::now();
    run(weights.data() + i % copies * bytes);
    times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[0]};
}

struct Options {
  std::string csv, filter;
  double seconds = 0.7;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--csv") options.csv = argv[i + 1];
    if (flag == "--filter") options.filter = argv[i + 1];
    if (flag == "--seconds") options.seconds = std::atof(argv[i + 1]);
  }
  return options;
}

int run(const Options& options) {
  ThreadPool pool;
  const double bandwidth = measure_read_bandwidth(pool), peak = measure_fma_peak(pool, cpu_isa());
  const std::string machine = fmt::format("isa {}, threads {}, read {:.1f} GB/s, fma {:.1f} GFLOP/s",
                                          isa_name(cpu_isa()), pool.threads(), bandwidth * 1e-9, peak * 1e-9);
  fmt::print("{}\n{:<22} {:>9} {:>9} {:>7} {:>5} {:>8} {:>6}\n", machine, "case", "ms", "best ms", "GB/s", "%bw",
             "GFLOP/s", "%fma");
  std::FILE* csv = options.csv.empty() ? nullptr : std::fopen(options.csv.c_str(), "w");
  if (csv != nullptr) fmt::print(csv, "# {}\nformat,mode,M,N,K,ms,best_ms,gb_s,bw_pct,gflop_s,fma_pct\n", machine);
  for (const Case& c : kCases) {
    const std::string name = fmt::format("{} {} {}x{}x{}", format_name(c.format), c.q8 ? "q8" : "f32", c.M, c.N, c.K);
    if (name.find(options.filter) == std::string::npos) continue;
    const Times t = time_case(c, pool, options.seconds);
    const double bytes_s = static_cast<double>(gemm_matrix_bytes(c.format, c.N, c.K)) / t.median;
    const double flops = 2.0 * static_cast<double>(c.M * c.N * c.K) / t.median;
    fmt::print("{:<26} {:>9.3f} {:>9.3f} {:>7.2f} {:>5.0f} {:>8.1f} {:>6.0f}\n", name, t.median * 1e3, t.best * 1e3,
               bytes_s * 1e-9, bytes_s / bandwidth * 100, flops * 1e-9, flops / peak * 100);
    std::fflush(stdout);
    if (csv != nullptr)
      fmt::print(csv, "{},{},{},{},{},{:.4f},{:.4f},{:.3f},{:.1f},{:.2f},{:.1f}\n", format_name(c.format),
                 c.q8 ? "q8" : "f32", c.M, c.N, c.K, t.median * 1e3, t.best * 1e3, bytes_s * 1e-9,
                 bytes_s / bandwidth * 100, flops * 1e-9, flops / peak * 100);
  }
  if (csv != nullptr) std::fclose(csv);
  return 0;
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) {
  return moesaic::run(moesaic::parse(argc, argv));
}
