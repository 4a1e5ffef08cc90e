// MarkerScanner: token ids in, bytes out, in which each marker of an answer format is one byte that text never has.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/detokenizer.h"

namespace moesaic {

struct AnswerMarker {
  unsigned char byte;  // kFirstMarker to 0xFF; several spellings may share one
  std::string_view text;
};

class MarkerScanner {
 public:
  // A marker that the tokenizer has as a token is recognised by that token alone; any other by its letters. The
  // tokenizer and the markers' texts outlive it.
  MarkerScanner(const Tokenizer& tokenizer, std::span<const AnswerMarker> markers);

  // Appends to `out`: whole characters and markers. Special tokens that are no markers are left out.
  void push(int32_t token, std::string& out);
  // The end: a character cut short becomes U+FFFD, the beginning of a marker is dropped.
  void flush(std::string& out);

  bool has_token(unsigned char byte) const;
  std::optional<unsigned char> marker_of(int32_t token) const;

 private:
  void scan(std::string& out);

  Detokenizer text_;
  std::map<int32_t, unsigned char> ids_;
  std::vector<AnswerMarker> letters_;
  std::string held_;  // text that may be the beginning of a marker
};

}  // namespace moesaic
