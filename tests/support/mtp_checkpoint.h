// Multi-token prediction layers for the golden checkpoints, which come without.
#pragma once

#include <filesystem>

#include "base/fresh_rng.h"
#include "quant/bf16.h"
#include "support/checkpoint.h"

namespace moesaic {

inline OwnedTensor float_tensor(Shape shape, const std::vector<double>& values) {
  OwnedTensor t{DType::f32, shape, {}};
  for (double v : values) {
    const auto f = static_cast<float>(v);
    const auto* bytes = reinterpret_cast<const std::byte*>(&f);
    t.bytes.insert(t.bytes.end(), bytes, bytes + 4);
  }
  return t;
}

inline OwnedTensor normal_tensor(Rng& rng, Shape shape, double scale, double offset = 0) {
  std::vector<double> values(static_cast<size_t>(shape.elements()));
  for (double& v : values) v = offset + scale * rng.normal();
  return float_tensor(shape, values);
}

// Elements of an F32 or BF16 tensor.
inline std::vector<double> values_of(const OwnedTensor& t) {
  std::vector<double> out;
  for (int64_t i = 0; i < t.shape.elements(); ++i)
    out.push_back(t.dtype == DType::f32 ? reinterpret_cast<const float*>(t.bytes.data())[i]
                                        : bf16_to_float(reinterpret_cast<const uint16_t*>(t.bytes.data())[i]));
  return out;
}

inline void scale_tensor(OwnedTensor& t, double factor) {
  std::vector<double> values = values_of(t);
  for (double& v : values) v *= factor;
  t = float_tensor(t.shape, values);
}

inline std::string layer_name(int64_t layer, const std::string& rest) {
  return "model.layers." + std::to_string(layer) + "." + rest;
}

// Copies the tensors of one layer under another's number.
inline void copy_layer(TensorMap& t, int64_t from, int64_t to) {
  const std::string prefix = layer_name(from, "");
  TensorMap copies;
  for (const auto& [name, tensor] : t)
    if (name.starts_with(prefix)) copies[layer_name(to, name.substr(prefix.size()))] = tensor;
  t.merge(copies);
}

// A prediction layer behind the others: layer `from` again, with random ends.
inline void add_random_mtp(TensorMap& t, JsonObject& config, Rng& rng, int64_t from) {
  const int64_t N = config.at("num_hidden_layers").to_number<int64_t>();
  const int64_t H = config.at("hidden_size").to_number<int64_t>();
  copy_layer(t, from, N);
  t[layer_name(N, "enorm.weight")] = normal_tensor(rng, {H}, 0.2, 1);
  t[layer_name(N, "hnorm.weight")] = normal_tensor(rng, {H}, 0.2, 1);
  t[layer_name(N, "eh_proj.weight")] = normal_tensor(rng, {H, 2 * H}, 0.1);
  t[layer_name(N, "shared_head.norm.weight")] = normal_tensor(rng, {H}, 0.2, 1);
  config["num_nextn_predict_layers"] = 1;
}

// What every layer adds to the residual stream becomes `factor` of it.
inline void scale_layers(TensorMap& t, double factor) {
  for (auto& [name, tensor] : t)
    if (name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight")) scale_tensor(tensor, factor);
}

// A model whose layers add `factor` of what they did, and a prediction layer that adds nothing: it takes the next
// token's embedding for the model's hidden state. At factor 0 the two are the same, and every draft is right.
inline void add_copying_mtp(TensorMap& t, JsonObject& config, double factor) {
  Rng unused(0);
  const int64_t N = config.at("num_hidden_layers").to_number<int64_t>();
  const int64_t H = config.at("hidden_size").to_number<int64_t>();
  scale_layers(t, factor);
  add_random_mtp(t, config, unused, N - 1);
  std::vector<double> first_half(static_cast<size_t>(2 * H * H));
  for (int64_t h = 0; h < H; ++h) first_half[static_cast<size_t>(h * 2 * H + h)] = 1;
  t[layer_name(N, "eh_proj.weight")] = float_tensor({H, 2 * H}, first_half);
  t[layer_name(N, "enorm.weight")] = float_tensor({H}, std::vector<double>(static_cast<size_t>(H), 1));
  t[layer_name(N, "shared_head.norm.weight")] = t.at("model.norm.weight");
  for (auto& [name, tensor] : t)
    if (name.starts_with(layer_name(N, "")) && (name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight")))
      scale_tensor(tensor, 0);
}

// The same for deepseek_v3 with a vocabulary of the demo model's size, whose tokenizer gives it text.
inline void make_talking_mtp(TensorMap& t, JsonObject& config) {
  Rng rng(3);
  config["vocab_size"] = 6144;
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"})
    t[name] = normal_tensor(rng, {6144, 64}, 0.3);
  add_copying_mtp(t, config, 0.1);
}
inline void add_demo_tokenizer(const EditedCheckpoint& model) {
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
    std::filesystem::copy(demo_model() + "/" + file, model.path() + "/" + file);
}

}  // namespace moesaic
