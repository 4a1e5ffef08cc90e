#include "kernels/cpu/cpu.h"

namespace moesaic {

// In order of preference: kernels that round activations come first and refuse where exact ones are asked for.
void register_cpu(Registry& registry) {
  using namespace cpu;
  for (const Kernel* kernel :
       {&kEmbed, &kRmsNorm, &kAdd, &kAddRmsNorm, &kLastToken, &kRopeTable, &kRope, &kGqa, &kRoute, &kDispatch, &kLinear, &kLinearFp8,
        &kExpertSwigluQ8, &kExpertSwiglu, &kExpertLinearQ8, &kExpertLinear, &kClampedSwiglu, &kCombine})
    registry.add(*kernel);
}

}  // namespace moesaic
