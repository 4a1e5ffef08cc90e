// TokenDecoder: the "decoder" of tokenizer.json, reduced to what streaming allows: bytes for each token, with
// something left out at the very beginning.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"

namespace moesaic {

// Where a decoding stands; a fresh one starts a text.
struct DecodeState {
  bool at_start = true;   // no token yet
  uint32_t stripped = 0;  // characters left out at the beginning so far
  bool strip_done = false;
};

class TokenDecoder {
 public:
  // value: null for none (tokens are then joined by spaces, as Hugging Face does). Throws Error(data_loss) naming an
  // unknown type, or an order of steps that would need the whole text.
  TokenDecoder(const Json* value, const std::string& where);

  // The bytes of a token. `literal`: its text is meant as written (an added token), not in the byte alphabet.
  std::string bytes(std::string_view token, bool literal, bool at_start) const;
  // Whether bytes() depends on at_start.
  bool start_differs() const { return start_differs_; }
  // Appends bytes() to a text that begins at `state`.
  void append(std::string_view bytes, DecodeState& state, std::string& out) const;

 private:
  struct ByteLevel {};
  struct ByteFallback {};
  struct Metaspace {
    std::string replacement;
    bool prefix = true;
  };
  struct Replace {
    std::string pattern, content;
  };
  struct Strip {
    char character = ' ';
    uint32_t start = 0, stop = 0;
  };

  static std::string apply(ByteLevel, std::string token, bool literal, bool at_start);
  static std::string apply(ByteFallback, std::string token, bool literal, bool at_start);
  static std::string apply(const Metaspace& step, std::string token, bool literal, bool at_start);
  static std::string apply(const Replace& step, std::string token, bool literal, bool at_start);
  static std::string apply(const Strip& step, std::string token, bool literal, bool at_start);
  void add(const Json& value, const std::string& where);
  void add_step(const JsonObject& object, const std::string& type, const std::string& where);

  std::vector<std::variant<ByteLevel, ByteFallback, Metaspace, Replace, Strip>> steps_;  // on each token
  std::string separator_;                                                                // between tokens
  Strip whole_;         // on the whole text; only its start
  bool fused_ = false;  // while parsing: later steps see one text
  bool start_differs_ = false;
};

}  // namespace moesaic
