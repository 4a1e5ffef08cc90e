// JsonTokenizer: the pipeline of a tokenizer.json, in Hugging Face's order: added tokens in the raw text, normalizer,
// added tokens in the normalized text, pre-tokenizer, BPE, post-processor; and the decoder for the way back.
#pragma once

#include <string>
#include <vector>

#include "text/bpe.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_added_tokens.h"
#include "text/tokenizer_decoder.h"
#include "text/tokenizer_normalizer.h"
#include "text/tokenizer_post_processor.h"

namespace moesaic {

class JsonTokenizer final : public Tokenizer {
 public:
  JsonTokenizer(const JsonObject& file, const std::string& where);

  std::vector<int32_t> encode_segments(std::span<const TextSegment> segments, bool add_special_tokens) const override;
  std::optional<std::string_view> token_bytes(int32_t id) const override { return bytes_.get(id); }
  void append_decoded(int32_t id, DecodeState& state, std::string& out) const override;
  std::optional<std::string_view> id_to_token(int32_t id) const override;
  std::optional<int32_t> token_to_id(std::string_view token) const override;
  int32_t vocab_size() const override { return bytes_.size(); }
  bool is_special(int32_t id) const override;

 private:
  struct Work;

  void check_added_tokens(const std::string& where) const;
  void fill_bytes();
  AddedTokenFinder make_finder(bool normalized) const;
  const AddedToken* added_token(int32_t id) const;
  bool is_literal(int32_t id) const;
  void encode_section(Work& work, Span section) const;
  void encode_pieces(Work& work, std::string_view text, bool at_origin) const;
  std::vector<Span> open_ranges_of(Work& work, Span section, std::string_view normalized) const;

  Bpe bpe_;
  std::vector<AddedToken> added_;        // sorted by id
  std::vector<uint32_t> added_by_text_;  // indices into added_, sorted by content
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  TokenDecoder decoder_;
  AddedTokenFinder raw_finder_;
  AddedTokenFinder normalized_finder_;
  TokenStrings bytes_;  // by id
  Surroundings surroundings_;
};

}  // namespace moesaic
