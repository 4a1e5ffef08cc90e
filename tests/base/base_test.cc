// The small headers of src/base: dtypes, shapes, random numbers, progress, errors, log, mapped files, SIMD level.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <set>

#include "base/cpu.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/fresh_rng.h"
#include "base/function_ref.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/progress.h"
#include "base/shape.h"
#include "base/temp_dir.h"
#include "base/tensor.h"

namespace moesaic {
namespace {

using ::testing::HasSubstr;

TEST(DType, NamesRoundTripAndAreDistinct) {
  std::set<std::string_view> names, stored;
  for (int i = 1; i <= static_cast<int>(DType::e8m0); ++i) {
    const DType dtype = static_cast<DType>(i);
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
    EXPECT_EQ(parse_safetensors_dtype(safetensors_name(dtype)), dtype);
    EXPECT_EQ(dtype_bits(dtype), 8 * dtype_bytes(dtype));
    names.insert(dtype_name(dtype));
    stored.insert(safetensors_name(dtype));
  }
  EXPECT_EQ(names.size(), 16u);
  EXPECT_EQ(stored.size(), 16u);
}

TEST(DType, SizesAndUnknownNames) {
  const std::pair<const char*, int> kBits[] = {{"bool", 8}, {"u8", 8},   {"i16", 16},  {"u32", 32},
                                               {"i64", 64}, {"f16", 16}, {"bf16", 16}, {"f32", 32},
                                               {"f64", 64}, {"e4m3", 8}, {"e5m2", 8},  {"e8m0", 8}};
  for (const auto& [name, bits] : kBits) EXPECT_EQ(dtype_bits(*parse_dtype(name)), bits) << name;
  EXPECT_EQ(dtype_bits(DType::none), 0);
  EXPECT_EQ(parse_safetensors_dtype("F8_E4M3"), DType::e4m3);
  for (const char* name : {"", "none", "F32", "f32 "}) EXPECT_EQ(parse_dtype(name), std::nullopt) << name;
  for (const char* name : {"", "f32", "F33", "F4", "C64"})
    EXPECT_EQ(parse_safetensors_dtype(name), std::nullopt) << name;
}

TEST(Shape, DimsElementsAndText) {
  const Shape shape{8, 64, 96};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape[0], 8);
  EXPECT_EQ(shape[-1], 96);
  EXPECT_EQ(shape[-3], 8);
  EXPECT_EQ(shape.elements(), 8 * 64 * 96);
  EXPECT_EQ(to_string(shape), "[8, 64, 96]");
  EXPECT_EQ(to_string(Shape()), "[]");
  EXPECT_EQ(Shape().elements(), 1);
  EXPECT_EQ((Shape{3, 0, 5}).elements(), 0);
  EXPECT_EQ((Shape{1 << 20, 1 << 20}).elements(), int64_t{1} << 40);
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_NE((Shape{2, 3}), (Shape{2, 3, 1}));
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
}

TEST(ShapeDeathTest, RankIsLimited) {
  EXPECT_DEATH((Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}), "rank 9");
}

TEST(Tensor, Bytes) {
  EXPECT_EQ((Tensor{nullptr, DType::f32, {3, 5}}).bytes(), 60);
  EXPECT_EQ((Tensor{nullptr, DType::e4m3, {}}).bytes(), 1);
}

// The first outputs of SplitMix64 for seed 0, from its authors' program.
TEST(Rng, Mix64IsSplitMix64) {
  EXPECT_EQ(mix64(0), 0xE220A8397B1DCDAFu);
  EXPECT_EQ(mix64(0x9E3779B97F4A7C15u), 0x6E789E6AA1B965F4u);
  EXPECT_EQ(mix64(2 * 0x9E3779B97F4A7C15u), 0x06C45D188009454Fu);
}

TEST(Rng, DependsOnSeedAndStreamOnly) {
  const uint64_t seed = fresh_rng().bits();
  Rng a(seed, 1), b(seed, 1), c(seed, 2), d(seed + 1, 1);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t bits = a.bits();
    EXPECT_EQ(bits, b.bits());
    EXPECT_NE(bits, c.bits());
    EXPECT_NE(bits, d.bits());
  }
}

// Bounds of six standard errors: a sound generator fails one run in hundreds of millions.
TEST(Rng, MomentsAndRanges) {
  constexpr int kDraws = 100'000;
  Rng rng = fresh_rng();
  double sum = 0, normal = 0, square = 0;
  std::vector<int> faces(7);
  for (int i = 0; i < kDraws; ++i) {
    const double u = rng.uniform();
    ASSERT_TRUE(u >= 0 && u < 1);
    sum += u;
    const double z = rng.normal();
    normal += z, square += z * z;
    ++faces.at(static_cast<size_t>(rng.below(7)));
    const double between = rng.uniform(-3, -2);
    ASSERT_TRUE(between >= -3 && between < -2);
  }
  const double root = std::sqrt(kDraws);
  EXPECT_NEAR(sum / kDraws, 0.5, 6 * std::sqrt(1.0 / 12) / root);
  EXPECT_NEAR(normal / kDraws, 0, 6 / root);
  EXPECT_NEAR(square / kDraws, 1, 6 * std::sqrt(2.0) / root);
  for (int n : faces) EXPECT_NEAR(n, kDraws / 7.0, 6 * std::sqrt(kDraws * 6.0 / 49));
  EXPECT_EQ(rng.below(1), 0);
}

TEST(Progress, HumanNumbers) {
  const std::pair<double, const char*> kBytes[] = {
      {0, "0 B"},          {999, "999 B"},    {999.4, "999 B"},      {999.5, "1.00 kB"},  {1000, "1.00 kB"},
      {9994, "9.99 kB"},   {9995, "10.0 kB"}, {25.2e6, "25.2 MB"},   {99.96e6, "100 MB"}, {999.6e6, "1.00 GB"},
      {1.16e9, "1.16 GB"}, {7e12, "7.00 TB"}, {12345e12, "12345 TB"}};
  for (const auto& [value, text] : kBytes) EXPECT_EQ(human_bytes(value), text);
  EXPECT_EQ(human_count(12), "12");
  EXPECT_EQ(human_count(3.61e9), "3.61 B");
  EXPECT_EQ(human_count(31.1e6), "31.1 M");
}

TEST(Progress, SilentWithoutATerminal) {
  testing::internal::CaptureStderr();
  {
    Progress progress("loading", 100, ProgressUnit::items);
    for (int i = 0; i < 100; ++i) progress.advance(1);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

int call(function_ref<int(int)> f) {
  return f(20);
}

TEST(FunctionRef, RefersToTheCallable) {
  int calls = 0;
  const auto count = [&calls](int n) { return calls += n; };
  EXPECT_EQ(call(count), 20);
  EXPECT_EQ(call(count), 40);
  EXPECT_EQ(call([](int n) { return n + 1; }), 21);
  auto counter = [n = 0](int step) mutable { return n += step; };
  const function_ref<int(int)> ref = counter;
  const function_ref<int(int)> copy = ref;
  EXPECT_EQ(ref(1), 1);
  EXPECT_EQ(copy(1), 2);
}

TEST(Cpu, LevelHasAName) {
  EXPECT_EQ(cpu_isa(), cpu_isa());
  EXPECT_EQ(isa_name(Isa::scalar), "scalar");
  EXPECT_EQ(isa_name(Isa::avx2), "avx2");
  EXPECT_EQ(isa_name(Isa::avx512), "avx512");
}

// The level is read once per process, so each wish runs in a process of its own.
TEST(CpuDeathTest, EnvironmentLowersTheLevel) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto exit_with_level = [](const char* wish) {
    setenv("MOESAIC_ISA", wish, 1);
    try {
      std::exit(static_cast<int>(cpu_isa()));
    } catch (const Error& e) {
      std::fputs(e.what(), stderr);
      std::exit(9);
    }
  };
  EXPECT_EXIT(exit_with_level("scalar"), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(exit_with_level("sse9"), testing::ExitedWithCode(9), "sse9.*expected scalar, avx2 or avx512");
}

TEST(Error, MessageNamesThePlace) {
  try {
    fail_data("model.safetensors", "is {} bytes long; expected {}", 3, 8);
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "model.safetensors: is 3 bytes long; expected 8");
    EXPECT_EQ(e.code(), StatusCode::data_loss);
    EXPECT_EQ(e.where(), "model.safetensors");
  }
  try {
    fail_argument("--threads is {}", 0);
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "--threads is 0");
    EXPECT_EQ(e.code(), StatusCode::invalid_argument);
  }
}

TEST(ErrorDeathTest, CheckPrintsItsValues) {
  const int rank = 3;
  CHECK(rank == 3);
  EXPECT_DEATH(CHECK(rank == 2, "rank {}", rank), "rank == 2: rank 3");
  EXPECT_DEATH(CHECK(rank == 2), "broken invariant: rank == 2");
}

TEST(Log, LevelDecides) {
  set_log_level(LogLevel::warn);
  EXPECT_FALSE(log_enabled(LogLevel::info));
  EXPECT_TRUE(log_enabled(LogLevel::warn));
  testing::internal::CaptureStderr();
  log_info("hidden {}", 1);
  log_warn("shown {{}} {}", 2);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("shown {} 2"));
  EXPECT_THAT(text, Not(HasSubstr("hidden")));
}

StatusCode open_failure(const std::filesystem::path& path) {
  try {
    MappedFile::open(path);
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr(path.string()));
    EXPECT_THAT(e.what(), Not(HasSubstr("Success")));
    return e.code();
  }
  return StatusCode::ok;
}

TEST(MappedFile, BytesMovesAndDrops) {
  Rng rng = fresh_rng();
  const TempDir dir;
  std::string text(100'001, '\0');
  for (char& c : text) c = static_cast<char>(rng.bits());
  const auto path = dir.write("a", text);
  MappedFile first = MappedFile::open(path);
  MappedFile file = std::move(first);
  EXPECT_EQ(file.path(), path);
  EXPECT_EQ(first.bytes().size(), 0u);
  file.will_need(0, text.size());
  file.will_need(99'999, SIZE_MAX / 2);
  file.drop(1, 50'000);
  file.drop(0, text.size());
  file.drop(200'000, 5);
  EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()), text);
  EXPECT_EQ(read_text_file(path), text);
  file = MappedFile::open(dir.write("b", "xy"));
  EXPECT_EQ(file.bytes()[1], std::byte{'y'});
}

TEST(MappedFile, EmptyMissingAndSpecialFiles) {
  const TempDir dir;
  EXPECT_TRUE(MappedFile::open(dir.write("empty", "")).bytes().empty());
  EXPECT_EQ(read_text_file(dir.path() / "empty"), "");
  EXPECT_EQ(open_failure(dir.path() / "none"), StatusCode::not_found);
  EXPECT_EQ(open_failure(dir.path()), StatusCode::not_found);
  EXPECT_EQ(open_failure("/dev/null"), StatusCode::not_found);
  EXPECT_THROW(read_text_file(dir.write("long", "12345"), 4), Error);
  EXPECT_EQ(read_text_file(dir.path() / "long", 5), "12345");
}

}  // namespace
}  // namespace moesaic
