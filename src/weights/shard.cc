#include "weights/shard.h"

#include <algorithm>

#include "base/error.h"

namespace moesaic {

std::vector<Slice> shard(int64_t extent, int ranks, int64_t granule) {
  CHECK(extent >= 0 && ranks > 0 && granule > 0, "{} over {} ranks in {}", extent, ranks, granule);
  const int64_t granules = (extent + granule - 1) / granule;
  std::vector<Slice> slices;
  int64_t begin = 0;
  for (int64_t r = 0; r < ranks; ++r) {
    const int64_t end = std::min(extent, begin + (granules / ranks + (r < granules % ranks ? 1 : 0)) * granule);
    slices.push_back({begin, end});
    begin = end;
  }
  return slices;
}

ScaleRows scale_rows_of(Slice rows, int64_t block_rows) {
  return {{rows.begin / block_rows, (rows.end + block_rows - 1) / block_rows}, rows.begin % block_rows};
}

}  // namespace moesaic
