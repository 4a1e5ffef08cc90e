// StepInputs: a step's batch in fixed places of device memory, so that a captured step can be launched again.
#pragma once

#include <array>

#include "compile/plan.h"
#include "kernels/sample.h"
#include "runtime/batch.h"

namespace moesaic {

class StepInputs {
 public:
  // Room for steps within `limits`. `spare_block` and `spare_slot` are cache that belongs to no sequence: what padding
  // reads and writes. `image_width`: floats of an image's row, 0 where the model sees none.
  StepInputs(Device& device, const Limits& limits, int64_t max_blocks, int32_t spare_block, int32_t spare_slot,
             int64_t image_width);

  // Starts copying the batch (and the rows that its image_rows point to, on the host), padded with tokens of nobody's
  // up to `padded` one-token sequences (0: as it is); the view lies in device memory. The batch may change at once. A
  // token -1 stands for what its sequence's last step left. `samples`: how the rows with logits are sampled; may be
  // empty.
  BatchView upload(const BatchView& batch, int64_t padded = 0, std::span<const SampleRow> samples = {});
  // The same for arrays that a captured step reads: their places, for a step of so many one-token sequences.
  BatchView view(int64_t sequences) const;
  // The token ids on the device, for kernels that fill them in.
  int32_t* token_ids() const { return array(token_ids_); }
  const SampleRow* samples() const { return reinterpret_cast<const SampleRow*>(memory_.data() + samples_); }

 private:
  static constexpr int kStages = 3;  // steps whose copies may be under way
  struct Stage {
    Buffer memory;
    std::unique_ptr<Mark> copied;
  };

  int32_t* array(int64_t offset) const { return reinterpret_cast<int32_t*>(memory_.data() + offset); }
  void write(std::byte* to, const BatchView& batch, int64_t padded, std::span<const SampleRow> samples) const;
  void pad(std::byte* to, int64_t begin, int64_t end) const;
  void upload_images(const BatchView& batch, std::byte* pointers);

  Device& device_;
  const Limits limits_;
  const int64_t max_blocks_;
  const int32_t spare_block_, spare_slot_;
  const int64_t image_width_;
  // Offsets of the arrays; block tables come last, so that only the used part of them travels.
  int64_t bytes_ = 0;
  int64_t live_, token_ids_, positions_, sequence_of_, offsets_, slots_, output_rows_, hidden_rows_, images_, samples_,
      blocks_;
  Buffer memory_;
  Buffer images_memory_, images_host_;  // [tokens, image_width]
  std::unique_ptr<Mark> images_copied_;
  std::array<Stage, kStages> stages_;
  int stage_ = 0;
};

}  // namespace moesaic
