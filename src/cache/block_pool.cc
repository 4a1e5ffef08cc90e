#include "cache/block_pool.h"

#include <limits>

#include "base/error.h"

namespace moesaic {

BlockPool::BlockPool(int64_t blocks, int64_t stride_bytes) : stride_bytes_(stride_bytes) {
  int64_t bytes = 0;
  CHECK(blocks >= 0 && blocks <= std::numeric_limits<BlockId>::max(), "{} blocks", blocks);
  CHECK(stride_bytes >= 0 && !__builtin_mul_overflow(blocks, stride_bytes, &bytes), "{} blocks of {} bytes", blocks,
        stride_bytes);
  owners_.assign(static_cast<size_t>(blocks), 0);
  free_.reserve(static_cast<size_t>(blocks));
  for (int64_t id = blocks; id-- > 0;) free_.push_back(static_cast<BlockId>(id));
}

void BlockPool::check_id(BlockId id) const {
  CHECK(id >= 0 && id < blocks(), "block {} of {}", id, blocks());
}

bool BlockPool::allocate(std::span<BlockId> out) {
  if (out.size() > free_.size()) return false;
  for (BlockId& id : out) {
    id = free_.back();
    free_.pop_back();
    owners_[id] = 1;
  }
  return true;
}

void BlockPool::share(BlockId id) {
  check_id(id);
  CHECK(owners_[id] > 0, "block {} is free and cannot be shared", id);
  ++owners_[id];
}

bool BlockPool::release(BlockId id) {
  check_id(id);
  CHECK(owners_[id] > 0, "block {} is released but already free", id);
  if (--owners_[id] > 0) return false;
  free_.push_back(id);
  return true;
}

int32_t BlockPool::owners(BlockId id) const {
  check_id(id);
  return owners_[id];
}

int64_t BlockPool::offset(BlockId id) const {
  check_id(id);
  return int64_t{id} * stride_bytes_;
}

}  // namespace moesaic
