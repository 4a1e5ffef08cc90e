// Batch: the host's description of one step, in arrays that are allocated once.
#pragma once

#include <span>
#include <vector>

#include "compile/plan.h"

namespace moesaic {

class Batch {
 public:
  // Room for the larger of the two plans' limits and for sequences of up to `max_blocks` cache blocks.
  Batch(const Limits& prefill, const Limits& decode, int64_t max_blocks);

  void clear();
  // Adds the next tokens of a sequence: `tokens` at positions start, start+1, ...; `blocks` covers all of them and all
  // before; `rows` of the last tokens get logits (0: none).
  // `image_rows`: for each token the embedding f32[hidden] that replaces its own, or null; empty for text.
  void add(std::span<const int32_t> tokens, int64_t start, std::span<const int32_t> blocks, int32_t slot, int64_t rows,
           std::span<const float* const> image_rows = {});
  // The tokens of the sequence added last follow the hidden states from row `first` on, one each.
  void set_hidden_rows(int64_t first);

  bool empty() const { return tokens_ == 0; }
  int64_t tokens() const { return tokens_; }
  int64_t rows() const { return rows_; }
  int64_t sequences() const { return sequences_; }
  // First row of logits of the i-th sequence added.
  int64_t first_row(int64_t i) const { return first_rows_[static_cast<size_t>(i)]; }
  BatchView view() const;

 private:
  int64_t tokens_ = 0, rows_ = 0, sequences_ = 0, max_blocks_;
  std::vector<int32_t> token_ids_, positions_, sequence_of_, sequence_offsets_, block_tables_, state_slots_,
      output_rows_, hidden_rows_;
  std::vector<int64_t> first_rows_;
  std::vector<const float*> image_rows_;
  bool has_images_ = false;
};

}  // namespace moesaic
