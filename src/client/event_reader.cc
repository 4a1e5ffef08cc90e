#include "client/event_reader.h"

namespace moesaic {

void EventReader::feed(std::string_view bytes, function_ref<void(std::string_view data)> on_data) {
  for (const char c : bytes) {
    const bool second_half = c == '\n' && after_return_;  // a line may end in \n, \r\n or \r
    after_return_ = c == '\r';
    if (second_half) continue;
    if (c == '\n' || c == '\r') end_line(on_data);
    else line_ += c;
  }
}

void EventReader::end_line(function_ref<void(std::string_view data)> on_data) {
  std::string_view line = line_;
  if (line.empty()) {
    if (has_data_) on_data(data_);
    data_.clear(), has_data_ = false;
  } else if (line == "data" || line.starts_with("data:")) {
    line.remove_prefix(std::min<size_t>(line.size(), 5));
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += line, has_data_ = true;
  }
  line_.clear();
}

}  // namespace moesaic
