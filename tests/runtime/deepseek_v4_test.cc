// DeepSeek-V4: neither chunks nor copies of the cache matter, and the published names and formats. Every layer against
// Hugging Face's values is in dsa_golden_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/fresh_rng.h"
#include "cache/cache_pool.h"
#include "engine/taps.h"
#include "quant/bf16.h"
#include "quant/fp4.h"
#include "quant/fp8.h"
#include "support/checkpoint.h"

namespace moesaic {
namespace {

using Ids = std::vector<int32_t>;
constexpr const char* kModel = "deepseek_v4";

LoadOptions options_for(const std::string& model, Backend backend, int64_t sequences, int64_t tokens) {
  LoadOptions options;
  options.model = model;
  options.backend = backend;
  options.precision = Precision::float32;
  options.progress = false;
  options.threads = 2;
  return forward_limits(options, sequences, tokens);
}

std::vector<Ids> read_ids(const OwnedTensor& t) {
  std::vector<Ids> rows(static_cast<size_t>(t.shape[0]));
  for (int64_t i = 0; i < t.shape.elements(); ++i) {
    int64_t id;
    std::memcpy(&id, t.bytes.data() + i * 8, 8);
    rows[static_cast<size_t>(i / t.shape[1])].push_back(static_cast<int32_t>(id));
  }
  return rows;
}

// One sequence's cache, and the logits of every token so far.
struct Session {
  LoadedModel& loaded;
  SequenceCache cache;
  Batch batch{loaded.compiled.prefill.limits, loaded.compiled.decode.limits, loaded.max_blocks()};
  int64_t vocab = loaded.compiled.prefill.vocab;
  std::vector<float> out = {};

  void step(const Ids& tokens, int64_t begin, int64_t end, bool decode = false) {
    const Plan& plan = decode ? loaded.compiled.decode : loaded.compiled.prefill;
    batch.clear();
    batch.add({tokens.data() + begin, static_cast<size_t>(end - begin)}, begin, cache.blocks, cache.slot, end - begin);
    run(plan, loaded.compiled.cache, loaded.memory(), batch.view(), loaded.device->stream());
    const auto* rows = reinterpret_cast<const float*>(logits(plan, loaded.memory()));
    out.insert(out.end(), rows, rows + (end - begin) * vocab);
  }
};

SequenceCache open_cache(CachePool& pool, int64_t tokens) {
  SequenceCache cache;
  EXPECT_TRUE(pool.open(cache, tokens));
  return cache;
}

CachePool pool_of(const LoadedModel& loaded) {
  return {loaded.blocks, loaded.compiled.cache.block_stride, loaded.slots, loaded.compiled.cache.slot_stride};
}

std::vector<float> in_chunks(LoadedModel& loaded, const Ids& tokens, int64_t chunk, bool decode = false) {
  CachePool pool = pool_of(loaded);
  const auto total = static_cast<int64_t>(tokens.size());
  Session session{loaded, open_cache(pool, total)};
  for (int64_t begin = 0; begin < total; begin += chunk)
    session.step(tokens, begin, std::min(begin + chunk, total), decode);
  return session.out;
}

Ids random_tokens(int64_t count) {
  Rng rng = fresh_rng();
  Ids tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(rng.below(320)));
  return tokens;
}

LoadedModel load_for(int64_t tokens, DType cache) {
  LoadOptions options = options_for(golden(kModel), Backend::cpu, 2, tokens);
  options.cache_dtype = cache;
  return load_model(options);
}

TEST(DeepSeekV4, ChunksDoNotMatter) {
  constexpr int64_t kTokens = 300;
  const Ids tokens = random_tokens(kTokens);
  for (DType cache : {DType::f32, DType::bf16}) {
    LoadedModel loaded = load_for(kTokens, cache);
    const std::vector<float> whole = in_chunks(loaded, tokens, kTokens);
    for (int64_t chunk : {1, 3, 5, 127, 129}) EXPECT_EQ(in_chunks(loaded, tokens, chunk), whole) << chunk;
    EXPECT_EQ(in_chunks(loaded, tokens, 1, true), whole) << "token by token on the decode plan";
  }
}

// Cut at every boundary, and so at lengths that are 3 mod 4, at window edges and at blocks.
TEST(DeepSeekV4, EveryBoundary) {
  constexpr int64_t kTokens = 75;
  const Ids tokens = random_tokens(kTokens);
  LoadedModel loaded = load_for(kTokens, DType::f32);
  const std::vector<float> whole = in_chunks(loaded, tokens, kTokens);
  for (int64_t cut = 1; cut < kTokens; ++cut) {
    CachePool pool = pool_of(loaded);
    Session session{loaded, open_cache(pool, kTokens)};
    session.step(tokens, 0, cut);
    session.step(tokens, cut, kTokens);
    EXPECT_EQ(session.out, whole) << cut;
  }
}

TEST(DeepSeekV4, BatchOfSequencesEqualsEachAlone) {
  const Ids first = random_tokens(130), second = random_tokens(67);
  LoadedModel loaded = load_for(130, DType::f32);
  std::vector<float> alone = in_chunks(loaded, first, 130);
  const std::vector<float> other = in_chunks(loaded, second, 67);
  alone.insert(alone.end(), other.begin(), other.end());
  CachePool pool = pool_of(loaded);
  Session session{loaded, open_cache(pool, 130)};
  const SequenceCache cache = open_cache(pool, 67);
  session.batch.add(first, 0, session.cache.blocks, session.cache.slot, 130);
  session.batch.add(second, 0, cache.blocks, cache.slot, 67);
  run(loaded.compiled.prefill, loaded.compiled.cache, loaded.memory(), session.batch.view(), loaded.device->stream());
  const auto* rows = reinterpret_cast<const float*>(logits(loaded.compiled.prefill, loaded.memory()));
  EXPECT_TRUE(std::equal(alone.begin(), alone.end(), rows));
}

// A sequence goes on from copies of its slot and blocks, taken at many lengths, after the originals moved on.
TEST(DeepSeekV4, ResumesFromACopiedCache) {
  constexpr int64_t kTokens = 140;
  const Ids tokens = random_tokens(kTokens);
  LoadedModel loaded = load_for(kTokens, DType::f32);
  const std::vector<float> whole = in_chunks(loaded, tokens, kTokens);
  const CacheMap& map = loaded.compiled.cache;
  for (int64_t cut : {1, 3, 7, 16, 63, 64, 65, 127, 128, 131}) {
    CachePool pool = pool_of(loaded);
    Session original{loaded, open_cache(pool, kTokens)}, copy{loaded, open_cache(pool, kTokens)};
    original.step(tokens, 0, cut);
    const auto clone = [](std::byte* base, int64_t stride, int64_t from, int64_t to) {
      std::memcpy(base + to * stride, base + from * stride, static_cast<size_t>(stride));
    };
    clone(loaded.memory().cache_slots, map.slot_stride, original.cache.slot, copy.cache.slot);
    for (size_t b = 0; b < copy.cache.blocks.size(); ++b)
      clone(loaded.memory().cache_blocks, map.block_stride, original.cache.blocks[b], copy.cache.blocks[b]);
    original.step(tokens, cut, kTokens);
    copy.step(tokens, cut, kTokens);
    EXPECT_EQ(original.out, whole) << cut;
    EXPECT_TRUE(std::equal(copy.out.begin(), copy.out.end(), whole.begin() + cut * copy.vocab)) << cut;
  }
}

TEST(DeepSeekV4, GreedyTokensEqualTheReference) {
  const TensorMap reference = read_tensors(golden(kModel) + "/golden.safetensors");
  const std::vector<Ids> prompts = read_ids(reference.at("input_ids")), greedy = read_ids(reference.at("greedy"));
  LoadedModel loaded = load_for(60, DType::f32);
  for (size_t row = 0; row < 2; ++row) {
    CachePool pool = pool_of(loaded);
    Session session{loaded, open_cache(pool, 60)};
    Ids tokens(prompts[row].begin(), prompts[row].begin() + 48);
    session.step(tokens, 0, 48);
    for (int64_t i = 0; i < 12; ++i) {
      const auto best = std::max_element(session.out.end() - session.vocab, session.out.end());
      tokens.push_back(static_cast<int32_t>(best - (session.out.end() - session.vocab)));
      session.step(tokens, 48 + i, 49 + i, true);
    }
    EXPECT_EQ(Ids(tokens.begin() + 48, tokens.end()), greedy[row]);
  }
}

// The golden checkpoint has the names that transformers saves; this gives it those of the published ones.
std::string published_name(std::string name) {
  const auto replace = [&](std::string_view from, std::string_view to) {
    if (const size_t at = name.find(from); at != std::string::npos) name.replace(at, from.size(), to);
  };
  replace("model.", ""), replace("embed_tokens", "embed"), replace("hc_head.hc_", "hc_head_"),
      replace("attn.norm.", "attn.kv_norm.");
  return name;
}

TEST(DeepSeekV4, PublishedNamesOfTensorsAndConfig) {
  const EditedCheckpoint edited(kModel, [](TensorMap& tensors, JsonObject& config) {
    TensorMap renamed;
    for (auto& [name, tensor] : tensors) renamed[published_name(name)] = std::move(tensor);
    renamed["mtp.0.enorm.weight"] = renamed.at("norm.weight");  // not used
    tensors = std::move(renamed);
    for (const char* key :
         {"layer_types", "compress_rates", "mlp_layer_types", "rope_parameters", "partial_rotary_factor"})
      config.erase(key);
    config["compress_ratios"] = JsonArray{0, 16, 4, 16, 4, 0};  // one more, of the multi-token prediction layer
    config["num_hash_layers"] = 1;
    config["rope_scaling"] = {{"type", "yarn"},
                              {"factor", 16},
                              {"original_max_position_embeddings", 256},
                              {"beta_fast", 32},
                              {"beta_slow", 1}};
  });
  const Ids tokens = random_tokens(50);
  LoadedModel saved = load_for(50, DType::f32), published = load_model(options_for(edited.path(), Backend::cpu, 2, 50));
  EXPECT_EQ(in_chunks(published, tokens, 50), in_chunks(saved, tokens, 50));
}

bool ends_with_any(const std::string& name, std::initializer_list<const char*> suffixes) {
  return std::any_of(suffixes.begin(), suffixes.end(), [&](const char* suffix) { return name.ends_with(suffix); });
}

OwnedTensor random_bytes(Rng& rng, DType dtype, const Shape& shape, uint64_t mask, uint64_t offset) {
  OwnedTensor tensor{dtype, shape, {}};
  for (int64_t i = 0; i < shape.elements(); ++i)
    tensor.bytes.push_back(static_cast<std::byte>((rng.bits() & mask) + offset));
  return tensor;
}

// A matrix [N, K] as the published checkpoints store it, I8 codes with an exponent per 32 or E4M3 with one per 128 x
// 128, and the same numbers in bf16, which holds them exactly.
struct StoredTwice {
  OwnedTensor codes, scales, plain;

  StoredTwice(Rng& rng, const Shape& shape, bool fp4) : plain{DType::bf16, shape, {}} {
    const int64_t N = shape[0], K = shape[1], tall = fp4 ? 1 : 128, wide = fp4 ? 32 : 128,
                  columns = (K + wide - 1) / wide;
    codes = fp4 ? random_bytes(rng, DType::i8, {N, K / 2}, 0xFF, 0) : random_bytes(rng, DType::e4m3, shape, 0xBF, 0);
    scales = random_bytes(rng, DType::e8m0, {(N + tall - 1) / tall, columns}, 3, fp4 ? 121 : 122);
    for (int64_t i = 0; i < N * K; ++i) {
      const auto byte = static_cast<uint8_t>(codes.bytes[static_cast<size_t>(fp4 ? i / 2 : i)]);
      const auto scale = static_cast<uint8_t>(scales.bytes[static_cast<size_t>(i / K / tall * columns + i % K / wide)]);
      const float code =
          fp4 ? e2m1_to_float(static_cast<uint8_t>(i % 2 == 0 ? byte & 15 : byte >> 4)) : e4m3_to_float(byte);
      const uint16_t bits = float_to_bf16(code * e8m0_to_float(scale));
      plain.bytes.push_back(static_cast<std::byte>(bits & 255)),
          plain.bytes.push_back(static_cast<std::byte>(bits >> 8));
    }
  }
};

TEST(DeepSeekV4, PublishedFormatsOfWeights) {
  Rng rng = fresh_rng();
  TensorMap coded = read_tensors(golden(kModel) + "/model.safetensors"), plain = coded;
  int64_t fp4 = 0, fp8 = 0;
  for (const auto& [name, tensor] : read_tensors(golden(kModel) + "/model.safetensors")) {
    const bool expert = name.find(".experts.") != std::string::npos;
    const bool dense =
        name.find("compressor") == std::string::npos &&
        (name.find("shared_experts") != std::string::npos ||
         ends_with_any(name, {"wq_a.weight", "wq_b.weight", "wkv.weight", "wo_a.weight", "wo_b.weight"}));
    if (!expert && !dense) continue;
    StoredTwice both(rng, tensor.shape, expert);
    coded[name] = both.codes, plain[name] = both.plain;
    coded[name.substr(0, name.size() - 6) + "scale"] = both.scales;
    expert ? ++fp4 : ++fp8;
  }
  EXPECT_EQ(fp4, 5 * 8 * 3);
  EXPECT_EQ(fp8, 5 * (5 + 3) + 2);  // and the indexers' wq_b
  const EditedCheckpoint quantised(kModel, [&](TensorMap& tensors, JsonObject& config) {
    tensors = coded;
    config["expert_dtype"] = "fp4";
  });
  const EditedCheckpoint exact(kModel, [&](TensorMap& tensors, JsonObject&) { tensors = plain; });
  const Ids tokens = random_tokens(40);
  LoadedModel first = load_model(options_for(quantised.path(), Backend::cpu, 2, 40));
  LoadedModel second = load_model(options_for(exact.path(), Backend::cpu, 2, 40));
  EXPECT_EQ(in_chunks(first, tokens, 40), in_chunks(second, tokens, 40));
}

}  // namespace
}  // namespace moesaic
