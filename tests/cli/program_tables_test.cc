// Commands that print tables, from outside: JSON on a pure stdout, and what `diff` finds.
#include <cstring>

#include "cli/program.h"
#include "support/checkpoint.h"

namespace moesaic {
namespace {

using testing::HasSubstr;

const std::string kReference = kMxfp4Model + "/golden.safetensors";

JsonObject json_of(const Arguments& arguments, int code = 0) {
  const Finished result = run_program(arguments);
  EXPECT_EQ(result.code, code) << result.err;
  EXPECT_EQ(result.err, "");
  return json_object(parse_json(result.out, "output"), "output");
}

// Doubles the weights of one tensor.
void double_bf16(OwnedTensor& tensor) {
  for (size_t i = 1; i < tensor.bytes.size(); i += 2) {
    uint16_t value;
    std::memcpy(&value, &tensor.bytes[i - 1], 2);
    if ((value & 0x7F80) != 0) value = static_cast<uint16_t>(value + 0x80);
    std::memcpy(&tensor.bytes[i - 1], &value, 2);
  }
}

Arguments diff(const std::string& model, const std::string& reference, Arguments more = {}) {
  more.insert(more.begin(), {"diff", model, "-r", reference, "--precision", "float32"});
  return more;
}

TEST(Tables, JsonParses) {
  EXPECT_EQ(json_string(json_of({"inspect", kDemoModel, "--json"}), "family", ""), "gpt_oss");
  EXPECT_FALSE(json_of({"inspect", kDemoModel, "--tensors", "--json"}).at("weights").as_array().empty());
  EXPECT_EQ(json_of({"explain", kDemoModel, "--json"}).at("phases").as_array().size(), 2u);
  EXPECT_EQ(json_of(diff(kMxfp4Model, kReference, {"--json"})).at("values").as_array().size(), 6u);
  EXPECT_EQ(json_of({"bench", kMxfp4Model, "-p", "8,4", "-b", "1", "-n", "2", "--reps", "1", "--json"})
                .at("tests")
                .as_array()
                .size(),
            3u);
  const JsonObject eval =
      json_of({"eval", kDemoModel, "--tokens", "golden", "--window", "64", "--max-windows", "2", "--json"});
  EXPECT_LT(json_number(eval, "mean_nll", ""), 5);
}

TEST(Diff, NamesTheFirstLayerThatDiffers) {
  const EditedCheckpoint edited(
      "gpt_oss-mxfp4", [](TensorMap& t, JsonObject&) { double_bf16(t.at("model.layers.2.self_attn.o_proj.weight")); });
  const Finished result = run_program(diff(edited.path(), kReference));
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr("first value out of bounds: hidden.3 "));
  const JsonObject json = json_of(diff(edited.path(), kReference, {"--json"}), 1);
  for (const Json& value : json.at("values").as_array()) {
    const std::string name(value.at("value").as_string());
    EXPECT_EQ(value.at("within").as_bool(), name < "hidden.3") << name;
  }
  EXPECT_EQ(run_program(diff(edited.path(), kReference, {"--bound", "100"})).code, 0);
}

TEST(Diff, AgainstAnotherDeviceNamesTheFirstOp) {
  const Arguments against = {"diff", kMxfp4Model, "-r", kReference, "--against", "ref"};
  EXPECT_EQ(run_program(against).code, 0);
  Arguments strict = against;
  strict.insert(strict.end(), {"--bound", "1e-6"});  // which 8-bit inputs cannot meet
  const Finished result = run_program(strict);
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr("first value out of bounds: hidden.1 "));
  EXPECT_THAT(result.out, HasSubstr("first op out of bounds: model.layers.0.mlp.experts.gate_up_proj "));
}

TEST(Diff, WrittenValuesCompareEqual) {
  const TempDir dir;
  const std::string written = (dir.path() / "ours.safetensors").string();
  EXPECT_EQ(run_program(diff(kMxfp4Model, kReference, {"--write", written})).code, 0);
  const JsonObject json = json_of(diff(kMxfp4Model, written, {"--json"}));
  ASSERT_EQ(json.at("values").as_array().size(), 6u);
  for (const Json& value : json.at("values").as_array()) EXPECT_EQ(json_number(value.as_object(), "max_abs", ""), 0);
  TensorMap tensors = read_tensors(written);
  tensors.erase("hidden.0");
  write_tensors(written, tensors);
  EXPECT_EQ(json_of(diff(kMxfp4Model, written, {"--json"})).at("values").as_array().size(), 5u);
}

TEST(Diff, NonFiniteValuesAreOutOfBounds) {
  const EditedCheckpoint edited("gpt_oss-mxfp4", [](TensorMap& t, JsonObject&) {
    const uint16_t nan = 0x7FC0;
    std::memcpy(t.at("model.layers.1.post_attention_layernorm.weight").bytes.data(), &nan, 2);
  });
  const JsonObject json = json_of(diff(edited.path(), kReference, {"--json"}), 1);
  const Json& bad = json.at("values").as_array().at(2);
  EXPECT_EQ(bad.at("value").as_string(), "hidden.2");
  EXPECT_TRUE(bad.at("relative_l2").is_null());
  EXPECT_FALSE(bad.at("within").as_bool());
}

TEST(Diff, BadReferences) {
  const auto refused = [](const std::function<void(TensorMap&)>& edit, const std::vector<std::string>& parts) {
    const TempDir dir;
    TensorMap tensors = read_tensors(kReference);
    edit(tensors);
    const std::string path = (dir.path() / "reference.safetensors").string();
    write_tensors(path, tensors);
    expect_refusal(run_program(diff(kMxfp4Model, path)), 1, parts);
  };
  refused([](TensorMap& t) { t.erase("input_ids"); }, {"reference.safetensors", "input_ids"});
  refused([](TensorMap& t) { t.at("input_ids").shape = {t.at("input_ids").shape.elements()}; },
          {"reference.safetensors", "input_ids"});
  refused([](TensorMap& t) { t.at("input_ids").bytes[4] = std::byte{1}; }, {"reference.safetensors", "input_ids"});
  refused([](TensorMap& t) { t.at("input_ids").bytes[1] = std::byte{2}; }, {"reference.safetensors", "320 tokens"});
  refused([](TensorMap& t) { t.at("logits") = t.at("hidden.0"); }, {"reference.safetensors", "logits"});
  refused([](TensorMap& t) { std::erase_if(t, [](const auto& item) { return item.first != "input_ids"; }); },
          {"reference.safetensors", "hidden.<i>"});
  expect_refusal(run_program(diff(kMxfp4Model, "no-such-file")), 1, {"no-such-file"});
}

// Where scores tie, another choice is as right: the user reads which layer, which token and how close.
TEST(Diff, NamesNearTies) {
  const std::string model = MOESAIC_SOURCE_DIR "/tests/golden/deepseek_v4", reference = model + "/golden.safetensors";
  const Finished result = run_program(diff(model, reference));
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, HasSubstr("first value out of bounds: hidden.3"));
  EXPECT_THAT(
      result.out,
      HasSubstr("near-ties explain 1 of the 1 tokens out of bounds in this layer: "
                "layers.2.attn.indexer.index_topk chose for token 34 of sequence 1 between scores 0.0e+00 apart"));
  const JsonArray ties = json_of(diff(model, reference, {"--json"}), 1).at("near_ties").as_array();
  ASSERT_EQ(ties.size(), 1u);
  EXPECT_EQ(ties[0].at("token").as_int64(), 34);
  const Finished dense = run_program(diff(kMxfp4Model, kReference, {"--bound", "1e-9"}));
  EXPECT_EQ(dense.code, 1);
  EXPECT_THAT(dense.out, testing::Not(HasSubstr("near-tie")));
}

}  // namespace
}  // namespace moesaic
