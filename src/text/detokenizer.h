// Detokenizer: token ids in, text out, as they come. Equal to Tokenizer::decode of all ids in the end.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace moesaic {

class Detokenizer {
 public:
  // The tokenizer must outlive it. One per generated sequence; one thread at a time.
  Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens)
      : tokenizer_(&tokenizer), skip_special_tokens_(skip_special_tokens) {}

  // The text that is complete with this token: whole characters only. Bytes that may still become a character wait;
  // bytes that cannot come out as U+FFFD, one per maximal ill-formed subpart.
  std::string push(int32_t id);
  // What waits, at the end of the sequence: "" or one U+FFFD. Afterwards a new sequence may begin.
  std::string flush();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  DecodeState state_;
  std::string waiting_;  // the beginning of a character, at most 3 bytes between calls
};

}  // namespace moesaic
