#include "cache/state_slots.h"

#include "base/error.h"

namespace moesaic {

void StateSlots::release(SlotId id) {
  CHECK(used(id), "state slot {} is released but already free", id);
  pool_.release(id);
}

}  // namespace moesaic
