#include "kernels/ref/ref.h"

namespace moesaic {

void register_ref(Registry& registry) {
  using namespace ref;
  for (const Kernel* kernel :
       {&kEmbed,         &kRmsNorm,       &kAdd,      &kAddRmsNorm,  &kLinear,        &kLastToken,     &kRopeTable,
        &kRope,          &kGqa,           &kMla,      &kMlaAbsorb,   &kMlaAttend,     &kMlaUp,         &kIndexTopk,
        &kLayerNorm,     &kSlice,         &kGlu,      &kSigmoidGate, &kAttnRes,       &kShortConv,     &kKdaGate,
        &kKda,           &kGatedRmsNorm,  &kMoe,      &kRoute,       &kDispatch,      &kExpertLinear,  &kExpertSwiglu,
        &kClampedSwiglu, &kCombine,       &kHcExpand, &kHcPre,       &kHcPost,        &kHcHead,        &kCompress,
        &kEntryAttend,   &kGroupedLinear, &kPatches,  &kGridEmbed,   &kGridRopeTable, &kFullAttention, &kGelu,
        &kMergePatches,  &kJoinHidden,    &kQuantize})
    registry.add(*kernel);
}

}  // namespace moesaic
