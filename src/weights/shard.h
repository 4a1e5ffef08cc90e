// How a dimension is divided over ranks.
#pragma once

#include <cstdint>
#include <vector>

namespace moesaic {

struct Slice {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

// Divides [0, extent) over `ranks` into whole granules, as evenly as they allow: 2880 elements in granules of 32 over 4
// ranks are 23, 23, 22 and 22 granules. The last granule may be short. Every element has exactly one owner; a rank may
// own none. MXFP4 is divided along K by its groups of 32, so that each element keeps its own scale.
std::vector<Slice> shard(int64_t extent, int ranks, int64_t granule = 1);

// Rows of an fp8 weight's grid of scales that rows [rows.begin, rows.end) use, and how far into the first of them the
// slice begins: a slice may start or end inside a block, and then uses the scale of the block that holds each row.
struct ScaleRows {
  Slice grid;
  int64_t offset = 0;
};
ScaleRows scale_rows_of(Slice rows, int64_t block_rows);

}  // namespace moesaic
