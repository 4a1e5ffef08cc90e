#include "weights/load.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "quant/bf16.h"
#include "quant/fp4.h"
#include "weights/layout.h"

namespace moesaic {
namespace {

constexpr int64_t kChunkBytes = 8 << 20;  // packed between two drops of mapped pages

template <typename T>
T read_unaligned(const std::byte* data, int64_t i) {
  T value;
  std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

double read_element(const std::byte* data, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::bf16: return bf16_to_float(read_unaligned<uint16_t>(data, i));
    case DType::f16: return f16_to_float(read_unaligned<uint16_t>(data, i));
    case DType::f32: return read_unaligned<float>(data, i);
    default: CHECK(false, "element type {}", dtype_name(dtype)); return 0;
  }
}

// A multiplier as it is, or 2^(byte - 127) where the checkpoint stores exponents.
float read_scale(const std::byte* data, DType dtype, int64_t i) {
  if (dtype != DType::u8 && dtype != DType::e8m0) return static_cast<float>(read_element(data, dtype, i));
  const auto byte = static_cast<uint8_t>(data[i]);
  return byte == kE8m0Nan ? std::numeric_limits<float>::quiet_NaN() : e8m0_to_float(byte);
}

void load_vector(const WeightSlot& slot, const WeightSource& source, std::byte* out) {
  const int64_t n = slot.spec.shape.elements();
  const StoredTensor& tensor = source.tensors[0];
  for (int64_t i = 0; i < n; ++i) {
    const double value = read_element(tensor.tensor.data, tensor.dtype(), source.part * n + i);
    if (slot.stored == DType::f64) reinterpret_cast<double*>(out)[i] = value;
    else reinterpret_cast<float*>(out)[i] = static_cast<float>(value);
  }
}

// A stack of matrices [E, N, K]; a plain matrix or embedding is a stack of one.
struct Stack {
  int64_t E = 1, N = 1, K = 1;
  explicit Stack(const Shape& shape) {
    K = shape[-1];
    N = shape.rank() > 1 ? shape[-2] : 1;
    E = shape.elements() / (N * K);
  }
};

void load_table(const WeightSlot& slot, const WeightSource& source, std::byte* out) {
  const StoredTensor& tensor = source.tensors[0];
  for (int64_t i = 0; i < slot.spec.shape.elements(); ++i)
    reinterpret_cast<int32_t*>(out)[i] = tensor.dtype() == DType::i64
                                             ? static_cast<int32_t>(read_unaligned<int64_t>(tensor.tensor.data, i))
                                             : read_unaligned<int32_t>(tensor.tensor.data, i);
}

class Loader {
 public:
  Loader(const WeightSlot& slot, const WeightSource& source, const Shards& shards, ArenaSink& arena, ThreadPool& pool)
      : slot_(slot), source_(source), shards_(shards), arena_(arena), pool_(pool), stack_(slot.spec.shape) {}

  void load() {
    if (slot_.spec.kind == WeightKind::vector) load_vector(slot_, source_, room(0, slot_.bytes));
    else if (slot_.spec.kind == WeightKind::table) load_table(slot_, source_, room(0, slot_.bytes));
    else load_matrices();
    for (const StoredTensor& tensor : source_.tensors) shards_.drop(tensor);
    for (const StoredTensor& tensor : source_.scales) shards_.drop(tensor);
  }

 private:
  // Memory for bytes of this weight.
  std::byte* room(int64_t offset, int64_t bytes) const {
    CHECK(bytes <= kPieceBytes, "a piece of {} bytes of {}", bytes, slot_.spec.name);
    return arena_.room(slot_.offset + offset, bytes);
  }

  // Bytes as they are, from the checkpoint to `offset` within the weight. Neighbours travel together: see flush().
  // `scales_of`: the expert whose MXFP4 scales they are.
  void copy(int64_t offset, const std::byte* from, int64_t bytes, int64_t scales_of = -1) {
    if (pending_.empty() || offset != pending_.back().offset + pending_.back().bytes) flush();
    pending_.push_back({from, offset, bytes, scales_of});
  }
  void flush() {
    if (pending_.empty()) return;
    const int64_t start = pending_.front().offset, end = pending_.back().offset + pending_.back().bytes;
    std::atomic<int64_t> bad{-1};  // a NaN scale, within the weight
    arena_.write(slot_.offset + start, end - start, pool_,
                 [&](int64_t at, std::span<std::byte> to) { read(start + at, to, bad); });
    if (bad >= 0) fail_nan_at(bad);
    pending_.clear();
  }

  size_t run_at(int64_t offset) const {
    const auto after = std::upper_bound(pending_.begin(), pending_.end(), offset,
                                        [](int64_t o, const Run& run) { return o < run.offset; });
    return static_cast<size_t>(after - pending_.begin()) - 1;
  }
  // Bytes from `offset` of the weight on, out of the pending runs.
  void read(int64_t offset, std::span<std::byte> to, std::atomic<int64_t>& bad) const {
    for (size_t i = run_at(offset); !to.empty(); ++i) {
      const Run& run = pending_[i];
      const auto bytes = std::min(to.size(), static_cast<size_t>(run.offset + run.bytes - offset));
      shards_.read(run.from + (offset - run.offset), to.first(bytes));
      const void* nan = run.scales_of >= 0 ? std::memchr(to.data(), kE8m0Nan, bytes) : nullptr;
      if (nan != nullptr) bad = offset + (static_cast<const std::byte*>(nan) - to.data());
      offset += static_cast<int64_t>(bytes), to = to.subspan(bytes);
    }
  }
  [[noreturn]] void fail_nan_at(int64_t offset) const {
    const Run& run = pending_[run_at(offset)];
    fail_nan(run.scales_of, (offset - run.offset) / (stack_.K / kMxGroup));
  }

  void load_matrices() {
    for (int64_t e = 0; e < stack_.E; ++e) {
      if (slot_.spec.format == Format::fp8) load_fp8(e);
      else if (slot_.spec.format == Format::int4) load_int4(e);
      else if (packed() || source_.k_first) load_blocks(e);
      else if (slot_.spec.format == Format::mxfp4) load_mxfp4(e);
      else load_plain(e);
    }
    flush();
  }

  bool packed() const { return slot_.layout == Layout::rows16; }

  // The matrix of expert e: a tensor of its own, or its place in one for all (of which the weight may be a part).
  const std::byte* matrix(const std::vector<StoredTensor>& tensors, int64_t e, int64_t bytes) const {
    if (tensors.size() > 1 || stack_.E == 1) return tensors[static_cast<size_t>(e)].tensor.data;
    return tensors[0].tensor.data + (e * source_.parts + source_.part) * bytes;
  }

  void load_fp8(int64_t e) {
    const int64_t elements = stack_.N * stack_.K, padded = (elements + 3) / 4 * 4;
    const int64_t start = e * matrix_bytes(slot_.spec), count = fp8_scale_count(slot_.spec);
    copy(start, matrix(source_.tensors, e, elements), elements);
    flush();
    if (padded > elements)
      std::memset(room(start + elements, padded - elements), 0, static_cast<size_t>(padded - elements));
    auto* scales = reinterpret_cast<float*>(room(start + padded, count * 4));
    const StoredTensor& stored = source_.scales[static_cast<size_t>(e)];
    for (int64_t i = 0; i < count; ++i) {
      const float scale = read_scale(stored.tensor.data, stored.dtype(), i);
      if (std::isnan(scale)) fail_data(std::string(stored.name()), "scale {} is NaN: the checkpoint is corrupt", i);
      std::memcpy(&scales[i], &scale, 4);
    }
  }

  void load_int4(int64_t e) {
    const int64_t codes = stack_.N * stack_.K / 2, scales = 2 * (stack_.N * stack_.K / kMxGroup);
    copy(e * matrix_bytes(slot_.spec), matrix(source_.tensors, e, codes), codes);
    copy(e * matrix_bytes(slot_.spec) + codes, matrix(source_.scales, e, scales), scales);
  }

  void load_plain(int64_t e) {
    const int64_t bytes = dtype_bytes(slot_.stored) * stack_.N * stack_.K;
    copy(e * bytes, matrix(source_.tensors, e, bytes), bytes);
  }

  void load_mxfp4(int64_t e) {
    const int64_t groups = stack_.K / kMxGroup, count = stack_.N * groups, start = e * mxfp4_bytes(stack_.N, stack_.K);
    copy(start, matrix(source_.tensors, e, count * 16), count * 16);
    copy(start + count * 16, matrix(source_.scales, e, count), count, e);
  }

  [[noreturn]] void fail_nan(int64_t e, int64_t row) const {
    const size_t which = source_.scales.size() > 1 ? static_cast<size_t>(e) : 0;
    fail_data(std::string(source_.scales[which].name()),
              "expert {} row {} has a NaN scale (byte 0xFF): the checkpoint is corrupt", e, row);
  }

  // Of one matrix, by blocks of rows: what a layout or a stored order changes.
  void load_blocks(int64_t e) {
    const int64_t block_bytes = std::max<int64_t>(1, slot_.bytes / (stack_.E * row_blocks(stack_.N)));
    const int64_t blocks = std::max<int64_t>(1, kChunkBytes / block_bytes);
    for (int64_t b = 0; b < row_blocks(stack_.N); b += blocks) pack(e, b, std::min(b + blocks, row_blocks(stack_.N)));
  }

  void pack(int64_t e, int64_t begin, int64_t end) {
    const int64_t row_bytes = slot_.bytes / (stack_.E * stack_.N), first = begin * kBlockRows;
    const int64_t last = std::min(end * kBlockRows, stack_.N), start = (e * stack_.N + first) * row_bytes;
    // As if the whole matrix began there.
    std::byte* to = room(start, (last - first) * row_bytes) - first * row_bytes;
    std::atomic<int64_t> bad_row{-1};
    pool_.run(end - begin, [&](int64_t i, int) {
      if (slot_.spec.format == Format::mxfp4) pack_mxfp4_block(e, begin + i, to, bad_row);
      else pack_plain_block(e, begin + i, to);
    });
    if (bad_row >= 0) fail_nan(e, bad_row);
    if (source_.tensors.size() == 1 && !source_.k_first && source_.parts == 1) drop_rows(e, first, last);
  }

  void pack_plain_block(int64_t e, int64_t block, std::byte* to) {
    const int64_t elem = dtype_bytes(slot_.stored), bytes = elem * stack_.N * stack_.K;
    const std::byte* from = matrix(source_.tensors, e, bytes);
    const DenseOrder order = source_.k_first ? DenseOrder::k_first : DenseOrder::rows_first;
    if (packed()) return pack_dense(from, order, elem, stack_.N, stack_.K, block, block + 1, to);
    const int64_t first = block * kBlockRows, last = std::min(first + kBlockRows, stack_.N);
    for (int64_t n = first; n < last; ++n)
      for (int64_t k = 0; k < stack_.K; ++k)
        std::memcpy(to + (n * stack_.K + k) * elem, from + (k * stack_.N + n) * elem, static_cast<size_t>(elem));
  }

  void pack_mxfp4_block(int64_t e, int64_t block, std::byte* to, std::atomic<int64_t>& bad_row) {
    const int64_t groups = stack_.K / kMxGroup, rows = stack_.N;
    const std::byte* codes = matrix(source_.tensors, e, rows * groups * 16);
    const std::byte* scales = matrix(source_.scales, e, rows * groups);
    if (const auto bad = pack_mxfp4(codes, scales, rows, stack_.K, block, block + 1, to)) bad_row = bad->row;
  }

  void drop_rows(int64_t e, int64_t first, int64_t last) {
    const auto drop = [&](const std::vector<StoredTensor>& tensors) {
      if (tensors.empty()) return;
      const uint64_t row = tensors[0].bytes() / static_cast<uint64_t>(stack_.E * stack_.N);
      shards_.drop(tensors[0], static_cast<uint64_t>(e * stack_.N + first) * row,
                   static_cast<uint64_t>(last - first) * row);
    };
    drop(source_.tensors);
    drop(source_.scales);
  }

  const WeightSlot& slot_;
  const WeightSource& source_;
  const Shards& shards_;
  ArenaSink& arena_;
  ThreadPool& pool_;
  const Stack stack_;
  struct Run {
    const std::byte* from;
    int64_t offset, bytes, scales_of;
  };
  std::vector<Run> pending_;  // each begins where the one before ends
};

}  // namespace

std::byte* MemorySink::room(int64_t offset, int64_t bytes) {
  CHECK(offset >= 0 && offset + bytes <= static_cast<int64_t>(arena_.size()));
  return arena_.data() + offset;
}

void MemorySink::write(int64_t offset, int64_t bytes, ThreadPool& pool,
                       function_ref<void(int64_t at, std::span<std::byte> to)> read) {
  std::byte* to = room(offset, bytes);
  pool.run((bytes + kShareBytes - 1) / kShareBytes, [&](int64_t i, int) {
    const int64_t at = i * kShareBytes;
    read(at, {to + at, static_cast<size_t>(std::min(kShareBytes, bytes - at))});
  });
}

void load_weights(const WeightMap& map, const Binding& binding, const Shards& shards, ArenaSink& arena,
                  ThreadPool& pool, Progress& progress) {
  CHECK(binding.complete());
  for (size_t i = 0; i < map.slots.size(); ++i) {
    Loader(map.slots[i], binding.sources[i], shards, arena, pool).load();
    progress.advance(map.slots[i].bytes);
  }
}

}  // namespace moesaic
