// Random sequences for ops with a paged cache and one row per token in each input, and the steps that feed them.
#pragma once

#include "kernels/attention_steps.h"

namespace moesaic {

struct PagedData {
  std::vector<int64_t> widths;
  AttentionData places;                                  // lengths and cache blocks of the sequences
  std::vector<std::vector<std::vector<double>>> inputs;  // [sequence][input][length, width]
  int64_t chosen = 0;                                    // > 0: a last input, positions i32[T, chosen]
  std::vector<std::vector<int32_t>> positions;           // [sequence][length, chosen]
  int64_t pairs = 0;                                     // > 0: a last input after it, table f32[T, pairs, 2]
  std::vector<std::vector<double>> tables;               // [sequence][length, pairs, 2]
};

// Normal numbers in every input.
PagedData random_paged(Rng& rng, const std::vector<int64_t>& widths, const std::vector<int64_t>& lengths);
// Whole numbers from -3 to 3: sums of their products are exact, and ties are common.
PagedData integer_paged(Rng& rng, const std::vector<int64_t>& widths, const std::vector<int64_t>& lengths);
// Up to `chosen` positions per token, some of them none, not yet written or out of order.
void choose_positions(Rng& rng, PagedData& data, int64_t chosen);
// Every position up to the token's own.
void choose_all(PagedData& data);

// `cached`: the inputs that a bf16 cache rounds.
std::vector<KernelStep> paged_steps(const PagedData& data, const std::vector<std::vector<Chunk>>& steps,
                                    DType cache = DType::f32, const std::vector<size_t>& cached = {});
KernelCase paged_case(const std::string& name, Op op, const Attrs& attrs, const PagedData& data,
                      const std::vector<std::vector<Chunk>>& steps, DType cache = DType::f32,
                      const std::vector<size_t>& cached = {});
std::vector<std::vector<Chunk>> in_chunks(const PagedData& data, int64_t chunk);
std::vector<std::vector<Chunk>> together(const PagedData& data, int64_t chunk);

// Rows of the first output of each sequence after all steps.
template <typename T>
std::vector<std::vector<T>> paged_outputs(const KernelRun& run, const PagedData& data,
                                          const std::vector<std::vector<Chunk>>& steps) {
  std::vector<std::vector<T>> out(data.inputs.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::vector<std::byte>& bytes = run.outputs[i][0];
    const auto* rows = reinterpret_cast<const T*>(bytes.data());
    int64_t tokens = 0;
    for (const Chunk& chunk : steps[i]) tokens += chunk.end - chunk.begin;
    const int64_t width = static_cast<int64_t>(bytes.size() / sizeof(T)) / std::max<int64_t>(1, tokens);
    for (const Chunk& chunk : steps[i]) {
      const int64_t count = (chunk.end - chunk.begin) * width;
      out[chunk.sequence].insert(out[chunk.sequence].end(), rows, rows + count);
      rows += count;
    }
  }
  return out;
}

// Sizes of attention on latents, and its attributes.
struct LatentSize {
  int64_t heads, L, rope;
};
std::vector<int64_t> latent_widths(const LatentSize& size);  // of q, latent and k_pe
Attrs latent_attrs(const LatentSize& size, double scale);

struct IndexSize {
  int64_t heads, D, top_k;
  int64_t hash_bits = 0;
};
std::vector<int64_t> index_widths(const IndexSize& size);  // of q, k and w
Attrs index_attrs(const IndexSize& size, double scale);

}  // namespace moesaic
