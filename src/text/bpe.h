// Bpe: the "model" of tokenizer.json. Merges the pair of neighbours with the lowest rank, leftmost first, until none
// is left (Sennrich et al. 2016, https://arxiv.org/abs/1508.07909).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/bpe_tables.h"
#include "text/unicode.h"

namespace moesaic {

class Bpe {
 public:
  // A symbol of the word being merged, linked to its neighbours.
  struct Symbol {
    int32_t id = 0;
    uint32_t previous = 0;
    uint32_t next = 0;
    MergeTable::Merge merge = {};  // of this symbol and the next one
  };
  // Memory reused from piece to piece; one per call of encode.
  struct Scratch {
    std::vector<Symbol> symbols;
    std::vector<uint64_t> queue;  // rank << 32 | position, a min-heap
  };

  // model: the object with "vocab" and "merges". Throws Error(data_loss) naming `where`.
  Bpe(const JsonObject& model, const std::string& where);

  // Appends the ids of one piece (valid UTF-8, below 4 GiB). O(n log n) in its length.
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  void read_merges(const JsonObject& model, const std::string& where);
  void read_unknown(const JsonObject& model, const std::string& where);
  int32_t initial_id(std::string_view text, const CodePoint& code) const;
  void add_unknown_or_bytes(std::string_view character, std::vector<Symbol>& symbols) const;
  void link(std::vector<Symbol>& symbols, Scratch& scratch) const;
  void merge(Scratch& scratch) const;
  void look_up(Scratch& scratch, uint32_t position) const;

  Vocabulary vocabulary_;
  MergeTable merges_;
  std::array<int32_t, 0x800> short_characters_{};  // ids of the 1- and 2-byte characters, -1: none
  std::array<int32_t, 256> byte_ids_{};            // ids of <0x00> .. <0xFF> with byte_fallback, else -1
  std::optional<int32_t> unknown_;
  bool fuse_unknown_ = false;
  bool ignore_merges_ = false;
};

}  // namespace moesaic
