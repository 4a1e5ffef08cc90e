#include "text/tokenizer_json.h"

#include <algorithm>

#include "base/error.h"
#include "text/unicode.h"

namespace moesaic {
namespace {

const JsonObject& model_of(const JsonObject& file, const std::string& where) {
  const Json* model = json_find(file, "model");
  if (model == nullptr) fail_data(where, "has no \"model\"; expected a tokenizer.json");
  return json_object(*model, where + ": model");
}

// The parts of `ranges` within [begin, end), relative to begin.
std::vector<Span> clip(const std::vector<Span>& ranges, Span to) {
  std::vector<Span> out;
  for (auto range =
           std::partition_point(ranges.begin(), ranges.end(), [&](const Span& r) { return r.end <= to.begin; });
       range != ranges.end() && range->begin < to.end; ++range)
    out.push_back({std::max(range->begin, to.begin) - to.begin, std::min(range->end, to.end) - to.begin});
  return out;
}

}  // namespace

// One call of encode.
struct JsonTokenizer::Work {
  std::string text;        // all segments, valid UTF-8
  std::vector<Span> open;  // where added tokens may match: the text that is not literal
  RegexScratch regex;
  Bpe::Scratch bpe;
  PreTokens tokens;
  std::vector<int32_t> ids;
};

JsonTokenizer::JsonTokenizer(const JsonObject& file, const std::string& where)
    : bpe_(model_of(file, where), where + ": model"),
      added_(parse_added_tokens(json_find(file, "added_tokens"), where + ": added_tokens")),
      normalizer_(json_find(file, "normalizer"), where + ": normalizer"),
      pre_tokenizer_(json_find(file, "pre_tokenizer"), where + ": pre_tokenizer"),
      decoder_(json_find(file, "decoder"), where + ": decoder"),
      raw_finder_({}),
      normalized_finder_({}) {
  std::sort(added_.begin(), added_.end(), [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  for (uint32_t i = 0; i < added_.size(); ++i) added_by_text_.push_back(i);
  std::sort(added_by_text_.begin(), added_by_text_.end(),
            [&](uint32_t a, uint32_t b) { return added_[a].content < added_[b].content; });
  check_added_tokens(where + ": added_tokens");
  raw_finder_ = make_finder(false);
  normalized_finder_ = make_finder(true);
  fill_bytes();
  surroundings_ = parse_post_processor(json_find(file, "post_processor"), bytes_, where + ": post_processor");
}

// One id, one text: an added token may repeat an entry of the vocabulary, but not contradict it.
void JsonTokenizer::check_added_tokens(const std::string& where) const {
  for (size_t i = 0; i < added_.size(); ++i) {
    const AddedToken& token = added_[i];
    if (i > 0 && added_[i - 1].id == token.id)
      fail_data(where, "{} and {} have the same id {}", quote_beginning(added_[i - 1].content),
                quote_beginning(token.content), token.id);
    if (const auto id = bpe_.vocabulary().find(token.content); id && *id != token.id)
      fail_data(where, "{} has id {}, but {} in \"vocab\"", quote_beginning(token.content), token.id, *id);
    const auto name = bpe_.vocabulary().strings().get(token.id);
    if (name && *name != token.content)
      fail_data(where, "{} has id {}, which \"vocab\" gives to {}", quote_beginning(token.content), token.id,
                quote_beginning(*name));
  }
  for (size_t i = 1; i < added_by_text_.size(); ++i)
    if (added_[added_by_text_[i - 1]].content == added_[added_by_text_[i]].content)
      fail_data(where, "{} is listed twice", quote_beginning(added_[added_by_text_[i]].content));
}

AddedTokenFinder JsonTokenizer::make_finder(bool normalized) const {
  std::vector<AddedTokenFinder::Form> forms;
  RegexScratch scratch;
  for (const AddedToken& token : added_)
    if (token.normalized == normalized)
      forms.push_back({normalized ? normalizer_.run(token.content, scratch) : token.content, &token});
  return AddedTokenFinder(std::move(forms));
}

void JsonTokenizer::fill_bytes() {
  const TokenStrings& names = bpe_.vocabulary().strings();
  const int32_t size = std::max(names.size(), added_.empty() ? 0 : added_.back().id + 1);
  bytes_.reserve(static_cast<size_t>(size), 0);
  for (int32_t id = 0; id < size; ++id)
    if (const auto name = id_to_token(id)) bytes_.set(id, decoder_.bytes(*name, is_literal(id), false));
}

const AddedToken* JsonTokenizer::added_token(int32_t id) const {
  const auto token =
      std::partition_point(added_.begin(), added_.end(), [id](const AddedToken& t) { return t.id < id; });
  return token != added_.end() && token->id == id ? &*token : nullptr;
}

// An added token's text is meant as written, unless the vocabulary has it too. (Hugging Face reads it in the byte
// alphabet when it can, so that an added token "\u00FC" decodes to an ill-formed byte there.)
bool JsonTokenizer::is_literal(int32_t id) const {
  return added_token(id) != nullptr && !bpe_.vocabulary().strings().get(id);
}

bool JsonTokenizer::is_special(int32_t id) const {
  const AddedToken* token = added_token(id);
  return token != nullptr && token->special;
}

std::optional<std::string_view> JsonTokenizer::id_to_token(int32_t id) const {
  const AddedToken* token = added_token(id);
  return token != nullptr ? std::optional<std::string_view>(token->content) : bpe_.vocabulary().strings().get(id);
}

std::optional<int32_t> JsonTokenizer::token_to_id(std::string_view text) const {
  const auto at = std::partition_point(added_by_text_.begin(), added_by_text_.end(),
                                       [&](uint32_t i) { return added_[i].content < text; });
  if (at != added_by_text_.end() && added_[*at].content == text) return added_[*at].id;
  return bpe_.vocabulary().find(text);
}

void JsonTokenizer::append_decoded(int32_t id, DecodeState& state, std::string& out) const {
  const auto bytes = bytes_.get(id);
  if (!bytes) return;
  if (state.at_start && decoder_.start_differs())
    decoder_.append(decoder_.bytes(*id_to_token(id), is_literal(id), true), state, out);
  else decoder_.append(*bytes, state, out);
}

std::vector<int32_t> JsonTokenizer::encode_segments(std::span<const TextSegment> segments,
                                                    bool add_special_tokens) const {
  Work work;
  for (const TextSegment& segment : segments) {
    const size_t begin = work.text.size();
    append_valid_utf8(work.text, segment.text, true);
    if (segment.literal || work.text.size() == begin) continue;
    if (!work.open.empty() && work.open.back().end == begin) work.open.back().end = work.text.size();
    else work.open.push_back({begin, work.text.size()});
  }
  if (add_special_tokens) work.ids = surroundings_.before;
  size_t end = 0;
  for (const AddedTokenFinder::Match& match : raw_finder_.find(work.text, work.open)) {
    encode_section(work, {end, match.begin});
    work.ids.push_back(match.id);
    end = match.end;
  }
  encode_section(work, {end, work.text.size()});
  if (add_special_tokens) work.ids.insert(work.ids.end(), surroundings_.after.begin(), surroundings_.after.end());
  return std::move(work.ids);
}

// Encodes the raw text of `section`, which holds no raw added token.
void JsonTokenizer::encode_section(Work& work, Span section) const {
  if (section.begin == section.end) return;
  const std::string text =
      normalizer_.run(std::string_view(work.text).substr(section.begin, section.end - section.begin), work.regex);
  size_t end = 0;
  if (!normalized_finder_.empty()) {
    for (const AddedTokenFinder::Match& match : normalized_finder_.find(text, open_ranges_of(work, section, text))) {
      encode_pieces(work, std::string_view(text).substr(end, match.begin - end), section.begin == 0 && end == 0);
      work.ids.push_back(match.id);
      end = match.end;
    }
  }
  encode_pieces(work, std::string_view(text).substr(end), section.begin == 0 && end == 0);
}

// Where in the normalized text of `section` added tokens may match. Where literal and other text meet, the borders
// carry over only if normalizing the parts one by one gives the same text; otherwise nothing may match, since
// taking a control token from literal text is worse than missing one.
std::vector<Span> JsonTokenizer::open_ranges_of(Work& work, Span section, std::string_view normalized) const {
  const std::vector<Span> raw = clip(work.open, section);
  const size_t size = section.end - section.begin;
  if (raw.empty()) return {};
  if (raw.front().begin == 0 && raw.front().end == size) return {{0, normalized.size()}};
  if (normalizer_.empty()) return raw;
  const std::string_view text = std::string_view(work.text).substr(section.begin, size);
  std::vector<Span> open;
  std::string joined;
  size_t end = 0;
  for (const Span& range : raw) {
    joined += normalizer_.run(text.substr(end, range.begin - end), work.regex);
    const size_t begin = joined.size();
    joined += normalizer_.run(text.substr(range.begin, range.end - range.begin), work.regex);
    open.push_back({begin, joined.size()});
    end = range.end;
  }
  joined += normalizer_.run(text.substr(end), work.regex);
  return joined == normalized ? open : std::vector<Span>{};
}

void JsonTokenizer::encode_pieces(Work& work, std::string_view text, bool at_origin) const {
  if (text.empty()) return;
  work.tokens.text.assign(text);
  work.tokens.pieces.assign(1, {0, text.size(), at_origin});
  pre_tokenizer_.run(work.tokens, work.regex);
  for (size_t i = 0; i < work.tokens.pieces.size(); ++i) bpe_.encode(work.tokens[i], work.bpe, work.ids);
}

}  // namespace moesaic
