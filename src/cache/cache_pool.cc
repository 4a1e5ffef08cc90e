#include "cache/cache_pool.h"

#include "base/error.h"

namespace moesaic {

bool CachePool::open(SequenceCache& sequence, int64_t tokens) {
  CHECK(sequence.slot < 0, "the sequence is open already");
  const auto slot = slots_.acquire();
  if (!slot) return false;
  std::vector<BlockId> blocks(static_cast<size_t>(blocks_for(tokens)));
  if (!blocks_.allocate(blocks)) {
    slots_.release(*slot);
    return false;
  }
  sequence = {std::move(blocks), *slot, 0};
  return true;
}

void CachePool::close(SequenceCache& sequence) {
  if (sequence.slot < 0) return;
  for (BlockId block : sequence.blocks) blocks_.release(block);
  slots_.release(sequence.slot);
  sequence = {};
}

}  // namespace moesaic
