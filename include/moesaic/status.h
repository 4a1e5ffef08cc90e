// Status and Result: how user input fails. Nothing throws for a bad request or parameter (docs/architecture.md,
// Errors).
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace moesaic {

enum class StatusCode {
  ok,
  invalid_argument,    // a field is malformed or out of range: HTTP 400
  not_found,           // unknown model or file: HTTP 404
  resource_exhausted,  // the queue is full: HTTP 429
  unavailable,         // loading or draining: HTTP 503
  cancelled,           // the caller dropped its Completion
  deadline_exceeded,   // HTTP 504
  data_loss,           // a checkpoint or file is corrupt
  internal,            // non-finite logits, device failure
};

// The outcome of an operation on user input: ok, or a code and one sentence that says what was found, what was
// expected and what to change. `param` names the offending request field where there is one.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message, std::string param = {})
      : code_(code), message_(std::move(message)), param_(std::move(param)) {}

  bool ok() const { return code_ == StatusCode::ok; }
  StatusCode code() const { return code_; }
  const char* message() const { return message_.c_str(); }
  const std::string& param() const { return param_; }

 private:
  StatusCode code_ = StatusCode::ok;
  std::string message_;
  std::string param_;
};

// A value, or the Status that explains its absence.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {}

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace moesaic
