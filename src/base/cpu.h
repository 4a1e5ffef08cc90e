// Which SIMD level kernels use on this processor.
#pragma once

#include <string_view>

namespace moesaic {

enum class Isa { scalar, avx2, avx512 };  // avx2: with FMA and F16C; avx512: F, BW, DQ, VL and VNNI

// The best level the processor and operating system support, lowered by MOESAIC_ISA=scalar|avx2|avx512.
Isa cpu_isa();
std::string_view isa_name(Isa isa);

}  // namespace moesaic
