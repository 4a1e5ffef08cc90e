// Log lines on stderr: log_info("loaded {} tensors", n). Level from MOESAIC_LOG (debug, info, warn, error; default
// warn) or set_log_level. The only global in the engine.
// log_event(LogLevel::info, "request", {{"id", json_quote(id)}, {"ms", "12"}}) is for lines that programs read.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

enum class LogLevel { debug, info, warn, error };

// plain: "warning: text"; timed: with date and time before it; json: one object on a line.
enum class LogFormat { plain, timed, json };

struct LogField {
  std::string name;
  std::string json;  // its value
};

void set_log_format(LogFormat format);
void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);
void log_line(LogLevel level, std::string_view line);
// "event name=value name=value", or the fields beside "event" in an object.
void log_event(LogLevel level, std::string_view event, const std::vector<LogField>& fields);

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
