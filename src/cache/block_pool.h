// BlockPool: which of a fixed number of equal blocks are in use, and by how many owners. Pure bookkeeping: the memory
// belongs to the caller, who finds block b at pool + offset(b). Not thread-safe: the engine thread owns it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moesaic {

using BlockId = int32_t;

class BlockPool {
 public:
  // `blocks` blocks of `stride_bytes` each. Nothing allocates after this; every operation is O(1) per block.
  BlockPool(int64_t blocks, int64_t stride_bytes);

  // Fills `out` with free blocks, each with one owner; or, if there are fewer than out.size(), changes nothing and
  // returns false. What a block contains is whatever its last owner left.
  [[nodiscard]] bool allocate(std::span<BlockId> out);
  // Adds an owner to a block in use.
  void share(BlockId id);
  // Drops an owner; the block is free again with the last one, and release then returns true.
  bool release(BlockId id);

  int64_t blocks() const { return static_cast<int64_t>(owners_.size()); }
  int64_t free_blocks() const { return static_cast<int64_t>(free_.size()); }
  int32_t owners(BlockId id) const;  // 0: free
  // Byte offset of the block in the pool; 64-bit throughout, pools are larger than 4 GiB.
  int64_t offset(BlockId id) const;

 private:
  void check_id(BlockId id) const;

  int64_t stride_bytes_;
  std::vector<int32_t> owners_;  // [blocks]
  std::vector<BlockId> free_;    // a stack: the block released last, whose memory is warm, is used first
};

}  // namespace moesaic
