// Filling the weight arena: from a checkpoint, packed as the kernels want it, or with random numbers.
#pragma once

#include <span>

#include "base/progress.h"
#include "base/thread_pool.h"
#include "weights/bind.h"
#include "weights/weight_map.h"

namespace moesaic {

constexpr int64_t kPieceBytes = 16 << 20;
constexpr int64_t kShareBytes = 256 << 10;  // that one thread copies at a time

// Where loaded bytes go.
class ArenaSink {
 public:
  virtual ~ArenaSink() = default;
  // Memory for bytes [offset, offset + bytes) of the arena, at most kPieceBytes. They are complete when the sink is
  // asked for anything else, or when load_weights() returns.
  virtual std::byte* room(int64_t offset, int64_t bytes) = 0;
  // Any number of bytes: read(at, to) writes those from offset + at on, for shares of kShareBytes and on all threads of
  // the pool; it must not throw.
  virtual void write(int64_t offset, int64_t bytes, ThreadPool& pool,
                     function_ref<void(int64_t at, std::span<std::byte> to)> read) = 0;
};

class MemorySink : public ArenaSink {
 public:
  explicit MemorySink(std::span<std::byte> arena) : arena_(arena) {}
  std::byte* room(int64_t offset, int64_t bytes) override;
  void write(int64_t offset, int64_t bytes, ThreadPool& pool,
             function_ref<void(int64_t at, std::span<std::byte> to)> read) override;

 private:
  std::span<std::byte> arena_;
};

// Copies every weight into the arena (map.bytes long). Mapped pages are dropped as soon as they are packed, so that
// resident memory stays near the packed size. Throws Error(data_loss) naming the tensor when a scale is NaN (0xFF).
void load_weights(const WeightMap& map, const Binding& binding, const Shards& shards, ArenaSink& arena,
                  ThreadPool& pool, Progress& progress);

// Fills the arena with random weights of the same formats: normal with deviation 1/sqrt(K), MXFP4 codes uniform with
// scales that give about the same; norms are 1. `seed` makes them repeatable.
void fill_dummy_weights(const WeightMap& map, std::span<std::byte> arena, ThreadPool& pool, Progress& progress,
                        uint64_t seed = 1);

// Random bytes of plain elements or MXFP4 codes, for dummy weights and `moesaic synth`: `count` elements of a weight
// whose inner dimension is K, from element `first` on (both even).
void random_elements(DType dtype, int64_t first, int64_t count, double deviation, uint64_t seed, std::byte* out);
void random_codes(int64_t first, int64_t count, uint64_t seed, std::byte* out);
// The scale byte that gives uniform codes a deviation of about 1/sqrt(K), varied by the position.
uint8_t random_scale(int64_t index, int64_t K, uint64_t seed);

}  // namespace moesaic
