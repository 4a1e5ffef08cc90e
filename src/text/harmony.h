// HarmonyParser: separates the channels of gpt-oss's answers (openai/harmony docs/format.md), token by token.
//
// An answer is one or more messages: header, <|message|>, body, end marker; the header may name a channel after
// <|channel|>. The prompt ends with "<|start|>assistant", so the first header begins at once.
#pragma once

#include <string>

#include "text/detokenizer.h"

namespace moesaic {

class HarmonyParser {
 public:
  // What one token added. Bodies of the channel `analysis` are reasoning, all others content.
  struct Delta {
    std::string content, reasoning;
  };

  // Whether the tokenizer has harmony's markers.
  static bool speaks(const Tokenizer& tokenizer);
  // The tokenizer must outlive it and speak harmony.
  explicit HarmonyParser(const Tokenizer& tokenizer);

  // Works on ids: text that merely looks like a marker is content. Never fails: text without a header is content.
  // Special tokens that are no markers, such as <|endoftext|>, are left out.
  Delta push(int32_t id);
  Delta flush();

 private:
  enum class Part { start, header, body };

  Delta route(std::string text);

  int32_t start_, channel_, message_, end_, return_, call_, constrain_;
  Detokenizer text_;
  Part part_ = Part::start;
  bool naming_ = false;  // the header's text names the channel
  std::string channel_name_;
};

}  // namespace moesaic
