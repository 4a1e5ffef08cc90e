#include "text/pre_tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "text/unicode.h"

namespace moesaic {
namespace {

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// Rust's \w, which unlike Oniguruma's holds the two joiners.
constexpr std::string_view kWordPattern = R"([\w\u200C\u200D]+|[^\w\s\u200C\u200D]+)";
constexpr size_t kMaxSteps = 64;
// ByteLevel and Metaspace can each double the text, so a file with many of them could blow it up.
constexpr size_t kMaxGrowingSteps = 4;

struct Part {
  Span span;
  bool matched = false;
};

constexpr std::array<char16_t, 256> make_byte_alphabet() {
  std::array<char16_t, 256> table{};
  char16_t next = 0x100;
  for (unsigned b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    table[b] = printable ? static_cast<char16_t>(b) : next++;
  }
  return table;
}

constexpr std::array<char16_t, 256> kByteAlphabet = make_byte_alphabet();

constexpr std::array<int16_t, 0x144> make_byte_of() {
  std::array<int16_t, 0x144> table{};
  for (int16_t& entry : table) entry = -1;
  for (unsigned b = 0; b < 256; ++b) table[kByteAlphabet[b]] = static_cast<int16_t>(b);
  return table;
}

constexpr std::array<int16_t, 0x144> kByteOf = make_byte_of();

bool find_string(std::string_view text, std::string_view pattern, std::vector<Span>& out) {
  if (pattern.empty()) return true;
  for (size_t at = text.find(pattern); at != std::string_view::npos; at = text.find(pattern, at + pattern.size()))
    out.push_back({at, at + pattern.size()});
  return true;
}

// Fills the gaps between matches: parts cover [0, size) in order.
void cover(const std::vector<Span>& matches, size_t size, bool invert, std::vector<Part>& parts) {
  size_t end = 0;
  for (const Span& match : matches) {
    if (match.begin != end) parts.push_back({{end, match.begin}, invert});
    parts.push_back({match, !invert});
    end = match.end;
  }
  if (end != size) parts.push_back({{end, size}, invert});
}

void drop_matches(std::vector<Part>& parts) {
  std::erase_if(parts, [](const Part& part) { return part.matched; });
}

// Joins each part to the one before it where `joins(previous, current)` holds.
template <typename Joins>
void join_parts(std::vector<Part>& parts, Joins joins) {
  std::vector<Part> joined;
  bool previous = false;  // whether the part before was a match
  for (const Part& part : parts) {
    if (!joined.empty() && joins(previous, part.matched)) joined.back().span.end = part.span.end;
    else joined.push_back(part);
    previous = part.matched;
  }
  parts = std::move(joined);
}

// A match joins what follows; of two matches in a row the first stays alone.
void join_with_next(std::vector<Part>& parts) {
  std::vector<Part> joined;
  bool next = false;  // whether the part after is a match
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (part->matched && !next && !joined.empty()) joined.back().span.begin = part->span.begin;
    else joined.push_back(*part);
    next = part->matched;
  }
  std::reverse(joined.begin(), joined.end());
  parts = std::move(joined);
}

void apply(SplitBehavior behavior, std::vector<Part>& parts) {
  switch (behavior) {
    case SplitBehavior::isolated: return;
    case SplitBehavior::removed: return drop_matches(parts);
    case SplitBehavior::contiguous: return join_parts(parts, [](bool a, bool b) { return a == b; });
    case SplitBehavior::merged_with_previous: return join_parts(parts, [](bool a, bool b) { return b && !a; });
    case SplitBehavior::merged_with_next: return join_with_next(parts);
  }
}

// Single characters for text[begin, end).
void split_characters(std::string_view text, size_t begin, std::vector<Part>& parts) {
  for (size_t size = 0; begin < text.size(); begin += size) {
    size = code_point_at(text, begin).size;
    parts.push_back({{begin, begin + size}, false});
  }
}

template <typename Find>
void split(PreTokens& tokens, SplitBehavior behavior, bool invert, Find find) {
  std::vector<Piece> pieces;
  pieces.reserve(tokens.pieces.size());
  std::vector<Span> matches;
  std::vector<Part> parts;
  for (size_t i = 0; i < tokens.pieces.size(); ++i) {
    const Piece piece = tokens.pieces[i];
    const std::string_view text = tokens[i];
    matches.clear(), parts.clear();
    const bool whole = find(text, matches);
    const size_t covered = whole ? text.size() : matches.empty() ? 0 : matches.back().end;
    cover(matches, covered, invert, parts);
    apply(behavior, parts);
    if (!whole) split_characters(text, covered, parts);
    for (const Part& part : parts)
      if (part.span.begin != part.span.end)
        pieces.push_back(
            {piece.begin + part.span.begin, piece.begin + part.span.end, piece.at_origin && part.span.begin == 0});
  }
  tokens.pieces = std::move(pieces);
}

void run_step(const SplitStep& step, PreTokens& tokens, RegexScratch& scratch) {
  split(tokens, step.behavior, step.invert, [&](std::string_view text, std::vector<Span>& out) {
    if (const Regex* regex = std::get_if<Regex>(&step.pattern)) return regex->find_all(text, scratch, out);
    return find_string(text, std::get<std::string>(step.pattern), out);
  });
}

// Rebuilds the text piece by piece: write(piece, text so far, new text).
template <typename Write>
void rewrite(PreTokens& tokens, Write write) {
  std::string text;
  text.reserve(tokens.text.size() + tokens.text.size() / 4);
  for (size_t i = 0; i < tokens.pieces.size(); ++i) {
    const size_t begin = text.size();
    write(tokens.pieces[i], tokens[i], text);
    tokens.pieces[i].begin = begin;
    tokens.pieces[i].end = text.size();
  }
  tokens.text = std::move(text);
}

void append_byte_level(std::string_view bytes, std::string& out) {
  for (const char c : bytes) append_utf8(out, kByteAlphabet[static_cast<unsigned char>(c)]);
}

void run_step(const ByteLevelStep& step, PreTokens& tokens, RegexScratch& scratch) {
  if (step.add_prefix_space)
    rewrite(tokens, [](const Piece&, std::string_view in, std::string& out) {
      if (!in.starts_with(' ')) out += ' ';
      out += in;
    });
  if (step.pattern)
    split(tokens, SplitBehavior::isolated, false,
          [&](std::string_view text, std::vector<Span>& out) { return step.pattern->find_all(text, scratch, out); });
  rewrite(tokens, [](const Piece&, std::string_view in, std::string& out) { append_byte_level(in, out); });
}

void run_step(const MetaspaceStep& step, PreTokens& tokens, RegexScratch&) {
  rewrite(tokens, [&](const Piece& piece, std::string_view in, std::string& out) {
    const bool wanted =
        step.scheme == PrependScheme::always || (step.scheme == PrependScheme::first && piece.at_origin);
    if (wanted && !in.starts_with(' ') && !in.starts_with(step.replacement)) out += step.replacement;
    for (const char c : in) c == ' ' ? out += step.replacement : out += c;
  });
  if (!step.split) return;
  split(tokens, SplitBehavior::merged_with_next, false,
        [&](std::string_view text, std::vector<Span>& out) { return find_string(text, step.replacement, out); });
}

SplitBehavior parse_behavior(const JsonObject& object, const std::string& where) {
  const std::string name = json_string(object, "behavior", where);
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  fail_data(where, "\"behavior\" is {}; expected Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous",
            quote_beginning(name));
}

SplitStep parse_split(const JsonObject& object, const std::string& where) {
  const Json* pattern = json_find(object, "pattern");
  if (pattern == nullptr) fail_data(where, "Split has no \"pattern\"");
  const JsonObject& kind = json_object(*pattern, where + ": pattern");
  const bool regex = json_find(kind, "Regex") != nullptr;
  const std::string text = json_string(kind, regex ? "Regex" : "String", where);
  const bool invert = json_bool(object, "invert", where, false);
  const SplitBehavior behavior = parse_behavior(object, where);
  if (regex) return {Regex(text, where), behavior, invert};
  return {text, behavior, invert};
}

SplitStep regex_split(std::string_view pattern, SplitBehavior behavior, bool invert, const std::string& where) {
  return {Regex(pattern, where), behavior, invert};
}

}  // namespace

PreTokenizer::PreTokenizer(const Json* value, const std::string& where) {
  if (value != nullptr) add(*value, where);
}

void PreTokenizer::add(const Json& value, const std::string& where) {
  const JsonObject& object = json_object(value, where);
  const std::string type = json_string(object, "type", where);
  if (steps_.size() >= kMaxSteps) fail_data(where, "has more than {} steps", kMaxSteps);
  if (type == "Sequence") {
    const Json* list = json_find(object, "pretokenizers");
    if (list == nullptr || !list->is_array()) fail_data(where, "Sequence has no list \"pretokenizers\"");
    for (const Json& item : list->get_array()) add(item, where);
  } else if (type == "Split") {
    steps_.emplace_back(parse_split(object, where));
  } else if (type == "ByteLevel") {
    ByteLevelStep step{json_bool(object, "add_prefix_space", where, true), std::nullopt};
    if (json_bool(object, "use_regex", where, true)) step.pattern.emplace(kGpt2Pattern, where);
    steps_.emplace_back(std::move(step));
    ++growing_steps_;
  } else if (type == "Metaspace") {
    steps_.emplace_back(parse_metaspace(object, where));
    ++growing_steps_;
  } else if (type == "Digits") {
    const bool individual = json_bool(object, "individual_digits", where, false);
    const SplitBehavior behavior = individual ? SplitBehavior::isolated : SplitBehavior::contiguous;
    steps_.emplace_back(regex_split("\\p{N}", behavior, false, where));
  } else if (type == "Whitespace") {
    steps_.emplace_back(regex_split(kWordPattern, SplitBehavior::removed, true, where));
  } else if (type == "WhitespaceSplit") {
    steps_.emplace_back(regex_split("\\s", SplitBehavior::removed, false, where));
  } else if (type == "Punctuation") {
    steps_.emplace_back(regex_split("[\\p{P}$+<=>\\^`|~]", parse_behavior(object, where), false, where));
  } else {
    fail_data(where,
              "pre-tokenizer type {} is not supported; expected Sequence, Split, ByteLevel, Metaspace, Digits, "
              "Whitespace, WhitespaceSplit or Punctuation",
              quote_beginning(type));
  }
  if (growing_steps_ > kMaxGrowingSteps)
    fail_data(where, "has more than {} ByteLevel and Metaspace steps", kMaxGrowingSteps);
}

void PreTokenizer::run(PreTokens& tokens, RegexScratch& scratch) const {
  for (const auto& step : steps_) std::visit([&](const auto& s) { run_step(s, tokens, scratch); }, step);
}

MetaspaceStep parse_metaspace(const JsonObject& object, const std::string& where) {
  MetaspaceStep step;
  step.replacement = json_string(object, "replacement", where);
  if (step.replacement.empty() || code_point_at(step.replacement, 0).size != step.replacement.size())
    fail_data(where, "Metaspace \"replacement\" is {}; expected one character", quote_beginning(step.replacement));
  // Files from before prepend_scheme say add_prefix_space.
  const bool prefix = json_bool(object, "add_prefix_space", where, true);
  const std::string scheme = json_string(object, "prepend_scheme", where, prefix ? "always" : "never");
  if (scheme == "first") step.scheme = PrependScheme::first;
  else if (scheme == "never") step.scheme = PrependScheme::never;
  else if (scheme != "always")
    fail_data(where, "\"prepend_scheme\" is {}; expected always, first or never", quote_beginning(scheme));
  step.split = json_bool(object, "split", where, true);
  return step;
}

const std::array<char16_t, 256>& byte_alphabet() {
  return kByteAlphabet;
}
int byte_of(char32_t character) {
  return character < kByteOf.size() ? kByteOf[character] : -1;
}

}  // namespace moesaic
