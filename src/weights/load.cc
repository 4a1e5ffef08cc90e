#include "weights/load.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "quant/bf16.h"
#include "quant/fp4.h"
#include "weights/layout.h"

namespace moesaic {
namespace {

constexpr int64_t kChunkBytes = 32 << 20;  // packed between two drops of mapped pages

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
    const double value = read_element(tensor.tensor.data, tensor.dtype(), i);
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
  Loader(const WeightSlot& slot, const WeightSource& source, const Shards& shards, std::byte* out, ThreadPool& pool)
      : slot_(slot), source_(source), shards_(shards), out_(out), pool_(pool), stack_(slot.spec.shape) {}

  void load() {
    if (slot_.spec.kind == WeightKind::vector) load_vector(slot_, source_, out_);
    else if (slot_.spec.kind == WeightKind::table) load_table(slot_, source_, out_);
    else load_matrices();
    for (const StoredTensor& tensor : source_.tensors) shards_.drop(tensor);
    for (const StoredTensor& tensor : source_.scales) shards_.drop(tensor);
  }

 private:
  void load_matrices() {
    const int64_t block_bytes = std::max<int64_t>(1, slot_.bytes / (stack_.E * row_blocks(stack_.N)));
    const int64_t blocks = std::max<int64_t>(1, kChunkBytes / block_bytes);
    for (int64_t e = 0; e < stack_.E; ++e) {
      if (slot_.spec.format == Format::fp8) load_fp8(e);
      else if (slot_.spec.format == Format::int4) load_int4(e);
      else
        for (int64_t b = 0; b < row_blocks(stack_.N); b += blocks)
          pack(e, b, std::min(b + blocks, row_blocks(stack_.N)));
    }
  }

  bool packed() const { return slot_.layout == Layout::rows16; }

  // The matrix of expert e: a tensor of its own, or its place in one for all (of which the weight may be a part).
  const std::byte* matrix(const std::vector<StoredTensor>& tensors, int64_t e, int64_t bytes) const {
    if (tensors.size() > 1 || stack_.E == 1) return tensors[static_cast<size_t>(e)].tensor.data;
    return tensors[0].tensor.data + (e * source_.parts + source_.part) * bytes;
  }

  void load_fp8(int64_t e) {
    const int64_t elements = stack_.N * stack_.K;
    std::byte* out = out_ + e * matrix_bytes(slot_.spec);
    std::memcpy(out, matrix(source_.tensors, e, elements), static_cast<size_t>(elements));
    auto* scales = reinterpret_cast<float*>(out + (elements + 3) / 4 * 4);
    const StoredTensor& stored = source_.scales[static_cast<size_t>(e)];
    for (int64_t i = 0; i < fp8_scale_count(slot_.spec); ++i) {
      scales[i] = read_scale(stored.tensor.data, stored.dtype(), i);
      if (std::isnan(scales[i])) fail_data(std::string(stored.name()), "scale {} is NaN: the checkpoint is corrupt", i);
    }
  }

  void load_int4(int64_t e) {
    const int64_t codes = stack_.N * stack_.K / 2, scales = 2 * (stack_.N * stack_.K / kMxGroup);
    std::byte* out = out_ + e * matrix_bytes(slot_.spec);
    std::memcpy(out, matrix(source_.tensors, e, codes), static_cast<size_t>(codes));
    std::memcpy(out + codes, matrix(source_.scales, e, scales), static_cast<size_t>(scales));
  }

  void pack(int64_t e, int64_t begin, int64_t end) {
    std::atomic<int64_t> bad_row{-1};
    pool_.run(end - begin, [&](int64_t i, int) {
      if (slot_.spec.format == Format::mxfp4) pack_mxfp4_block(e, begin + i, bad_row);
      else pack_plain_block(e, begin + i);
    });
    if (bad_row >= 0) {
      const size_t which = source_.scales.size() > 1 ? static_cast<size_t>(e) : 0;
      fail_data(std::string(source_.scales[which].name()),
                "expert {} row {} has a NaN scale (byte 0xFF): the checkpoint is corrupt", e, bad_row.load());
    }
    if (source_.tensors.size() == 1 && !source_.k_first && source_.parts == 1)
      drop_rows(e, begin * kBlockRows, std::min(end * kBlockRows, stack_.N));
  }

  void pack_plain_block(int64_t e, int64_t block) {
    const int64_t elem = dtype_bytes(slot_.stored), bytes = elem * stack_.N * stack_.K;
    const std::byte* from = matrix(source_.tensors, e, bytes);
    std::byte* to = out_ + e * bytes;
    const DenseOrder order = source_.k_first ? DenseOrder::k_first : DenseOrder::rows_first;
    if (packed()) return pack_dense(from, order, elem, stack_.N, stack_.K, block, block + 1, to);
    const int64_t first = block * kBlockRows, last = std::min(first + kBlockRows, stack_.N);
    if (!source_.k_first) {
      std::memcpy(to + first * stack_.K * elem, from + first * stack_.K * elem,
                  static_cast<size_t>((last - first) * stack_.K * elem));
      return;
    }
    for (int64_t n = first; n < last; ++n)
      for (int64_t k = 0; k < stack_.K; ++k)
        std::memcpy(to + (n * stack_.K + k) * elem, from + (k * stack_.N + n) * elem, static_cast<size_t>(elem));
  }

  void pack_mxfp4_block(int64_t e, int64_t block, std::atomic<int64_t>& bad_row) {
    const int64_t groups = stack_.K / kMxGroup, rows = stack_.N, codes_bytes = rows * groups * 16;
    const std::byte* codes = matrix(source_.tensors, e, codes_bytes);
    const std::byte* scales = matrix(source_.scales, e, rows * groups);
    std::byte* to = out_ + e * mxfp4_bytes(rows, stack_.K);
    if (packed()) {
      if (const auto bad = pack_mxfp4(codes, scales, rows, stack_.K, block, block + 1, to)) bad_row = bad->row;
      return;
    }
    const int64_t first = block * kBlockRows, last = std::min(first + kBlockRows, rows);
    for (int64_t i = first * groups; i < last * groups; ++i)
      if (scales[i] == std::byte{kE8m0Nan}) bad_row = i / groups;
    std::memcpy(to + first * groups * 16, codes + first * groups * 16,
                static_cast<size_t>((last - first) * groups * 16));
    std::memcpy(to + codes_bytes + first * groups, scales + first * groups,
                static_cast<size_t>((last - first) * groups));
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
  std::byte* out_;
  ThreadPool& pool_;
  const Stack stack_;
};

}  // namespace

void load_weights(const WeightMap& map, const Binding& binding, const Shards& shards, std::span<std::byte> arena,
                  ThreadPool& pool, Progress& progress) {
  CHECK(binding.complete() && static_cast<int64_t>(arena.size()) >= map.bytes);
  for (size_t i = 0; i < map.slots.size(); ++i) {
    const WeightSlot& slot = map.slots[i];
    Loader(slot, binding.sources[i], shards, arena.data() + slot.offset, pool).load();
    progress.advance(slot.bytes);
  }
}

}  // namespace moesaic
