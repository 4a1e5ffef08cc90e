// Every registered CPU and CUDA kernel against float64, on data drawn anew at each run. `./dev test --break` runs these
// with MOESAIC_BREAK set and requires each of them to fail.
#include <gtest/gtest.h>

#include "kernels/kernel_harness.h"

namespace moesaic {
namespace {

class KernelMatches : public testing::TestWithParam<const Kernel*> {};

TEST_P(KernelMatches, Float64) {
  const Kernel& kernel = *GetParam();
  if (kernel.backend == Backend::cuda && !cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  Rng rng = fresh_rng();
  int accepted = 0;
  for (const KernelCase& test : kernel_cases(kernel.op, rng)) {
    if (refusal(kernel, test) != nullptr) continue;
    ++accepted;
    expect_matches(kernel, test);
    if (testing::Test::HasFailure()) return;  // one case is enough to tell
  }
  EXPECT_GT(accepted, 0) << kernel.name << " has no case: add one to kernel_cases()";
}

std::vector<const Kernel*> all_kernels() {
  std::vector<const Kernel*> all;
  for (Backend backend : {Backend::cpu, Backend::cuda})
    for (const Kernel* kernel : registry_of(backend).kernels()) all.push_back(kernel);
  return all;
}

std::string test_name(const testing::TestParamInfo<const Kernel*>& info) {
  std::string name = info.param->name;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(, KernelMatches, testing::ValuesIn(all_kernels()), test_name);

}  // namespace
}  // namespace moesaic
