#include "runtime/step_inputs.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace moesaic {
namespace {

int64_t take(int64_t& bytes, int64_t count, int64_t element_bytes = sizeof(int32_t)) {
  const int64_t offset = bytes;
  bytes += (count * element_bytes + 15) / 16 * 16;
  return offset;
}

template <typename T>
void put(std::byte* to, int64_t offset, const T* from, int64_t count) {
  if (from != nullptr && count > 0) std::memcpy(to + offset, from, static_cast<size_t>(count) * sizeof(T));
}

}  // namespace

StepInputs::StepInputs(Device& device, const Limits& limits, int64_t max_blocks, int32_t spare_block,
                       int32_t spare_slot, int64_t image_width)
    : device_(device),
      limits_(limits),
      max_blocks_(max_blocks),
      spare_block_(spare_block),
      spare_slot_(spare_slot),
      image_width_(image_width) {
  live_ = take(bytes_, 1);
  token_ids_ = take(bytes_, limits.tokens);
  positions_ = take(bytes_, limits.tokens);
  sequence_of_ = take(bytes_, limits.tokens);
  offsets_ = take(bytes_, limits.sequences + 1);
  slots_ = take(bytes_, limits.sequences);
  output_rows_ = take(bytes_, limits.rows);
  hidden_rows_ = take(bytes_, limits.tokens);
  images_ = take(bytes_, limits.tokens, sizeof(const float*));
  samples_ = take(bytes_, limits.rows, sizeof(SampleRow));
  blocks_ = take(bytes_, limits.sequences * max_blocks);
  memory_ = device.allocate(bytes_, "the steps' inputs");
  const int64_t image_bytes = limits.tokens * image_width * static_cast<int64_t>(sizeof(float));
  images_memory_ = device.allocate(image_bytes, "the images of a step");
  images_host_ = device.allocate_host(image_bytes, "the images of a step on the host");
  images_copied_ = device.make_mark();
  for (Stage& stage : stages_) {
    stage.memory = device.allocate_host(bytes_, "the steps' inputs on the host");
    stage.copied = device.make_mark();
  }
}

void StepInputs::write(std::byte* to, const BatchView& batch, int64_t padded,
                       std::span<const SampleRow> samples) const {
  const auto live = static_cast<int32_t>(batch.tokens);
  put(to, live_, &live, 1);
  put(to, token_ids_, batch.token_ids, batch.tokens);
  put(to, positions_, batch.positions, batch.tokens);
  put(to, sequence_of_, batch.sequence_of, batch.tokens);
  put(to, offsets_, batch.sequence_offsets, batch.sequences + 1);
  put(to, slots_, batch.state_slots, batch.sequences);
  put(to, output_rows_, batch.output_rows, batch.rows);
  put(to, hidden_rows_, batch.hidden_rows, batch.tokens);
  put(to, samples_, samples.data(), static_cast<int64_t>(samples.size()));
  put(to, blocks_, batch.block_tables, batch.sequences * max_blocks_);
  pad(to, batch.tokens, padded);
}

void StepInputs::pad(std::byte* to, int64_t begin, int64_t end) const {
  const SampleRow nobody{.slot = spare_slot_};
  const auto at = [&](int64_t offset, int64_t i) -> int32_t& { return reinterpret_cast<int32_t*>(to + offset)[i]; };
  if (begin == 0) at(offsets_, 0) = 0;
  for (int64_t i = begin; i < end; ++i) {
    at(token_ids_, i) = at(positions_, i) = 0;
    at(sequence_of_, i) = at(output_rows_, i) = static_cast<int32_t>(i);
    at(offsets_, i + 1) = static_cast<int32_t>(i + 1);
    at(slots_, i) = spare_slot_;
    put(to, samples_ + i * static_cast<int64_t>(sizeof(SampleRow)), &nobody, 1);
    at(blocks_, i * max_blocks_) = spare_block_;  // of position 0, which is all that padding sees
  }
}

// Rows of images go to the token's place; `pointers` is where the step will find them.
void StepInputs::upload_images(const BatchView& batch, std::byte* pointers) {
  images_copied_->wait();
  const auto bytes = static_cast<size_t>(image_width_) * sizeof(float);
  for (int64_t t = 0; t < batch.tokens; ++t) {
    const float* there = nullptr;
    if (batch.image_rows[t] != nullptr) {
      const size_t offset = static_cast<size_t>(t) * bytes;
      std::memcpy(images_host_.data() + offset, batch.image_rows[t], bytes);
      there = reinterpret_cast<const float*>(images_memory_.data() + offset);
    }
    put(pointers, t * static_cast<int64_t>(sizeof there), &there, 1);
  }
  device_.upload(images_memory_.data(), images_host_.data(), batch.tokens * static_cast<int64_t>(bytes));
  images_copied_->record();
}

BatchView StepInputs::upload(const BatchView& batch, int64_t padded, std::span<const SampleRow> samples) {
  CHECK(batch.max_blocks == max_blocks_ && std::max(batch.tokens, padded) <= limits_.tokens &&
            std::max(batch.sequences, padded) <= limits_.sequences && std::max(batch.rows, padded) <= limits_.rows,
        "a batch of {} tokens, {} sequences, {} rows", batch.tokens, batch.sequences, batch.rows);
  Stage& stage = stages_[static_cast<size_t>(stage_)];
  stage_ = (stage_ + 1) % kStages;
  stage.copied->wait();
  write(stage.memory.data(), batch, padded, samples);
  if (batch.image_rows != nullptr) upload_images(batch, stage.memory.data() + images_);
  const int64_t sequences = std::max(batch.sequences, padded);
  device_.upload(memory_.data(), stage.memory.data(),
                 blocks_ + sequences * max_blocks_ * static_cast<int64_t>(sizeof(int32_t)));
  stage.copied->record();
  BatchView there = view(sequences);
  there.tokens = std::max(batch.tokens, padded);
  there.rows = std::max(batch.rows, padded);
  if (batch.image_rows == nullptr) there.image_rows = nullptr;
  there.hidden = batch.hidden;
  return there;
}

BatchView StepInputs::view(int64_t sequences) const {
  return {.tokens = sequences,
          .sequences = sequences,
          .rows = sequences,
          .live_tokens = array(live_),
          .token_ids = array(token_ids_),
          .positions = array(positions_),
          .sequence_of = array(sequence_of_),
          .sequence_offsets = array(offsets_),
          .block_tables = array(blocks_),
          .state_slots = array(slots_),
          .output_rows = array(output_rows_),
          .max_blocks = max_blocks_,
          .image_rows = reinterpret_cast<const float* const*>(memory_.data() + images_),
          .hidden_rows = array(hidden_rows_)};
}

}  // namespace moesaic
