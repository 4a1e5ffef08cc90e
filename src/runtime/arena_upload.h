// ArenaUpload: bytes on their way to a weight arena in device memory, through pinned memory: while one piece travels,
// the next are written.
#pragma once

#include <array>

#include "device/device.h"

namespace moesaic {

class ArenaUpload {
 public:
  // `arena` is device memory. `piece_bytes`: of the largest piece.
  ArenaUpload(Device& device, std::byte* arena, int64_t piece_bytes);

  // Host memory for bytes [offset, offset + bytes) of the arena, to be written before the next call.
  std::byte* room(int64_t offset, int64_t bytes);
  // Sends what is left and waits for all of it.
  void finish();

 private:
  static constexpr int kSlots = 3;
  struct Slot {
    Buffer memory;
    std::unique_ptr<Mark> sent;
  };

  void send();  // the piece asked for last

  Device& device_;
  std::byte* const arena_;
  std::array<Slot, kSlots> slots_;
  int slot_ = 0;
  int64_t used_ = 0;  // bytes of the current slot
  int64_t piece_offset_ = 0, piece_start_ = 0, piece_bytes_ = 0;
};

}  // namespace moesaic
