// Runs the test scripts with the system's Python.
#pragma once

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace moesaic {

// What `/usr/bin/python3 ARGUMENTS` prints; *status is 0 when it succeeded.
inline std::string run_python(const std::string& arguments, int* status) {
  FILE* pipe = popen(("/usr/bin/python3 " + arguments + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return {};
  std::string out;
  std::array<char, 4096> buffer;
  for (size_t n = 0; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) out.append(buffer.data(), n);
  *status = pclose(pipe);
  return out;
}

inline bool python_has(const std::string& module) {
  int status = -1;
  run_python("-c 'import " + module + "'", &status);
  return status == 0;
}

}  // namespace moesaic
