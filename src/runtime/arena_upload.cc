#include "runtime/arena_upload.h"

#include <algorithm>
#include <thread>

#include "base/error.h"

namespace moesaic {

ArenaUpload::ArenaUpload(Device& device, std::byte* arena, int64_t bytes)
    : device_(device), arena_(arena), piece_bytes_(std::min(kPieceBytes, bytes)) {
  for (Slot& slot : slots_) {
    slot.memory = device.allocate_host(piece_bytes_, "a piece of the model on its way to the device");
    slot.sent = device.make_mark();
  }
}

std::byte* ArenaUpload::room(int64_t offset, int64_t bytes) {
  constexpr int64_t kAlign = 256;
  CHECK(bytes <= piece_bytes_, "a piece of {} bytes", bytes);
  send();
  used_ = (used_ + kAlign - 1) / kAlign * kAlign;
  if (used_ + bytes > piece_bytes_) {  // what was sent from here lets the slot be used again
    slots_[static_cast<size_t>(slot_)].sent->record();
    slot_ = (slot_ + 1) % kSlots;
    slots_[static_cast<size_t>(slot_)].sent->wait();
    used_ = 0;
  }
  room_offset_ = offset, room_start_ = used_, room_bytes_ = bytes;
  used_ += bytes;
  return slots_[static_cast<size_t>(slot_)].memory.data() + room_start_;
}

void ArenaUpload::send() {
  if (room_bytes_ == 0) return;
  device_.upload(arena_ + room_offset_, slots_[static_cast<size_t>(slot_)].memory.data() + room_start_, room_bytes_);
  room_bytes_ = 0;
}

// Called by whoever takes the piece's first share: the piece before it in the slot was claimed earlier, so that its
// threads are at work and the wait ends.
void ArenaUpload::open(Slot& slot, int64_t piece, int64_t shares) {
  while (slot.done.load(std::memory_order_acquire) < piece - kSlots) std::this_thread::yield();
  slot.sent->wait();
  slot.missing.store(shares, std::memory_order_relaxed);
  slot.filling.store(piece, std::memory_order_release);
}

void ArenaUpload::send_piece(Slot& slot, int64_t piece, int64_t offset, int64_t bytes) {
  {
    const std::lock_guard lock(device_mutex_);
    device_.upload(arena_ + offset, slot.memory.data(), bytes);
    slot.sent->record();
  }
  slot.done.store(piece, std::memory_order_release);
}

void ArenaUpload::write(int64_t offset, int64_t bytes, ThreadPool& pool,
                        function_ref<void(int64_t at, std::span<std::byte> to)> read) {
  send();
  slots_[static_cast<size_t>(slot_)].sent->record();
  const int64_t each = std::max<int64_t>(1, piece_bytes_ / kShareBytes), size = each * kShareBytes;
  for (Slot& slot : slots_) slot.filling = -1, slot.done = -1;
  pool.run((bytes + kShareBytes - 1) / kShareBytes, [&](int64_t i, int) {
    const int64_t piece = i / each, first = piece * size, length = std::min(size, bytes - first);
    Slot& slot = slot_after(piece);
    if (i % each == 0) open(slot, piece, (length + kShareBytes - 1) / kShareBytes);
    while (slot.filling.load(std::memory_order_acquire) != piece) std::this_thread::yield();
    const int64_t at = i * kShareBytes - first;
    read(first + at, {slot.memory.data() + at, static_cast<size_t>(std::min(kShareBytes, length - at))});
    if (slot.missing.fetch_sub(1, std::memory_order_acq_rel) == 1) send_piece(slot, piece, offset + first, length);
  });
  slot_ = (slot_ + (bytes + size - 1) / size) % kSlots;
  used_ = piece_bytes_;  // the next room is in the next slot
}

void ArenaUpload::finish() {
  send();
  device_.synchronize();
}

}  // namespace moesaic
