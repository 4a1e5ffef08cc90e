// Frames of server-sent events.
#pragma once

#include <string>
#include <string_view>

namespace moesaic {

constexpr const char* kEventStream = "text/event-stream; charset=utf-8";
constexpr std::string_view kDone = "data: [DONE]\n\n";

// Appends a frame; `json` is one line.
inline void append_event(std::string& out, std::string_view json) {
  out.append("data: ").append(json).append("\n\n");
}
inline void append_event(std::string& out, std::string_view type, std::string_view json) {
  out.append("event: ").append(type).append("\n");
  append_event(out, json);
}

}  // namespace moesaic
