// Log lines on stderr: log_info("loaded {} tensors", n). Level from MOESAIC_LOG (debug, info, warn, error; default
// warn) or set_log_level. The only global in the engine.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace moesaic {

enum class LogLevel { debug, info, warn, error };

void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);
void log_line(LogLevel level, std::string_view line);

template <typename... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_line(level, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::info, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::warn, format, std::forward<Args>(args)...);
}

}  // namespace moesaic
