// Log-probabilities of tokens as the chat and the older completions API show them. Values that JSON does not have
// (minus infinity) become -9999.
#pragma once

#include <span>

#include "base/json.h"
#include "moesaic/engine.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace moesaic {

struct LogprobFormat {
  const Tokenizer* tokenizer = nullptr;  // null: tokens are named by their ids
  bool tokens_as_ids = false;            // "token_id:42"
  bool skip_special = true;              // special tokens, which are no text, are left out (chat)
};

// [{"token", "logprob", "bytes", "top_logprobs": [{"token", "logprob", "bytes"}]}]. `bytes` is exact also where a token
// is a part of a character, of which `token` can only show U+FFFD. Special tokens and markup are left out where special
// tokens are skipped.
JsonArray chat_logprobs(std::span<const GeneratedToken> tokens, const LogprobFormat& format);

// {"tokens", "token_logprobs", "top_logprobs", "text_offset"} of the older API, in pieces: offsets count characters
// from the beginning of the choice's text. Of a token that is a part of a character `tokens` says "bytes:\xe2\x80".
class TextLogprobs {
 public:
  explicit TextLogprobs(const LogprobFormat& format);

  // An echoed prompt's: null for its first token.
  void add_prompt(std::span<const int32_t> ids, std::span<const GeneratedToken> rest);
  void add(const GeneratedToken& token);
  // What was added since the last call.
  JsonObject take();

 private:
  void add_name(int32_t id);

  LogprobFormat format_;
  std::optional<Detokenizer> text_;
  int64_t offset_ = 0;
  JsonArray tokens_, logprobs_, top_, offsets_;
};

// vLLM's prompt_logprobs: null for the first token, then {"id": {"logprob", "rank", "decoded_token"}} of the token and
// its alternatives; `rank` only where it is known.
JsonArray prompt_logprobs_json(std::span<const GeneratedToken> tokens, const LogprobFormat& format);

}  // namespace moesaic
