#include "kernels/cpu/cpu.h"

namespace moesaic {

// In order of preference: kernels that round activations come first and refuse where exact ones are asked for.
void register_cpu(Registry& registry) {
  using namespace cpu;
  for (const Kernel* kernel : {&kEmbed,
                               &kRmsNorm,
                               &kAdd,
                               &kAddRmsNorm,
                               &kLastToken,
                               &kJoinHidden,
                               &kRopeTable,
                               &kRope,
                               &kRopeGeneral,
                               &kSlice,
                               &kGlu,
                               &kSigmoidGate,
                               &kAttnRes,
                               &kRouteScored,
                               &kGqa,
                               &kMlaAbsorb,
                               &kMlaAttend,
                               &kMlaUp,
                               &kIndexTopk,
                               &kIndexHash,
                               &kLayerNorm,
                               &kShortConv,
                               &kKdaGate,
                               &kKda,
                               &kGatedRmsNorm,
                               &kRoute,
                               &kDispatch,
                               &kLinear,
                               &kLinearWiden,
                               &kExpertLinearWiden,
                               &kQuantize,
                               &kExpertSwigluQ8,
                               &kExpertSwiglu,
                               &kExpertLinearQ8,
                               &kExpertLinear,
                               &kExpertSwigluFp8,
                               &kExpertLinearFp8,
                               &kClampedSwiglu,
                               &kCombine,
                               &kHcExpand,
                               &kHcPre,
                               &kHcPost,
                               &kHcHead,
                               &kCompress,
                               &kEntryAttend,
                               &kGroupedLinear,
                               &kGroupedLinearWiden,
                               &kPatches,
                               &kGridEmbed,
                               &kGridRopeTable,
                               &kFullAttention,
                               &kGelu,
                               &kMergePatches})
    registry.add(*kernel);
}

}  // namespace moesaic
