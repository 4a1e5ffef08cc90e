#include "kernels/ref/ref.h"

namespace moesaic {

void register_ref(Registry& registry) {
  using namespace ref;
  for (const Kernel* kernel : {&kEmbed, &kRmsNorm, &kAdd, &kAddRmsNorm, &kLinear, &kLastToken, &kRopeTable, &kRope, &kGqa,
                               &kMoe, &kRoute, &kDispatch, &kExpertLinear, &kExpertSwiglu, &kClampedSwiglu, &kCombine})
    registry.add(*kernel);
}

}  // namespace moesaic
