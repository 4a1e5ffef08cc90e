#include "text/answer_markers.h"

namespace moesaic {

MarkerScanner::MarkerScanner(const Tokenizer& tokenizer, std::span<const AnswerMarker> markers)
    : text_(tokenizer, true) {
  for (const AnswerMarker& marker : markers) {
    if (const auto id = tokenizer.token_to_id(marker.text)) ids_[*id] = marker.byte;
    else letters_.push_back(marker);
  }
}

bool MarkerScanner::has_token(unsigned char byte) const {
  for (const auto& [id, marker] : ids_)
    if (marker == byte) return true;
  return false;
}

std::optional<unsigned char> MarkerScanner::marker_of(int32_t token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

void MarkerScanner::push(int32_t token, std::string& out) {
  if (const auto marker = marker_of(token)) {
    held_ += text_.flush();
    scan(out);
    out += held_;  // a marker's letters do not continue across a token that is one
    held_.clear();
    out += static_cast<char>(*marker);
    return;
  }
  if (letters_.empty()) {
    out += text_.push(token);
    return;
  }
  held_ += text_.push(token);
  scan(out);
}

// Moves what is decided from held_ to `out`. No marker is the beginning of another.
void MarkerScanner::scan(std::string& out) {
  std::string_view rest = held_;
  const auto next = [&] {  // false: the rest may be the beginning of a marker
    for (const AnswerMarker& marker : letters_) {
      if (rest.starts_with(marker.text)) {
        out += static_cast<char>(marker.byte);
        rest.remove_prefix(marker.text.size());
        return true;
      }
      if (marker.text.starts_with(rest)) return false;
    }
    out += rest.front();
    rest.remove_prefix(1);
    return true;
  };
  while (!rest.empty() && next()) continue;
  held_.erase(0, held_.size() - rest.size());
}

void MarkerScanner::flush(std::string& out) {
  held_ += text_.flush();
  scan(out);
  // One or two bytes are more likely text than a marker cut short.
  if (held_.size() <= 2) out += held_;
  held_.clear();
}

}  // namespace moesaic
