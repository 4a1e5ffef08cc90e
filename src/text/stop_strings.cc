#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace moesaic {

// The border table of Knuth, Morris and Pratt.
StopStrings::StopStrings(std::vector<std::string> stops) {
  for (std::string& text : stops) {
    Stop stop{std::move(text), {}, 0};
    stop.border.assign(stop.text.size(), 0);
    for (size_t i = 1, k = 0; i < stop.text.size(); ++i) {
      while (k > 0 && stop.text[i] != stop.text[k]) k = stop.border[k - 1];
      if (stop.text[i] == stop.text[k]) ++k;
      stop.border[i] = k;
    }
    stops_.push_back(std::move(stop));
  }
}

void StopStrings::advance(Stop& stop, char byte) {
  if (stop.text.empty()) return;
  while (stop.seen > 0 && stop.text[stop.seen] != byte) stop.seen = stop.border[stop.seen - 1];
  if (stop.text[stop.seen] == byte) ++stop.seen;
}

std::optional<size_t> StopStrings::completed() const {
  std::optional<size_t> longest;
  for (size_t i = 0; i < stops_.size(); ++i) {
    const std::string& text = stops_[i].text;
    if (!text.empty() && stops_[i].seen == text.size() && (!longest || text.size() > stops_[*longest].text.size()))
      longest = i;
  }
  return longest;
}

StopStrings::Release StopStrings::push(std::string_view text) {
  if (matched_) return {};
  for (size_t i = 0; i < text.size(); ++i) {
    for (Stop& stop : stops_) advance(stop, text[i]);
    const std::optional<size_t> match = completed();
    if (!match) continue;
    matched_ = true;
    held_ += text.substr(0, i + 1);
    held_.resize(held_.size() - stops_[*match].text.size());
    return {std::exchange(held_, {}), match};
  }
  held_ += text;
  size_t keep = 0;
  for (const Stop& stop : stops_) keep = std::max(keep, stop.seen);
  Release release{held_.substr(0, held_.size() - keep), std::nullopt};
  held_.erase(0, release.text.size());
  return release;
}

std::string StopStrings::flush() {
  for (Stop& stop : stops_) stop.seen = 0;
  return std::exchange(held_, {});
}

}  // namespace moesaic
