// compress: windows of tokens become entries. A token of this step is read from the inputs and an older one from the
// sequence's slot, with the same bits, so a window may be cut into steps anywhere.
#include <cstring>
#include <limits>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/rows.h"

namespace moesaic::cpu {
namespace {

// One token's part in an entry, from its first channel on.
struct PooledToken {
  const float *kv, *gate, *ape;
};

}  // namespace

#define LANES_BODY "kernels/cpu/compressor_lanes.inc"
#include "kernels/cpu/for_each_isa.inc"

namespace {

constexpr int64_t kTaskChannels = 64;

// The slot holds kv and gate of the last c * ratio tokens, [c * ratio][2][c * D]; position p in row p % (c * ratio).
struct Compress {
  const OpDesc& desc;
  const Args& args;
  const int64_t ratio = desc.attrs.integer(Attr::ratio), D = width_of(desc.out(0)), width = width_of(desc.in(0));
  const int64_t rows = width / D * ratio;

  float* state_row(int64_t sequence, int64_t position) const {
    return reinterpret_cast<float*>(args.cache.slot(args.batch->state_slots[sequence])) + position % rows * 2 * width;
  }
  bool closes(int64_t t) const { return (args.batch->positions[t] + 1) % ratio == 0; }

  // The tokens of the entry that token t closes, oldest first: with overlap the window before gives its first half of
  // channels, this one its second half. Returns how many there are.
  int64_t gather(int64_t t, PooledToken* tokens) const {
    const int64_t last = args.batch->positions[t], sequence = args.batch->sequence_of[t];
    const int64_t step_begin = last - (t - args.batch->sequence_offsets[sequence]);  // first position of this step
    int64_t count = 0;
    for (int64_t p = std::max<int64_t>(0, last + 1 - rows); p <= last; ++p) {
      const int64_t channel = p > last - ratio ? width - D : 0;
      const int64_t row = (t - (last - p)) * width + channel;
      const float* ape = args.input<float>(2) + p % ratio * width + channel;
      const float* old = p < step_begin ? state_row(sequence, p) + channel : nullptr;
      tokens[count++] = old != nullptr ? PooledToken{old, old + width, ape}
                                       : PooledToken{args.input<float>(0) + row, args.input<float>(1) + row, ape};
    }
    return count;
  }

  // Afterwards: what later entries may need.
  void remember(int64_t t) const {
    const int64_t sequence = args.batch->sequence_of[t];
    if (t < args.batch->sequence_offsets[sequence + 1] - rows) return;
    float* row = state_row(sequence, args.batch->positions[t]);
    for (int i = 0; i < 2; ++i)
      std::memcpy(row + i * width, args.input<float>(i) + t * width, static_cast<size_t>(width) * sizeof(float));
  }
};

const char* refuse(const OpDesc& desc, const DeviceInfo& device) {
  if (width_of(desc.out(0)) % kLanes != 0) return "the entry's width must be a multiple of 16";
  return refuse_types(desc, device);
}

int64_t thread_bytes(const OpDesc& desc) {
  const int64_t rows = width_of(desc.in(0)) / width_of(desc.out(0)) * desc.attrs.integer(Attr::ratio);
  return (rows * static_cast<int64_t>(sizeof(PooledToken)) + 63) / 64 * 64;
}

int64_t workspace_bytes(const OpDesc& desc, const DeviceInfo& device) {
  return device.threads * thread_bytes(desc);
}

void compress(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) {
  constexpr decltype(&scalar::pool_channels) kPool[] = {scalar::pool_channels, avx2::pool_channels,
                                                        avx512::pool_channels};
  const auto pool_channels = kPool[static_cast<int>(cpu_isa())];
  const Compress c{desc, args};
  const int64_t tasks = (c.D + kTaskChannels - 1) / kTaskChannels;  // of one token
  stream.pool->run(args.now.tokens * tasks, [&](int64_t i, int thread) {
    const int64_t t = i / tasks, begin = i % tasks * kTaskChannels, end = std::min(c.D, begin + kTaskChannels);
    float* entry = args.output<float>(0) + t * c.D;
    if (!c.closes(t)) return std::fill(entry + begin, entry + end, 0.0f);
    auto* tokens = reinterpret_cast<PooledToken*>(workspace + thread * thread_bytes(desc));
    pool_channels(tokens, c.gather(t, tokens), begin, end, entry);
  });
  for_ranges(stream, args.now.tokens, row_grain(2 * c.width), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) c.remember(t);
  });
}

}  // namespace

const Kernel kCompress{.name = "compress.cpu",
                       .op = Op::compress,
                       .backend = Backend::cpu,
                       .refuse = refuse,
                       .workspace_bytes = workspace_bytes,
                       .launch = compress};

}  // namespace moesaic::cpu
