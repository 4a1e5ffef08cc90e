// Checkpoints that do not fit: every problem is named, nothing loads by accident.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/run_graph.h"

namespace moesaic {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string load_error(const std::string& path) {
  LoadOptions options;
  options.model = path;
  options.progress = false;
  try {
    load_model(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "loaded";
}

std::string load_error(const EditedCheckpoint::Edit& edit) {
  return load_error(EditedCheckpoint("gpt_oss-mxfp4", edit).path());
}

TEST(Checkpoint, LoadsUnedited) {
  EXPECT_EQ(load_error([](TensorMap&, JsonObject&) {}), "loaded");
}

TEST(Checkpoint, FC020_EveryRequiredTensorIsFilled) {
  for (const char* name :
       {"model.layers.1.self_attn.sinks", "model.layers.2.mlp.router.bias", "model.layers.0.mlp.experts.down_proj_bias",
        "model.layers.3.mlp.experts.gate_up_proj_scales", "model.layers.0.mlp.experts.down_proj_blocks",
        "model.embed_tokens.weight"})
    EXPECT_THAT(load_error([&](TensorMap& t, JsonObject&) { ASSERT_EQ(t.erase(name), 1u); }),
                AllOf(HasSubstr("missing"), HasSubstr(name)));
}

TEST(Checkpoint, ListsAllProblemsAtOnce) {
  const std::string error = load_error([](TensorMap& t, JsonObject&) {
    t.erase("model.norm.weight");
    t["model.layers.0.surprise"] = t.at("model.layers.0.self_attn.sinks");
    OwnedTensor& q = t.at("model.layers.1.self_attn.q_proj.weight");
    q.shape = {q.shape[1], q.shape[0]};
  });
  EXPECT_THAT(error,
              AllOf(HasSubstr("1 missing: model.norm.weight"), HasSubstr("1 unexpected: model.layers.0.surprise"),
                    HasSubstr("model.layers.1.self_attn.q_proj.weight is BF16 [96, 128]; expected F32, BF16 or F16 "
                              "[128, 96]")));
}

TEST(Checkpoint, WrongTypesAreRefused) {
  EXPECT_THAT(load_error([](TensorMap& t, JsonObject&) {
                OwnedTensor& scales = t.at("model.layers.0.mlp.experts.down_proj_scales");
                scales.dtype = DType::i8;
              }),
              AllOf(HasSubstr("down_proj_scales is I8"), HasSubstr("expected U8")));
}

TEST(Checkpoint, NanScalesAreRefused) {
  EXPECT_THAT(load_error([](TensorMap& t, JsonObject&) {
                t.at("model.layers.2.mlp.experts.gate_up_proj_scales").bytes[5] = std::byte{0xFF};
              }),
              AllOf(HasSubstr("model.layers.2.mlp.experts.gate_up_proj_scales"), HasSubstr("0xFF")));
}

TEST(Checkpoint, UnknownArchitectureAndBrokenConfig) {
  EXPECT_THAT(load_error([](TensorMap&, JsonObject& c) { c["architectures"] = JsonArray{"GrandForCausalLM"}; }),
              AllOf(HasSubstr("GrandForCausalLM"), HasSubstr("GptOssForCausalLM")));
  const TempDir dir;
  dir.write("config.json", "{\"architectures\": [");
  EXPECT_THAT(load_error(dir.path().string()), HasSubstr("not valid JSON"));
  EXPECT_THAT(load_error("no/such/model-anywhere"), HasSubstr("no/such/model-anywhere"));
}

// A head over a hidden state [2, 3] and an embedding of three tokens; `head` and `bias` add those tensors.
std::vector<double> head_logits(bool tied, bool head, bool bias, Backend backend) {
  TensorMap tensors;
  tensors["hidden.weight"] = f32_tensor({1, 2}, {2, 3});
  tensors["embed.weight"] = f32_tensor({3, 2}, {1, 0, 0, 1, 1, 1});
  if (head) tensors["lm_head.weight"] = f32_tensor({3, 2}, {0, 1, 1, 0, 0, 0});
  if (bias) tensors["lm_head.bias"] = f32_tensor({3}, {0, 4, 0});
  const auto build = [&](Builder& g) {
    const Value x = g.last_token(g.embed("hidden", 1, 2));
    g.embed("embed", 3, 2);
    g.output("logits", g.head(x, "lm_head", 3, tied ? "embed.weight" : ""));
  };
  return logits_of(tensors, build, backend);
}

TEST(Checkpoint, FC018_TiedAndUntiedHeads) {
  for (Backend backend : {Backend::ref, Backend::cpu}) {
    EXPECT_EQ(head_logits(true, false, false, backend), (std::vector<double>{2, 3, 5}));
    EXPECT_EQ(head_logits(true, true, false, backend), (std::vector<double>{3, 2, 0}));
    EXPECT_THAT([&] { head_logits(false, false, false, backend); },
                testing::ThrowsMessage<Error>(HasSubstr("lm_head.weight")));
  }
}

TEST(Checkpoint, FC019_BiasOfATiedHead) {
  for (Backend backend : {Backend::ref, Backend::cpu})
    EXPECT_EQ(head_logits(true, false, true, backend), (std::vector<double>{2, 7, 5}));
}

}  // namespace
}  // namespace moesaic
