#include "engine/expert_counter.h"

namespace moesaic {

ExpertCounter::ExpertCounter(const Plan& prefill, const Plan& decode) {
  add_plan(prefill);
  add_plan(decode);
  tokens_.assign(static_cast<size_t>(layers_ * experts_), 0);
}

void ExpertCounter::add_plan(const Plan& plan) {
  int64_t layer = 0;
  for (const Step& step : plan.steps) {
    if (step.desc.op != Op::dispatch) continue;
    const int64_t experts = step.desc.attrs.integer(Attr::experts);
    if (experts_ == 0) experts_ = experts;
    if (experts == experts_) layer_of_[&step] = layer;
    ++layer;
  }
  layers_ = std::max(layers_, layer);
}

// The dispatch's second output: where each expert's rows begin.
void ExpertCounter::operator()(const Step& step, const Args& args) {
  if (step.desc.op != Op::dispatch) return;
  const auto layer = layer_of_.find(&step);
  if (layer == layer_of_.end()) return;
  const auto* offsets = reinterpret_cast<const int32_t*>(args.out[1]);
  int64_t* counts = tokens_.data() + layer->second * experts_;
  for (int64_t e = 0; e < experts_; ++e) counts[e] += offsets[e + 1] - offsets[e];
}

}  // namespace moesaic
