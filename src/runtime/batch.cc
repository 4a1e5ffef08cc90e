#include "runtime/batch.h"

#include <algorithm>

namespace moesaic {

Batch::Batch(const Limits& prefill, const Limits& decode, int64_t max_blocks) : max_blocks_(max_blocks) {
  const auto tokens = static_cast<size_t>(std::max(prefill.tokens, decode.tokens));
  const auto sequences = static_cast<size_t>(std::max(prefill.sequences, decode.sequences));
  token_ids_.resize(tokens);
  positions_.resize(tokens);
  sequence_of_.resize(tokens);
  sequence_offsets_.resize(sequences + 1);
  block_tables_.resize(sequences * static_cast<size_t>(max_blocks));
  state_slots_.resize(sequences);
  output_rows_.resize(static_cast<size_t>(std::max(prefill.rows, decode.rows)));
  first_rows_.resize(sequences);
  image_rows_.resize(tokens);
  hidden_rows_.resize(tokens);
}

void Batch::clear() {
  tokens_ = rows_ = sequences_ = 0;
  has_images_ = false;
}

void Batch::add(std::span<const int32_t> tokens, int64_t start, std::span<const int32_t> blocks, int32_t slot,
                int64_t rows, std::span<const float* const> image_rows) {
  const int64_t count = static_cast<int64_t>(tokens.size()), s = sequences_++;
  CHECK(count > 0 && tokens_ + count <= static_cast<int64_t>(token_ids_.size()), "{} tokens", tokens_ + count);
  CHECK(s < static_cast<int64_t>(state_slots_.size()) && rows <= count &&
        rows_ + rows <= static_cast<int64_t>(output_rows_.size()));
  CHECK(static_cast<int64_t>(blocks.size()) <= max_blocks_ &&
            static_cast<int64_t>(blocks.size()) * kBlockTokens >= start + count,
        "{} blocks for {} tokens", blocks.size(), start + count);
  CHECK(image_rows.empty() || image_rows.size() == tokens.size());
  std::fill_n(image_rows_.begin() + tokens_, count, nullptr);
  std::copy(image_rows.begin(), image_rows.end(), image_rows_.begin() + tokens_);
  has_images_ = has_images_ || !image_rows.empty();
  for (int64_t i = 0; i < count; ++i) {
    const auto t = static_cast<size_t>(tokens_ + i);
    token_ids_[t] = tokens[static_cast<size_t>(i)];
    positions_[t] = static_cast<int32_t>(start + i);
    sequence_of_[t] = static_cast<int32_t>(s);
  }
  std::copy(blocks.begin(), blocks.end(), block_tables_.begin() + s * max_blocks_);
  state_slots_[static_cast<size_t>(s)] = slot;
  first_rows_[static_cast<size_t>(s)] = rows_;
  for (int64_t i = count - rows; i < count; ++i)
    output_rows_[static_cast<size_t>(rows_++)] = static_cast<int32_t>(tokens_ + i);
  sequence_offsets_[static_cast<size_t>(s)] = static_cast<int32_t>(tokens_);
  tokens_ += count;
  sequence_offsets_[static_cast<size_t>(s) + 1] = static_cast<int32_t>(tokens_);
}

void Batch::set_hidden_rows(int64_t first) {
  for (int64_t t = sequence_offsets_[static_cast<size_t>(sequences_) - 1]; t < tokens_; ++t)
    hidden_rows_[static_cast<size_t>(t)] = static_cast<int32_t>(first++);
}

BatchView Batch::view() const {
  return {.tokens = tokens_,
          .sequences = sequences_,
          .rows = rows_,
          .token_ids = token_ids_.data(),
          .positions = positions_.data(),
          .sequence_of = sequence_of_.data(),
          .sequence_offsets = sequence_offsets_.data(),
          .block_tables = block_tables_.data(),
          .state_slots = state_slots_.data(),
          .output_rows = output_rows_.data(),
          .max_blocks = max_blocks_,
          .image_rows = has_images_ ? image_rows_.data() : nullptr,
          .hidden_rows = hidden_rows_.data()};
}

}  // namespace moesaic
