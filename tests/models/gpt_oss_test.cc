// gpt-oss: what its config.json may say, and what is refused with one clear line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/model.h"

namespace moesaic {
namespace {

using testing::HasSubstr;

JsonObject config() {
  return parse_json(R"({"architectures": ["GptOssForCausalLM"], "num_hidden_layers": 4, "hidden_size": 96,
      "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 320, "intermediate_size": 64,
      "num_local_experts": 8, "num_experts_per_tok": 3, "eos_token_id": [3, 4]})",
                    "config")
      .as_object();
}

std::string error_of(const JsonObject& json) {
  try {
    parse_model(json, "config.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

std::string error_with(const std::string& key, Json value) {
  JsonObject json = config();
  json[key] = std::move(value);
  return error_of(json);
}

TEST(GptOss, ReadsItsConfig) {
  const Model model = parse_model(config(), "config.json");
  EXPECT_EQ(model.family, "gpt_oss");
  EXPECT_EQ(model.layers, 4);
  EXPECT_EQ(model.experts_per_token, 3);
  EXPECT_EQ(model.max_positions, 131072);
  EXPECT_EQ(model.stop_tokens, (std::vector<int32_t>{3, 4}));
}

TEST(GptOss, OriginalNamesOfExpertFields) {
  JsonObject json = config();
  json.erase("num_local_experts"), json.erase("num_experts_per_tok");
  json["num_experts"] = 16, json["experts_per_token"] = 2;
  const Model model = parse_model(json, "config.json");
  EXPECT_EQ(model.experts, 16);
  EXPECT_EQ(model.experts_per_token, 2);
}

TEST(GptOss, RefusesImpossibleConfigs) {
  EXPECT_THAT(error_with("architectures", JsonArray{"LlamaForCausalLM"}),
              testing::AllOf(HasSubstr("LlamaForCausalLM"), HasSubstr("GptOssForCausalLM")));
  EXPECT_THAT(error_with("architectures", nullptr), HasSubstr("architectures"));
  EXPECT_THAT(error_with("num_hidden_layers", 0), HasSubstr("num_hidden_layers"));
  EXPECT_THAT(error_with("hidden_size", "big"), HasSubstr("hidden_size"));
  EXPECT_THAT(error_with("hidden_size", nullptr), HasSubstr("hidden_size"));
  EXPECT_THAT(error_with("num_key_value_heads", 3), HasSubstr("num_key_value_heads"));
  EXPECT_THAT(error_with("num_experts_per_tok", 9), HasSubstr("num_experts_per_tok"));
  EXPECT_THAT(error_with("head_dim", 15), HasSubstr("head_dim"));
  EXPECT_THAT(error_with("layer_types", JsonArray{"full_attention"}), HasSubstr("num_hidden_layers"));
  EXPECT_THAT(error_with("layer_types", JsonArray{"linear_attention"}), HasSubstr("linear_attention"));
  EXPECT_THAT(error_with("eos_token_id", "x"), HasSubstr("eos_token_id"));
}

}  // namespace
}  // namespace moesaic
