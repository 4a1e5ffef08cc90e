// StopStrings: ends a streamed text at the first stop string, wherever the stream is cut.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

class StopStrings {
 public:
  struct Release {
    std::string text;             // may be shown: it is before any stop string
    std::optional<size_t> match;  // index of the stop string that ended the text
  };

  // Empty stop strings match nothing. One per generated sequence; one thread at a time.
  explicit StopStrings(std::vector<std::string> stops);

  // The match is the stop string that is complete first; of several complete at the same byte, the longest. Holds back
  // exactly the longest suffix that begins a stop string. After a match everything is ignored.
  Release push(std::string_view text);
  // What is held back, at the end of the text.
  std::string flush();

  bool matched() const { return matched_; }

 private:
  struct Stop {
    std::string text;
    std::vector<size_t> border;  // [i]: longest proper prefix of text[0, i] that is also its suffix
    size_t seen = 0;             // longest prefix that the input ends with
  };
  static void advance(Stop& stop, char byte);
  std::optional<size_t> completed() const;

  std::vector<Stop> stops_;
  std::string held_;
  bool matched_ = false;
};

}  // namespace moesaic
