// EventReader: the data of server-sent events, from bytes cut anywhere (WHATWG HTML, "Server-sent events").
#pragma once

#include <string>
#include <string_view>

#include "base/function_ref.h"

namespace moesaic {

class EventReader {
 public:
  // Calls `on_data` for each event that `bytes` completes. Comments, ids and event names are skipped.
  void feed(std::string_view bytes, function_ref<void(std::string_view data)> on_data);

 private:
  void end_line(function_ref<void(std::string_view data)> on_data);

  std::string line_, data_;
  bool has_data_ = false, after_return_ = false;
};

}  // namespace moesaic
