// Error, CHECK and DCHECK. An Error is a bad file, checkpoint, config or compilation: it is thrown, and caught only in
// main, the engine loop and the C API. A failed CHECK is a broken invariant of ours: it prints the values and aborts.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

#include "moesaic/status.h"

namespace moesaic {

class Error : public std::runtime_error {
 public:
  Error(StatusCode code, const std::string& message, std::string where = {})
      : std::runtime_error(where.empty() ? message : where + ": " + message), code_(code), where_(std::move(where)) {}

  StatusCode code() const { return code_; }
  const std::string& where() const { return where_; }  // file, tensor or pass the message is about

 private:
  StatusCode code_;
  std::string where_;
};

// Throws Error(data_loss): a file or checkpoint is not what it should be. `where` is the file's name.
template <typename... Args>
[[noreturn]] void fail_data(const std::string& where, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(StatusCode::data_loss, fmt::format(format, std::forward<Args>(args)...), where);
}

// Throws Error(invalid_argument): a flag, config value or request for something we do not have.
template <typename... Args>
[[noreturn]] void fail_argument(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(StatusCode::invalid_argument, fmt::format(format, std::forward<Args>(args)...));
}

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace moesaic

#define CHECK(condition, ...)                                                                 \
  do {                                                                                        \
    if (!(condition)) [[unlikely]]                                                            \
      ::moesaic::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)

#ifdef NDEBUG
#define DCHECK(condition, ...) static_cast<void>(sizeof(!(condition)))
#else
#define DCHECK(condition, ...) CHECK(condition, __VA_ARGS__)
#endif
