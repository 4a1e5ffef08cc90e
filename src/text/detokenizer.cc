#include "text/detokenizer.h"

#include "text/unicode.h"

namespace moesaic {

std::string Detokenizer::push(int32_t id) {
  std::string text;
  if (skip_special_tokens_ && tokenizer_->is_special(id)) return text;
  tokenizer_->append_decoded(id, state_, waiting_);
  waiting_.erase(0, append_valid_utf8(text, waiting_, false));
  return text;
}

std::string Detokenizer::flush() {
  std::string text;
  append_valid_utf8(text, waiting_, true);
  waiting_.clear();
  state_ = {};
  return text;
}

}  // namespace moesaic
