// ArenaUpload: bytes on their way to a weight arena in device memory, through pinned memory: while some pieces travel,
// the next are written.
#pragma once

#include <array>
#include <atomic>
#include <mutex>

#include "device/device.h"
#include "weights/load.h"

namespace moesaic {

class ArenaUpload : public ArenaSink {
 public:
  // `arena` is device memory of `bytes`.
  ArenaUpload(Device& device, std::byte* arena, int64_t bytes);

  std::byte* room(int64_t offset, int64_t bytes) override;
  // No thread waits for another's share: the last to finish a piece sends it.
  void write(int64_t offset, int64_t bytes, ThreadPool& pool,
             function_ref<void(int64_t at, std::span<std::byte> to)> read) override;
  // Sends what is left and waits for all of it.
  void finish();

 private:
  static constexpr int kSlots = 4;
  struct Slot {
    Buffer memory;
    std::unique_ptr<Mark> sent;
    // Of a write: the piece that may be filled, how many of its shares are missing, the last piece that was sent.
    std::atomic<int64_t> filling, missing, done;
  };

  Slot& slot_after(int64_t piece) { return slots_[static_cast<size_t>((slot_ + 1 + piece) % kSlots)]; }
  void open(Slot& slot, int64_t piece, int64_t shares);
  void send_piece(Slot& slot, int64_t piece, int64_t offset, int64_t bytes);
  void send();  // the room asked for last

  Device& device_;
  std::byte* const arena_;
  const int64_t piece_bytes_;
  std::array<Slot, kSlots> slots_;
  std::mutex device_mutex_;
  int64_t slot_ = 0;
  int64_t used_ = 0;  // bytes of the current slot
  int64_t room_offset_ = 0, room_start_ = 0, room_bytes_ = 0;
};

}  // namespace moesaic
