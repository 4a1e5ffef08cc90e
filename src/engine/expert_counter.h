// ExpertCounter: how many rows each expert of each layer was given, for the load's heat map. It looks at the steps of a
// plan as they run, where their outputs lie in host memory.
#pragma once

#include <unordered_map>

#include "runtime/run.h"

namespace moesaic {

class ExpertCounter {
 public:
  // Both outlive it.
  ExpertCounter(const Plan& prefill, const Plan& decode);

  // After a step, as a StepHook.
  void operator()(const Step& step, const Args& args);

  int64_t experts() const { return experts_; }                    // 0: no layer has any, or they differ in number
  const std::vector<int64_t>& tokens() const { return tokens_; }  // [layers, experts]

 private:
  void add_plan(const Plan& plan);

  std::unordered_map<const Step*, int64_t> layer_of_;
  int64_t experts_ = 0, layers_ = 0;
  std::vector<int64_t> tokens_;
};

}  // namespace moesaic
