#include <fmt/ranges.h>

#include <algorithm>

#include "models/deepseek_v3.h"
#include "models/deepseek_v32.h"
#include "models/deepseek_v4.h"
#include "models/glm_moe_dsa.h"
#include "models/gpt_oss.h"
#include "models/kimi_k25.h"
#include "models/kimi_k3.h"
#include "models/kimi_linear.h"
#include "models/model.h"
#include "models/qwen3_moe.h"

namespace moesaic {

const std::vector<Family>& families() {
  static const std::vector<Family> kFamilies = {
      {"gpt_oss", {"GptOssForCausalLM"}, gpt_oss::parse},
      {"deepseek_v4", {"DeepseekV4ForCausalLM"}, deepseek_v4::parse},
      {"deepseek_v3", {"DeepseekV3ForCausalLM", "KimiK2ForCausalLM"}, deepseek_v3::parse},
      {"deepseek_v32", {"DeepseekV32ForCausalLM"}, deepseek_v32::parse},
      {"glm_moe_dsa", {"GlmMoeDsaForCausalLM"}, glm_moe_dsa::parse},
      {"kimi_k25", {"KimiK25ForConditionalGeneration", "Kimi_K25ForConditionalGeneration"}, kimi_k25::parse},
      {"kimi_linear", {"KimiLinearForCausalLM"}, kimi_linear::parse},
      {"kimi_k3", {"KimiK3ForConditionalGeneration"}, kimi_k3::parse},
      {"qwen3_moe", {"Qwen3MoeForCausalLM"}, qwen3_moe::parse},
  };
  return kFamilies;
}

Model parse_model(const JsonObject& config, const std::string& where) {
  const Json* list = json_find(config, "architectures");
  if (list == nullptr || !list->is_array() || list->get_array().empty() || !list->get_array()[0].is_string())
    fail_data(where, "\"architectures\" is missing; expected a list such as [\"GptOssForCausalLM\"]");
  const std::string name(list->get_array()[0].get_string());
  std::vector<std::string> known;
  for (const Family& family : families()) {
    if (std::find(family.architectures.begin(), family.architectures.end(), name) != family.architectures.end()) {
      Model model = family.parse(config, where);
      model.family = family.name;
      return model;
    }
    known.insert(known.end(), family.architectures.begin(), family.architectures.end());
  }
  fail_data(where, "architecture \"{}\" is not supported; supported are {}", name, fmt::join(known, ", "));
}

namespace {

// A graph of more layers than any model has would only take minutes to build.
int64_t limit_of(std::string_view field) {
  return field == "num_hidden_layers" ? 10'000 : int64_t{1} << 31;
}

}  // namespace

void check_eps(const std::string& where, const char* field, double value) {
  if (!(value > 0 && value < 1)) fail_data(where, "\"{}\" is {}; expected a number between 0 and 1", field, value);
}

void check_sizes(const std::string& where, std::initializer_list<std::pair<const char*, int64_t>> fields) {
  for (const auto& [name, value] : fields)
    if (value < 1 || value > limit_of(name))
      fail_data(where, "\"{}\" is {}; expected 1 to {}", name, value, limit_of(name));
}

std::vector<int32_t> parse_token_ids(const JsonObject& config, std::string_view key, const std::string& where) {
  std::vector<int32_t> ids;
  const Json* value = json_find(config, key);
  if (value == nullptr) return ids;
  const JsonArray one = {*value};
  for (const Json& id : value->is_array() ? value->get_array() : one) {
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() > INT32_MAX)
      fail_data(where, "\"{}\" is {}; expected a token id or a list of them", key, write_json(*value).substr(0, 80));
    ids.push_back(static_cast<int32_t>(id.get_int64()));
  }
  return ids;
}

}  // namespace moesaic
