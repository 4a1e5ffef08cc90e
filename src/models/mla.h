// Multi-head latent attention as a block of a layer (DeepSeek-V3, GLM-5, Kimi), with the indexer of DeepSeek-V3.2's
// sparse attention. Follows transformers models/deepseek_v3 and models/deepseek_v32.
#pragma once

#include <optional>
#include <string>

#include "base/json.h"
#include "ir/builder.h"

namespace moesaic {

struct MlaConfig {
  int64_t hidden = 0, heads = 0;
  int64_t q_lora = 0;  // 0: queries come from one q_proj
  int64_t kv_lora = 0, nope_dim = 0, rope_dim = 0, v_dim = 0;
  double norm_eps = 1e-6;  // of q_a_layernorm and kv_a_layernorm; the references ignore rms_norm_eps there
  double scale = 0;        // of q . k, YaRN's factor included
  bool bias = false;       // of q_a_proj, kv_a_proj_with_mqa and o_proj
  bool gate = false;       // heads are multiplied by sigmoid(g_proj x) before o_proj (Kimi K3)
};
// hidden_size, num_attention_heads, q_lora_rank (may be null), kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim,
// v_head_dim, attention_bias, and the softmax factor of rope_parameters or rope_scaling.
MlaConfig parse_mla(const JsonObject& config, const std::string& where);

struct IndexerConfig {
  int64_t heads = 0, head_dim = 0, top_k = 0;
  bool interleaved = false;  // pairs (2i, 2i + 1) turn (GLM-5), or (i, i + R/2) (DeepSeek)
};
// index_n_heads, index_head_dim, index_topk.
IndexerConfig parse_indexer(const JsonObject& config, const std::string& where);

// What a layer of sparse attention attends to: chosen by its own indexer, or by that of an earlier layer.
struct SparseLayer {
  const IndexerConfig& indexer;
  bool own_indexer = true;
  std::optional<Value>& positions;  // i32[T, top_k]: read without an own indexer, written with one
};

// The weights under self_attn: y[T, hidden] from the normalised x[T, hidden]. `table` [T, rope_dim/2, 2]; none leaves
// queries and keys as they are (NoPE). `sparse` null: every position up to the query's own.
Value mla_attention(Builder& g, const MlaConfig& c, Value x, std::optional<Value> table,
                    const SparseLayer* sparse = nullptr);

}  // namespace moesaic
