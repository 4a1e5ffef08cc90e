#include "weights/quantization.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "quant/fp4.h"

namespace moesaic {
namespace {

using Parts = std::vector<std::string_view>;

Parts components(std::string_view name) {
  Parts parts;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    parts.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Whether some components of a name in a row are those of the pattern, where * stands for any one of them.
bool names_module(std::string_view name, std::string_view pattern) {
  const Parts have = components(name), want = components(pattern);
  const auto same = [](std::string_view a, std::string_view b) { return b == "*" || a == b; };
  return std::search(have.begin(), have.end(), want.begin(), want.end(), same) != have.end();
}

// Small parameters of DeepSeek and Kimi that come in float32.
bool is_float32(std::string_view name) {
  constexpr std::array kNames = {"A_log", "dt_bias", "ape", "attn_sink", "e_score_correction_bias"};
  const bool listed = std::any_of(kNames.begin(), kNames.end(), [&](const char* p) { return names_module(name, p); });
  return listed || name.find("hc_") != std::string_view::npos;
}

// Matrices that every FP8 release leaves in bf16: heads, routers, the indexer's head weights, and what pools tokens
// into compressed entries.
bool is_never_quantized(std::string_view name) {
  constexpr std::array kPatterns = {"lm_head",          "head.weight",        "gate.weight",
                                    "router",           "weights_proj",       "compressor.wkv",
                                    "compressor.wgate", "compressor.kv_proj", "compressor.gate_proj",
                                    "indexer.kv_proj",  "indexer.gate_proj"};
  return is_float32(name) ||
         std::any_of(kPatterns.begin(), kPatterns.end(), [&](const char* p) { return names_module(name, p); });
}

void parse_fp8(Quantization& q, const JsonObject& config, const std::string& where) {
  const Json* block = json_find(config, "weight_block_size");
  const bool fits = block != nullptr && block->is_array() && block->get_array().size() == 2 &&
                    block->get_array()[0].is_int64() && block->get_array()[1].is_int64();
  if (!fits || block->get_array()[0].get_int64() < 1 || block->get_array()[1].get_int64() < 1)
    fail_data(where, "weight_block_size of quantization_config is {}; expected two sizes such as [128, 128]",
              block == nullptr ? "missing" : write_json(*block));
  q.experts = q.matrices = Format::fp8;
  q.scale_rows = block->get_array()[0].get_int64();
  q.scale_cols = block->get_array()[1].get_int64();
  const Json* plain = json_find(config, "modules_to_not_convert");
  for (const Json& name : plain != nullptr && plain->is_array() ? plain->get_array() : JsonArray{})
    if (name.is_string()) q.plain.emplace_back(name.get_string());
}

// Every release in this format packs the routed experts alone, whatever its list of exceptions forgets.
Format parse_compressed_tensors(const JsonObject& config, const std::string& where) {
  const std::string format = json_string(config, "format", where);
  if (format == "mxfp4-pack-quantized") return Format::mxfp4;
  if (format == "pack-quantized") return Format::int4;
  fail_data(where, "quantization_config has format \"{}\"; supported are mxfp4-pack-quantized and pack-quantized",
            format);
}

}  // namespace

Quantization parse_quantization(const JsonObject& config, const std::string& where) {
  Quantization q;
  const Json* text = json_find(config, "text_config");
  const Json* found = json_find(config, "quantization_config");
  if (found == nullptr && text != nullptr && text->is_object())
    found = json_find(text->get_object(), "quantization_config");
  if (found != nullptr) {
    const JsonObject& object = json_object(*found, where);
    const std::string method = json_string(object, "quant_method", where);
    if (method == "mxfp4") q.experts = Format::mxfp4;
    else if (method == "fp8") parse_fp8(q, object, where);
    else if (method == "compressed-tensors") q.experts = parse_compressed_tensors(object, where);
    else
      fail_data(where, "quantization_config has quant_method \"{}\"; supported are mxfp4, fp8 and compressed-tensors",
                method);
  }
  if (json_string(config, "expert_dtype", where, "") == "fp4") q.experts = Format::mxfp4;
  return q;
}

void assume_formats(Graph& graph, const Quantization& q) {
  for (size_t i = 0; i < graph.value_count(); ++i) {
    const Value value{static_cast<int>(i)};
    if (graph.info(value).weight < 0) continue;
    WeightSpec& weight = graph.weights[static_cast<size_t>(graph.info(value).weight)];
    weight.format = Format::plain;
    if (weight.kind == WeightKind::experts) weight.format = q.experts;
    if (weight.kind == WeightKind::matrix && !is_never_quantized(weight.name)) weight.format = q.matrices;
    const auto stays_plain = [&](const std::string& pattern) { return names_module(weight.name, pattern); };
    const bool grouped = weight.format == Format::mxfp4 || weight.format == Format::int4;
    if ((grouped && weight.shape[-1] % kMxGroup != 0) || std::any_of(q.plain.begin(), q.plain.end(), stays_plain))
      weight.format = Format::plain;
    weight.scale_rows = weight.format == Format::fp8 ? q.scale_rows : 0;
    weight.scale_cols = weight.format == Format::fp8 ? q.scale_cols : 0;
    weight.dtype = weight.kind == WeightKind::table ? DType::i32 : is_float32(weight.name) ? DType::f32 : DType::bf16;
    if (weight.format != Format::plain) weight.dtype = DType::none;
    graph.info(value).type.dtype = weight.dtype;
  }
}

int64_t checkpoint_tensors(const Graph& graph, const WeightSpec& weight) {
  if (may_be_tied(graph, weight)) return 0;
  const int64_t matrices = weight.name.find("{}") == std::string::npos ? 1 : weight.shape[0];
  switch (weight.format) {
    case Format::plain: return matrices;
    case Format::mxfp4:
    case Format::fp8: return 2 * matrices;
    case Format::int4: return 3 * matrices;  // packed, scale, shape
  }
  return 0;
}

bool may_be_tied(const Graph& graph, const WeightSpec& weight) {
  if (weight.fallback.empty()) return false;
  const auto& all = graph.weights;
  return std::any_of(all.begin(), all.end(), [&](const WeightSpec& other) { return other.name == weight.fallback; });
}

}  // namespace moesaic
