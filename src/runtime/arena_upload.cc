#include "runtime/arena_upload.h"

#include "base/error.h"

namespace moesaic {

ArenaUpload::ArenaUpload(Device& device, std::byte* arena, int64_t piece_bytes) : device_(device), arena_(arena) {
  for (Slot& slot : slots_) {
    slot.memory = device.allocate_host(piece_bytes, "a piece of the model on its way to the device");
    slot.sent = device.make_mark();
  }
}

std::byte* ArenaUpload::room(int64_t offset, int64_t bytes) {
  constexpr int64_t kAlign = 256;
  CHECK(bytes <= slots_[0].memory.bytes(), "a piece of {} bytes", bytes);
  send();
  used_ = (used_ + kAlign - 1) / kAlign * kAlign;
  if (used_ + bytes > slots_[0].memory.bytes()) {  // what was sent from here lets the slot be used again
    slots_[static_cast<size_t>(slot_)].sent->record();
    slot_ = (slot_ + 1) % kSlots;
    slots_[static_cast<size_t>(slot_)].sent->wait();
    used_ = 0;
  }
  piece_offset_ = offset, piece_start_ = used_, piece_bytes_ = bytes;
  used_ += bytes;
  return slots_[static_cast<size_t>(slot_)].memory.data() + piece_start_;
}

void ArenaUpload::send() {
  if (piece_bytes_ == 0) return;
  device_.upload(arena_ + piece_offset_, slots_[static_cast<size_t>(slot_)].memory.data() + piece_start_, piece_bytes_);
  piece_bytes_ = 0;
}

void ArenaUpload::finish() {
  send();
  device_.synchronize();
}

}  // namespace moesaic
