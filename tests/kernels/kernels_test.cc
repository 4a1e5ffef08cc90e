// Every registered CPU kernel against float64, on data drawn anew at each run. `./dev test --break` runs these with
// MOESAIC_BREAK set and requires each of them to fail.
#include <gtest/gtest.h>

#include "kernels/kernel_harness.h"

namespace moesaic {
namespace {

class KernelMatches : public testing::TestWithParam<const Kernel*> {};

TEST_P(KernelMatches, Float64) {
  const Kernel& kernel = *GetParam();
  Rng rng = fresh_rng();
  int accepted = 0;
  for (const KernelCase& test : kernel_cases(kernel.op, rng)) {
    if (refusal(kernel, test) != nullptr) continue;
    ++accepted;
    expect_matches(kernel, test);
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(accepted, 0) << kernel.name << " has no case: add one to kernel_cases()";
}

std::vector<const Kernel*> cpu_kernels() {
  const auto kernels = registry_of(Backend::cpu).kernels();
  return {kernels.begin(), kernels.end()};
}

std::string test_name(const testing::TestParamInfo<const Kernel*>& info) {
  std::string name = info.param->name;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(, KernelMatches, testing::ValuesIn(cpu_kernels()), test_name);

}  // namespace
}  // namespace moesaic
