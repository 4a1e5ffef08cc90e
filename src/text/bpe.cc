#include "text/bpe.h"

#include <algorithm>
#include <functional>
#include <string>

#include "base/error.h"
#include "text/unicode.h"

namespace moesaic {
namespace {

constexpr uint32_t kNoSymbol = static_cast<uint32_t>(-1);

int32_t parse_id(const Json& value, std::string_view token, const std::string& where) {
  const int64_t id = value.is_int64() ? value.get_int64() : -1;
  if (id < 0 || id > kMaxTokenId)
    fail_data(where, "the id of {} is {}; expected an integer from 0 to {}", quote_beginning(token),
              write_json(value).substr(0, 40), kMaxTokenId);
  return static_cast<int32_t>(id);
}

Vocabulary parse_vocabulary(const JsonObject& model, const std::string& where) {
  const Json* vocab = json_find(model, "vocab");
  if (vocab == nullptr || !vocab->is_object()) fail_data(where, "\"vocab\" is missing or not an object of token: id");
  const JsonObject& tokens = vocab->get_object();
  size_t bytes = 0;
  for (const auto& token : tokens) bytes += token.key().size();
  Vocabulary vocabulary(tokens.size(), bytes);
  for (const auto& token : tokens) {
    const int32_t id = parse_id(token.value(), token.key(), where);
    if (const auto other = vocabulary.strings().get(id))
      fail_data(where, "{} and {} have the same id {}; expected one token per id", quote_beginning(*other),
                quote_beginning(token.key()), id);
    vocabulary.add(token.key(), id);
  }
  return vocabulary;
}

struct MergeText {
  std::string_view left, right;
};

// "a b", or ["a", "b"] where the parts may contain spaces.
MergeText parse_merge(const Json& value, size_t rank, const std::string& where) {
  if (value.is_string()) {
    const std::string_view text = value.get_string();
    const size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos)
      return {text.substr(0, space), text.substr(space + 1)};
  } else if (value.is_array() && value.get_array().size() == 2) {
    const JsonArray& pair = value.get_array();
    if (pair[0].is_string() && pair[1].is_string()) return {pair[0].get_string(), pair[1].get_string()};
  }
  fail_data(where, "merge {} is {}; expected \"left right\" or [\"left\", \"right\"]", rank,
            write_json(value).substr(0, 80));
}

void refuse_nonempty(const JsonObject& model, std::string_view key, const std::string& where) {
  const std::string text = json_string(model, key, where, "");
  if (!text.empty()) fail_data(where, "\"{}\" is {}; only null or \"\" is supported", key, quote_beginning(text));
}

}  // namespace

Bpe::Bpe(const JsonObject& model, const std::string& where) : vocabulary_(parse_vocabulary(model, where)) {
  if (const std::string type = json_string(model, "type", where, "BPE"); type != "BPE")
    fail_data(where, "model type {} is not supported; expected BPE", quote_beginning(type));
  refuse_nonempty(model, "continuing_subword_prefix", where);
  refuse_nonempty(model, "end_of_word_suffix", where);
  if (json_number(model, "dropout", where, 0) != 0)
    fail_data(where, "\"dropout\" is {}; expected null, since encoding has to be repeatable",
              json_number(model, "dropout", where));
  ignore_merges_ = json_bool(model, "ignore_merges", where, false);
  read_unknown(model, where);
  read_merges(model, where);
  for (size_t c = 0; c < short_characters_.size(); ++c) {
    std::string text;
    append_utf8(text, static_cast<char32_t>(c));
    short_characters_[c] = vocabulary_.find(text).value_or(-1);
  }
}

void Bpe::read_unknown(const JsonObject& model, const std::string& where) {
  fuse_unknown_ = json_bool(model, "fuse_unk", where, false);
  if (json_find(model, "unk_token") != nullptr) {
    const std::string text = json_string(model, "unk_token", where);
    unknown_ = vocabulary_.find(text);
    if (!unknown_) fail_data(where, "\"unk_token\" is {}, which \"vocab\" does not have", quote_beginning(text));
  }
  byte_ids_.fill(-1);
  if (!json_bool(model, "byte_fallback", where, false)) return;
  for (size_t b = 0; b < byte_ids_.size(); ++b)
    byte_ids_[b] = vocabulary_.find(fmt::format("<0x{:02X}>", b)).value_or(-1);
}

void Bpe::read_merges(const JsonObject& model, const std::string& where) {
  const Json* list = json_find(model, "merges");
  if (list == nullptr || !list->is_array()) fail_data(where, "\"merges\" is missing or not a list");
  const JsonArray& merges = list->get_array();
  merges_ = MergeTable(merges.size());
  std::string joined;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const MergeText merge = parse_merge(merges[rank], rank, where);
    const std::optional<int32_t> left = vocabulary_.find(merge.left), right = vocabulary_.find(merge.right);
    joined.assign(merge.left).append(merge.right);
    const std::optional<int32_t> whole = vocabulary_.find(joined);
    if (!left || !right || !whole)
      fail_data(where, "merge {} is {}, but \"vocab\" lacks {}", rank, write_json(merges[rank]).substr(0, 80),
                quote_beginning(!left    ? merge.left
                                : !right ? merge.right
                                         : joined));
    merges_.set(*left, *right, {static_cast<uint32_t>(rank), *whole});
  }
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const {
  if (ignore_merges_)
    if (const std::optional<int32_t> id = vocabulary_.find(piece)) return out.push_back(*id);
  std::vector<Symbol>& symbols = scratch.symbols;
  symbols.clear();
  bool unknown = false;  // the last symbol is the unknown token
  for (size_t i = 0; i < piece.size();) {
    const CodePoint code = code_point_at(piece, i);
    const int32_t id = initial_id(piece.substr(i, code.size), code);
    const bool was_unknown = std::exchange(unknown, false);
    const size_t before = symbols.size();
    if (id >= 0) symbols.push_back({.id = id});
    else add_unknown_or_bytes(piece.substr(i, code.size), symbols);
    if (id < 0 && symbols.size() == before + 1 && symbols.back().id == unknown_) unknown = true;
    if (unknown && was_unknown && fuse_unknown_) symbols.pop_back();
    i += code.size;
  }
  if (symbols.empty()) return;
  merge(scratch);
  for (uint32_t i = 0; i != kNoSymbol; i = symbols[i].next) out.push_back(symbols[i].id);
}

int32_t Bpe::initial_id(std::string_view text, const CodePoint& code) const {
  return code.value < short_characters_.size() ? short_characters_[code.value] : vocabulary_.find(text).value_or(-1);
}

// A character outside the vocabulary: its byte tokens if all of them exist, else the unknown token, else nothing.
void Bpe::add_unknown_or_bytes(std::string_view character, std::vector<Symbol>& symbols) const {
  const auto id_of = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
  if (std::all_of(character.begin(), character.end(), [&](char c) { return id_of(c) >= 0; })) {
    for (const char c : character) symbols.push_back({.id = id_of(c)});
  } else if (unknown_) {
    symbols.push_back({.id = *unknown_});
  }
}

// Notes what symbol `position` and its successor merge to, and queues it.
void Bpe::look_up(Scratch& scratch, uint32_t position) const {
  Symbol& symbol = scratch.symbols[position];
  symbol.merge =
      symbol.next == kNoSymbol ? MergeTable::Merge{} : merges_.find(symbol.id, scratch.symbols[symbol.next].id);
  if (symbol.merge.rank == MergeTable::kNone) return;
  scratch.queue.push_back(static_cast<uint64_t>(symbol.merge.rank) << 32 | position);
  std::push_heap(scratch.queue.begin(), scratch.queue.end(), std::greater<>());
}

void Bpe::link(std::vector<Symbol>& symbols, Scratch& scratch) const {
  const uint32_t count = static_cast<uint32_t>(symbols.size());
  scratch.queue.clear();
  for (uint32_t i = 0; i < count; ++i) {
    symbols[i].previous = i == 0 ? kNoSymbol : i - 1;
    symbols[i].next = i + 1 == count ? kNoSymbol : i + 1;
  }
  for (uint32_t i = 0; i < count; ++i) look_up(scratch, i);
}

void Bpe::merge(Scratch& scratch) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  link(symbols, scratch);
  while (!scratch.queue.empty()) {
    const uint32_t rank = static_cast<uint32_t>(scratch.queue.front() >> 32);
    const uint32_t position = static_cast<uint32_t>(scratch.queue.front());
    std::pop_heap(scratch.queue.begin(), scratch.queue.end(), std::greater<>());
    scratch.queue.pop_back();
    Symbol& symbol = symbols[position];
    if (symbol.merge.rank != rank) continue;  // the pair changed since it was queued
    Symbol& gone = symbols[symbol.next];
    symbol.id = symbol.merge.id;
    symbol.next = gone.next;
    gone.merge = {};
    if (symbol.next != kNoSymbol) symbols[symbol.next].previous = position;
    look_up(scratch, position);
    if (symbol.previous != kNoSymbol) look_up(scratch, symbol.previous);
  }
}

}  // namespace moesaic
