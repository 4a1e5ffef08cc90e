#include "base/cpu.h"

#include <cpuid.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"

namespace moesaic {
namespace {

// The compiler's built-in does not know F16C: leaf 1 of CPUID, bit 29 of ECX.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c >> 29 & 1) != 0;
}

Isa detect() {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  if (!avx2) return Isa::scalar;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni");
  return avx512 ? Isa::avx512 : Isa::avx2;
}

Isa limited() {
  const char* text = std::getenv("MOESAIC_ISA");
  const std::string_view wish = text != nullptr ? text : "";
  if (wish.empty()) return detect();
  for (Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512})
    if (wish == isa_name(isa)) return std::min(isa, detect());
  fail_argument("MOESAIC_ISA is \"{}\"; expected scalar, avx2 or avx512", wish);
}

}  // namespace

Isa cpu_isa() {
  static const Isa isa = limited();
  return isa;
}

std::string_view isa_name(Isa isa) {
  constexpr std::string_view kNames[] = {"scalar", "avx2", "avx512"};
  return kNames[static_cast<int>(isa)];
}

}  // namespace moesaic
