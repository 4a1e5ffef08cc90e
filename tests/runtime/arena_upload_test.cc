// ArenaUpload: many pieces, written by all threads and sent as they complete, arrive where they belong.
#include "runtime/arena_upload.h"

#include <gtest/gtest.h>

#include "base/fresh_rng.h"
#include "kernels/kernel.h"
#include "support/mirror.h"

namespace moesaic {
namespace {

std::byte pattern(int64_t offset) {
  return static_cast<std::byte>((offset * 31 + offset / 251 + offset / 65537) & 0xFF);
}

void write_pattern(int64_t offset, std::span<std::byte> to) {
  for (size_t i = 0; i < to.size(); ++i) to[i] = pattern(offset + static_cast<int64_t>(i));
}

// Rooms and writes of odd sizes one after the other, from nothing to several rounds of the ring.
TEST(ArenaUpload, EveryByteArrives) {
  if (!cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
  Rng rng = fresh_rng();
  Device& device = test_device(Backend::cuda);
  ThreadPool& pool = *device.stream().pool;
  const int64_t sizes[] = {1,
                           kShareBytes - 1,
                           kShareBytes,
                           kPieceBytes - 3,
                           kPieceBytes,
                           kPieceBytes + 1,
                           9 * kPieceBytes + 77,
                           3 * kShareBytes + 5,
                           2 * kPieceBytes};
  int64_t total = 0;
  for (int64_t size : sizes) total += size + 4096;
  const Buffer arena = device.allocate(total, "a test's arena");
  {
    ArenaUpload upload(device, arena.data(), total);
    int64_t offset = 0;
    for (int64_t size : sizes) {
      for (int64_t left = 4096; left > 0;) {
        const int64_t bytes = std::min<int64_t>(left, 1 + rng.below(2000));
        write_pattern(offset, {upload.room(offset, bytes), static_cast<size_t>(bytes)});
        offset += bytes, left -= bytes;
      }
      upload.write(offset, size, pool, [&](int64_t at, std::span<std::byte> to) {
        ASSERT_LE(at + std::ssize(to), size);
        write_pattern(offset + at, to);
      });
      offset += size;
    }
    upload.finish();
  }
  std::vector<std::byte> got(static_cast<size_t>(total));
  device.download(got.data(), arena.data(), total);
  device.synchronize();
  int64_t wrong = 0, first = -1;
  for (int64_t i = 0; i < total; ++i)
    if (got[static_cast<size_t>(i)] != pattern(i)) first = wrong++ == 0 ? i : first;
  EXPECT_EQ(wrong, 0) << "the first at " << first << " of " << total;
}

}  // namespace
}  // namespace moesaic
