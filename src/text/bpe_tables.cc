#include "text/bpe_tables.h"

#include <bit>
#include <functional>

#include "base/rng.h"

namespace moesaic {
namespace {

// Half full at most, so that a probe sequence stays short and always ends.
size_t slots_for(size_t entries) {
  return std::bit_ceil(2 * entries + 2);
}

}  // namespace

void TokenStrings::reserve(size_t tokens, size_t bytes) {
  entries_.reserve(tokens);
  text_.reserve(bytes);
}

void TokenStrings::set(int32_t id, std::string_view text) {
  const size_t index = static_cast<size_t>(id);
  if (index >= entries_.size()) entries_.resize(index + 1);
  entries_[index] = {text_.size(), text.size()};
  text_ += text;
}

std::optional<std::string_view> TokenStrings::get(int32_t id) const {
  if (id < 0 || id >= size()) return std::nullopt;
  const Entry& entry = entries_[static_cast<size_t>(id)];
  if (entry.begin == kAbsent) return std::nullopt;
  return std::string_view(text_).substr(entry.begin, entry.size);
}

Vocabulary::Vocabulary(size_t tokens, size_t bytes) : slots_(slots_for(tokens), -1) {
  strings_.reserve(tokens, bytes);
}

// The slot that holds `text`, or the empty one where it belongs.
size_t Vocabulary::slot_of(std::string_view text) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = std::hash<std::string_view>{}(text)&mask;
  while (slots_[slot] >= 0 && *strings_.get(slots_[slot]) != text) slot = (slot + 1) & mask;
  return slot;
}

bool Vocabulary::add(std::string_view text, int32_t id) {
  const size_t slot = slot_of(text);
  if (slots_[slot] >= 0) return false;
  slots_[slot] = id;
  strings_.set(id, text);
  return true;
}

std::optional<int32_t> Vocabulary::find(std::string_view text) const {
  const int32_t id = slots_[slot_of(text)];
  return id >= 0 ? std::optional(id) : std::nullopt;
}

MergeTable::MergeTable(size_t merges) : slots_(slots_for(merges)) {}

uint64_t MergeTable::pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

size_t MergeTable::slot_of(uint64_t pair) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = mix64(pair) & mask;
  while (slots_[slot].pair != kEmpty && slots_[slot].pair != pair) slot = (slot + 1) & mask;
  return slot;
}

void MergeTable::set(int32_t left, int32_t right, Merge merge) {
  const uint64_t pair = pair_of(left, right);
  slots_[slot_of(pair)] = {pair, merge};
}

MergeTable::Merge MergeTable::find(int32_t left, int32_t right) const {
  return slots_[slot_of(pair_of(left, right))].merge;
}

}  // namespace moesaic
