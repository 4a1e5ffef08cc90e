#include <fmt/ranges.h>

#include <algorithm>

#include "models/gpt_oss.h"
#include "models/model.h"

namespace moesaic {

const std::vector<Family>& families() {
  static const std::vector<Family> kFamilies = {
      {"gpt_oss", {"GptOssForCausalLM"}, gpt_oss::parse},
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
