#include "base/cpu.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"

namespace moesaic {
namespace {

Isa detect() {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::scalar;
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
