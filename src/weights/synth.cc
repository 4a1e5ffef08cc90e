#include "weights/synth.h"

#include <cmath>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"
#include "quant/fp4.h"
#include "weights/load.h"
#include "weights/quantization.h"
#include "weights/safetensors_writer.h"

namespace moesaic {
namespace {

enum class Content : uint8_t { elements, ones, codes, scales, zeros };

struct SynthTensor {
  SafetensorsSpec spec;
  Content content = Content::elements;
  int64_t K = 0;         // inner dimension of the weight
  double deviation = 0;  // of elements

  int64_t bytes() const { return spec.shape.elements() * dtype_bytes(spec.dtype); }
};

double deviation_of(const WeightSpec& weight) {
  if (weight.kind == WeightKind::embedding) return 1;
  if (weight.kind == WeightKind::vector) return 0.1;
  return 1 / std::sqrt(static_cast<double>(weight.shape[-1]));
}

// gpt-oss keeps all experts in one tensor, MXFP4 or BF16 with K first.
std::vector<SynthTensor> stacked_experts(const WeightSpec& weight) {
  const int64_t E = weight.shape[0], N = weight.shape[1], K = weight.shape[2], groups = K / kMxGroup;
  if (weight.format == Format::plain)
    return {{{weight.name, DType::bf16, {E, K, N}}, Content::elements, K, deviation_of(weight)}};
  return {{{weight.name + "_blocks", DType::u8, {E, N, groups, kMxGroup / 2}}, Content::codes, K},
          {{weight.name + "_scales", DType::u8, {E, N, groups}}, Content::scales, K}};
}

// Other families have tensors per expert; MXFP4 as compressed-tensors names it.
std::vector<SynthTensor> single_experts(const WeightSpec& weight) {
  const int64_t N = weight.shape[1], K = weight.shape[2];
  const size_t at = weight.name.find("{}");
  std::vector<SynthTensor> all;
  for (int64_t e = 0; e < weight.shape[0]; ++e) {
    const std::string name = weight.name.substr(0, at) + std::to_string(e) + weight.name.substr(at + 2);
    const std::string base = name.ends_with(".weight") ? name.substr(0, name.size() - 7) : name;
    if (weight.format == Format::plain) {
      all.push_back({{name, DType::bf16, {N, K}}, Content::elements, K, deviation_of(weight)});
      continue;
    }
    all.push_back({{base + ".weight_packed", DType::u8, {N, K / 2}}, Content::codes, K});
    all.push_back({{base + ".weight_scale", DType::u8, {N, K / kMxGroup}}, Content::scales, K});
  }
  return all;
}

std::vector<SynthTensor> tensors_of(const WeightSpec& weight) {
  if (weight.format != Format::plain && (weight.format != Format::mxfp4 || weight.kind != WeightKind::experts))
    fail_argument("{} would be {}, which synth does not write; leave quantization_config out of the config",
                  weight.name, format_name(weight));
  if (weight.kind == WeightKind::experts)
    return weight.name.find("{}") == std::string::npos ? stacked_experts(weight) : single_experts(weight);
  if (weight.kind == WeightKind::table)
    return {{{weight.name, DType::i64, weight.shape}, Content::zeros, weight.shape[-1]}};
  const bool norm = weight.kind == WeightKind::vector && weight.name.find("norm") != std::string::npos;
  return {{{weight.name, DType::bf16, weight.shape},
           norm ? Content::ones : Content::elements,
           weight.shape[-1],
           deviation_of(weight)}};
}

std::vector<SynthTensor> tensors_of(const Graph& graph) {
  std::vector<SynthTensor> all;
  for (const WeightSpec& weight : graph.weights) {
    if (may_be_tied(graph, weight)) continue;
    for (SynthTensor& tensor : tensors_of(weight)) all.push_back(std::move(tensor));
  }
  return all;
}

// FNV-1a: the numbers of a tensor do not depend on what else the checkpoint holds.
uint64_t seed_of(const std::string& name, uint64_t seed) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return mix64(mix64(seed) ^ hash);
}

// The elements [first, first + count) of a tensor as it is stored.
void fill(const SynthTensor& tensor, uint64_t seed, int64_t first, int64_t count, std::byte* out) {
  constexpr uint16_t kOne = 0x3F80;  // bf16
  switch (tensor.content) {
    case Content::elements: return random_elements(DType::bf16, first, count, tensor.deviation, seed, out);
    case Content::codes: return random_codes(2 * first, 2 * count, seed, out);
    case Content::scales:
      for (int64_t i = 0; i < count; ++i) out[i] = std::byte{random_scale(first + i, tensor.K, seed)};
      return;
    case Content::ones:
      for (int64_t i = 0; i < count; ++i) std::memcpy(out + 2 * i, &kOne, sizeof kOne);
      return;
    case Content::zeros: std::memset(out, 0, static_cast<size_t>(count * dtype_bytes(tensor.spec.dtype))); return;
  }
}

void write_tensor(SafetensorsWriter& writer, const SynthTensor& tensor, uint64_t seed, std::span<std::byte> buffer,
                  ThreadPool& pool, Progress& progress) {
  constexpr int64_t kChunk = 1 << 18;  // elements of one task; codes come in runs of 16, so it must be a multiple
  const int64_t size = dtype_bytes(tensor.spec.dtype), total = tensor.spec.shape.elements();
  const int64_t piece = static_cast<int64_t>(buffer.size()) / size;
  const uint64_t own_seed = seed_of(tensor.spec.name, seed);
  for (int64_t first = 0; first < total; first += piece) {
    const int64_t count = std::min(piece, total - first);
    pool.run((count + kChunk - 1) / kChunk, [&](int64_t i, int) {
      fill(tensor, own_seed, first + i * kChunk, std::min(kChunk, count - i * kChunk),
           buffer.data() + i * kChunk * size);
    });
    writer.write(tensor.spec.name, buffer.first(static_cast<size_t>(count * size)));
    progress.advance(count * size);
  }
}

// Tensors in order, cut where the next one would not fit.
std::vector<std::span<const SynthTensor>> cut(std::span<const SynthTensor> all, int64_t shard_bytes) {
  std::vector<std::span<const SynthTensor>> shards;
  size_t begin = 0;
  int64_t bytes = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i > begin && bytes + all[i].bytes() > shard_bytes) {
      shards.push_back(all.subspan(begin, i - begin));
      begin = i, bytes = 0;
    }
    bytes += all[i].bytes();
  }
  shards.push_back(all.subspan(begin));
  return shards;
}

void write_index(const std::filesystem::path& path, const JsonObject& map, int64_t bytes) {
  std::ofstream file(path, std::ios::binary);
  file << write_json(JsonObject{{"metadata", {{"total_size", bytes}}}, {"weight_map", map}}, {.indent = 2}) << '\n';
  if (!file.flush()) throw Error(StatusCode::internal, "cannot be written", path.string());
}

}  // namespace

int64_t random_checkpoint_bytes(const Graph& graph) {
  int64_t bytes = 0;
  for (const SynthTensor& tensor : tensors_of(graph)) bytes += tensor.bytes();
  return bytes;
}

SynthResult write_random_checkpoint(const Graph& graph, const std::filesystem::path& directory, uint64_t seed,
                                    int64_t shard_bytes, ThreadPool& pool, Progress& progress) {
  const std::vector<SynthTensor> all = tensors_of(graph);
  const auto shards = cut(all, shard_bytes);
  SynthResult result{.tensors = static_cast<int64_t>(all.size()), .files = static_cast<int64_t>(shards.size())};
  std::vector<std::byte> buffer(size_t{32} << 20);
  JsonObject map;
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string name = shards.size() == 1 ? "model.safetensors"
                                                : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
    std::vector<SafetensorsSpec> specs;
    for (const SynthTensor& tensor : shards[s]) specs.push_back(tensor.spec);
    SafetensorsWriter writer(directory / name, specs, {{"format", "pt"}});
    for (const SynthTensor& tensor : shards[s]) {
      write_tensor(writer, tensor, seed, buffer, pool, progress);
      map[tensor.spec.name] = name;
      result.bytes += tensor.bytes();
    }
    writer.finish();
  }
  if (shards.size() > 1) write_index(directory / "model.safetensors.index.json", map, result.bytes);
  return result;
}

}  // namespace moesaic
