// Tokenizer: text <-> token ids. Loaded from Hugging Face's tokenizer.json and driven by what that file says, not by
// the model family.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer_decoder.h"

namespace moesaic {

struct EncodeOptions {
  bool add_special_tokens = false;  // run the post-processor: BOS and the like
  bool parse_special = true;        // find added tokens in the text; false: all of it is ordinary text
};

// A part of a rendered prompt. Literal text (message content, names, function results) never becomes an added token,
// whatever it says; the rest (the template's own text) does.
struct TextSegment {
  std::string_view text;
  bool literal = false;
};

// Immutable after loading; any number of threads may use one.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // The ids of the segments' concatenation. Ill-formed UTF-8 becomes U+FFFD first. Segment borders cut nothing: only
  // added tokens do, and those must lie entirely in text that is not literal (the white space that one with lstrip or
  // rstrip swallows may be literal). So the result is encode() of the concatenation unless an added token's text
  // overlaps a literal segment. Never fails.
  virtual std::vector<int32_t> encode_segments(std::span<const TextSegment> segments,
                                               bool add_special_tokens = false) const = 0;
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  // Ill-formed UTF-8 comes out as one U+FFFD per maximal ill-formed subpart; ids that are no tokens are left out.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  // The raw bytes a token stands for (not at the start of a text, where some tokenizers drop a space); nullopt when
  // there is no such token. Valid as long as the tokenizer.
  virtual std::optional<std::string_view> token_bytes(int32_t id) const = 0;
  // Appends a token's bytes in a text whose earlier tokens went through `state`; nothing when there is no such token.
  virtual void append_decoded(int32_t id, DecodeState& state, std::string& out) const = 0;

  // The token's name in the file, for example "Ġthe" or "<|im_end|>".
  virtual std::optional<std::string_view> id_to_token(int32_t id) const = 0;
  virtual std::optional<int32_t> token_to_id(std::string_view token) const = 0;
  // Largest id + 1; a model's vocab_size is often padded beyond it.
  virtual int32_t vocab_size() const = 0;
  // An added token that is marked special.
  virtual bool is_special(int32_t id) const = 0;
};

// Throws Error(not_found) for a missing file and Error(data_loss) for one that is broken or uses what we do not have.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& tokenizer_json);
std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view json, const std::string& where);

}  // namespace moesaic
