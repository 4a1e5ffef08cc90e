#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <string>

#include "base/json.h"

namespace moesaic {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                                   spdlog::level::err};
  return kLevels[static_cast<int>(level)];
}

std::atomic<LogFormat> format_in_use{LogFormat::plain};

// "2026-12-01T16:30:00.123Z"
std::string utc_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  const time_t seconds = static_cast<time_t>(ms / 1000);
  tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  const size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  return fmt::format("{}.{:03}Z", std::string_view(text, length), ms % 1000);
}

std::string json_head(LogLevel level) {
  constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
  return fmt::format(R"({{"time":"{}","level":"{}")", utc_now(), kNames[static_cast<int>(level)]);
}

spdlog::logger& logger() {
  static spdlog::logger instance = [] {
    spdlog::logger made("moesaic", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made.set_pattern("%^%l%$: %v");
    const char* level = std::getenv("MOESAIC_LOG");
    made.set_level(level != nullptr ? spdlog::level::from_str(level) : spdlog::level::warn);
    return made;
  }();
  return instance;
}

}  // namespace

void set_log_level(LogLevel level) {
  logger().set_level(to_spdlog(level));
}

bool log_enabled(LogLevel level) {
  return logger().should_log(to_spdlog(level));
}

void set_log_format(LogFormat format) {
  format_in_use = format;
  constexpr const char* kPatterns[] = {"%^%l%$: %v", "%Y-%m-%d %H:%M:%S.%e %^%l%$: %v", "%v"};
  logger().set_pattern(kPatterns[static_cast<int>(format)]);
}

void log_line(LogLevel level, std::string_view line) {
  if (format_in_use == LogFormat::json && log_enabled(level))
    logger().log(to_spdlog(level), "{},\"message\":{}}}", json_head(level), json_quote(line));
  else logger().log(to_spdlog(level), "{}", line);
}

void log_event(LogLevel level, std::string_view event, const std::vector<LogField>& fields) {
  if (!log_enabled(level)) return;
  const bool json = format_in_use == LogFormat::json;
  std::string line = json ? fmt::format("{},\"event\":{}", json_head(level), json_quote(event)) : std::string(event);
  for (const LogField& field : fields)
    line += json ? fmt::format(",{}:{}", json_quote(field.name), field.json)
                 : fmt::format(" {}={}", field.name, field.json);
  if (json) line += '}';
  logger().log(to_spdlog(level), "{}", line);
}

}  // namespace moesaic
