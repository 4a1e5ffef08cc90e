#include "kernels/cuda/cuda.h"

namespace moesaic {

// In order of preference: kernels that round to bf16 for the matrix units come first and refuse where float32 is asked
// for.
void register_cuda(Registry& registry) {
  using namespace cuda;
  for (const Kernel* kernel : {&kRmsNorm,
                               &kAddRmsNorm,
                               &kQuantize,
                               &kEmbed,
                               &kAdd,
                               &kSlice,
                               &kGlu,
                               &kSigmoidGate,
                               &kClampedSwiglu,
                               &kGelu,
                               &kLastToken,
                               &kLayerNorm,
                               &kGatedRmsNorm,
                               &kJoinHidden,
                               &kAttnRes,
                               &kRopeTable,
                               &kRope,
                               &kRoute,
                               &kDispatch,
                               &kCombine,
                               &kPatches,
                               &kGridEmbed,
                               &kGridRopeTable,
                               &kFullAttention,
                               &kMergePatches,
                               &kMlaAbsorbBf16,
                               &kMlaAbsorb,
                               &kMlaUpBf16,
                               &kMlaUp,
                               &kMlaAttendBf16,
                               &kMlaAttend,
                               &kIndexTopkBf16,
                               &kIndexTopk,
                               &kIndexHash,
                               &kLinearBf16,
                               &kGroupedLinearBf16,
                               &kLinear,
                               &kGroupedLinear,
                               &kGqaBf16,
                               &kGqa,
                               &kExpertLinearMxfp4,
                               &kExpertSwigluMxfp4,
                               &kExpertLinear,
                               &kExpertSwiglu,
                               &kShortConv,
                               &kKdaGate,
                               &kKda,
                               &kHcExpand,
                               &kHcPre,
                               &kHcPost,
                               &kHcHead,
                               &kCompress,
                               &kEntryAttendBf16,
                               &kEntryAttend})
    registry.add(*kernel);
}

}  // namespace moesaic
