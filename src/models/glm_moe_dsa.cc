// GLM-5, 5.1, 5.2 and 5.3: DeepSeek-V3.2 whose indexer rotates interleaved pairs and may serve several layers. Follows
// transformers models/glm_moe_dsa/modeling_glm_moe_dsa.py.
#include "models/glm_moe_dsa.h"

#include <algorithm>

#include "models/deepseek_v32.h"

namespace moesaic::glm_moe_dsa {
namespace {

// One entry of indexer_types or letter of index_topk_pattern.
bool is_full(std::string_view type, const std::string& where) {
  if (type == "full" || type == "F") return true;
  if (type != "shared" && type != "S")
    fail_data(where, "indexer type \"{}\" is unknown; expected \"full\" or \"shared\" (in a pattern F or S)", type);
  return false;
}

// Which layers choose positions themselves: a list, else a pattern, else every `freq`-th from `offset` - 1 on and all
// before.
std::vector<bool> parse_schedule(const JsonObject& json, int64_t layers, const std::string& where) {
  std::vector<bool> own;
  const Json* types = json_find(json, "indexer_types");
  const std::string pattern = json_string(json, "index_topk_pattern", where, "");
  const int64_t freq = json_int(json, "index_topk_freq", where, 1),
                offset = json_int(json, "index_skip_topk_offset", where, 2);
  if (freq < 1) fail_data(where, "index_topk_freq is {}; expected at least 1", freq);
  if (types != nullptr && types->is_array()) {
    for (const Json& type : types->get_array())
      own.push_back(is_full(type.is_string() ? std::string_view(type.get_string()) : "", where));
  } else if (!pattern.empty()) {
    for (size_t i = 0; i < pattern.size(); ++i) own.push_back(is_full(std::string_view(pattern).substr(i, 1), where));
  } else {
    for (int64_t i = 0; i < layers; ++i) own.push_back(std::max<int64_t>(i - offset + 1, 0) % freq == 0);
  }
  if (static_cast<int64_t>(own.size()) != layers)
    fail_data(where, "the schedule of indexers has {} layers; expected num_hidden_layers = {}", own.size(), layers);
  if (!own[0]) fail_data(where, "layer 0 has no indexer and no layer before it to take positions from");
  return own;
}

}  // namespace

Model parse(const JsonObject& json, const std::string& where) {
  deepseek_v32::Config c = deepseek_v32::parse_config(json, where);
  c.indexer.interleaved = json_bool(json, "indexer_rope_interleave", where, true);
  c.carry = Carry::normalised;
  c.own_indexer = parse_schedule(json, c.layers, where);
  return deepseek_v32::make_model(c, json, where);
}

}  // namespace moesaic::glm_moe_dsa
