// The two tables of a BPE model, flat and open-addressed: a 200,000-token vocabulary takes about 20 MB.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

// Ids above this are refused, so that a broken file cannot ask for a huge table.
inline constexpr int64_t kMaxTokenId = (1 << 22) - 1;

// Strings by id. Ids may have holes.
class TokenStrings {
 public:
  // Replaces what `id` had before. 0 <= id <= kMaxTokenId.
  void set(int32_t id, std::string_view text);
  std::optional<std::string_view> get(int32_t id) const;
  int32_t size() const { return static_cast<int32_t>(entries_.size()); }  // largest id + 1
  void reserve(size_t tokens, size_t bytes);

 private:
  struct Entry {
    size_t begin = kAbsent;
    size_t size = 0;
  };
  static constexpr size_t kAbsent = static_cast<size_t>(-1);
  std::string text_;
  std::vector<Entry> entries_;
};

// Token text <-> id.
class Vocabulary {
 public:
  Vocabulary() : Vocabulary(0, 0) {}
  Vocabulary(size_t tokens, size_t bytes);

  // False, and nothing is added, when the text is there already. At most `tokens` calls; ids are not checked.
  bool add(std::string_view text, int32_t id);
  std::optional<int32_t> find(std::string_view text) const;
  const TokenStrings& strings() const { return strings_; }

 private:
  size_t slot_of(std::string_view text) const;

  TokenStrings strings_;
  std::vector<int32_t> slots_;  // id or -1; a power of two in size
};

// (left id, right id) -> rank and merged id.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank = kNone;
    int32_t id = -1;
  };
  static constexpr uint32_t kNone = static_cast<uint32_t>(-1);

  MergeTable() : MergeTable(0) {}
  explicit MergeTable(size_t merges);

  // A pair given twice keeps the last rank. At most `merges` calls.
  void set(int32_t left, int32_t right, Merge merge);
  // rank == kNone when the pair does not merge.
  Merge find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t pair = kEmpty;
    Merge merge;
  };
  static constexpr uint64_t kEmpty = static_cast<uint64_t>(-1);
  static uint64_t pair_of(int32_t left, int32_t right);
  size_t slot_of(uint64_t pair) const;

  std::vector<Slot> slots_;
};

}  // namespace moesaic
