// moesaic plan through the program: text, JSON, errors.
#include "base/json.h"
#include "cli/program.h"

namespace moesaic {
namespace {

using testing::HasSubstr;

const std::string kConfig = MOESAIC_SOURCE_DIR "/configs/gpt-oss-120b.json";

JsonObject plan_json(Arguments more, int code) {
  Arguments arguments = {"plan", kConfig, "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Finished result = run_program(arguments);
  EXPECT_EQ(result.code, code) << result.err;
  return parse_json(result.out, "plan").as_object();
}

double number(const Json& object, const char* key) {
  return object.at(key).to_number<double>();
}

TEST(Plan, TextOfAModelThatFits) {
  const Finished result = run_program({"plan", kConfig, "--device", "h200", "--batch", "4"});
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* part : {"weights: experts", "cache", "activations", "workspace", "total",
                           "fits:", "tokens of a sequence", "ms per step", "141 GB"})
    EXPECT_THAT(result.out, HasSubstr(part));
  EXPECT_THAT(result.out, testing::Not(HasSubstr("does not fit")));
}

TEST(Plan, JsonAddsUp) {
  const JsonObject plan = plan_json({"--devices", "4", "--device", "h100"}, 0);
  EXPECT_TRUE(plan.at("fits").as_bool());
  ASSERT_EQ(plan.at("devices").as_array().size(), 4u);
  for (const Json& device : plan.at("devices").as_array()) {
    double weights = 0;
    for (const auto& item : device.at("weights").as_object()) weights += item.value().to_number<double>();
    EXPECT_EQ(weights, number(device, "weight_bytes"));
    EXPECT_EQ(number(device, "total_bytes"), weights + number(device, "staging_bytes") + number(device, "cache_bytes") +
                                                 number(device, "activation_bytes") +
                                                 number(device, "workspace_bytes"));
    // Two key-value heads of each layer, 16 sequences of 8192 tokens; half of the layers keep 128 tokens only.
    EXPECT_EQ(number(device, "cache_bytes"), 16.0 * 18 * (8192 + 128) * 2 * 2 * 64 * 2);
  }
  ASSERT_EQ(plan.at("steps").as_array().size(), 2u);
  EXPECT_EQ(number(plan.at("steps").at(1), "sequences"), 16);
  EXPECT_GT(number(plan.at("steps").at(1), "seconds"), number(plan.at("steps").at(0), "seconds"));
}

TEST(Plan, ExitCodeSaysWhetherItFits) {
  const Arguments tight = {"--device", "h100", "--batch", "64"};
  EXPECT_FALSE(plan_json(tight, 1).at("fits").as_bool());
  const Finished text = run_program({"plan", kConfig, "--device", "h100", "--batch", "64"});
  EXPECT_EQ(text.code, 1);
  EXPECT_THAT(text.out, HasSubstr("does not fit"));
  const std::string advice = "or --host-memory ";
  const size_t at = text.out.find(advice);
  ASSERT_NE(at, std::string::npos) << text.out;
  const std::string host = std::to_string(std::stoi(text.out.substr(at + advice.size())));
  const JsonObject with_host = plan_json({"--device", "h100", "--batch", "64", "--host-memory", host}, 0);
  EXPECT_GT(number(with_host.at("devices").at(0), "host_expert_bytes"), 0);
  EXPECT_GT(number(with_host.at("steps").at(0), "host_bytes"), 0);
}

TEST(Plan, WithACheckpoint) {
  const Finished result = run_program({"plan", kMxfp4Model, "--context", "100"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("formats of the checkpoint"));
}

TEST(Plan, Refusals) {
  expect_refusal(run_program({"plan", kConfig, "--device", "h300"}), 1, {"h300", "h200, h100, h20, h20-141"});
  expect_refusal(run_program({"plan", kConfig, "--context", "131073"}), 1, {"131073", "131072"});
  expect_refusal(run_program({"plan", kConfig, "--devices", "5000"}), 1, {"--devices", "5000"});
  expect_refusal(run_program({"plan", kConfig, "--batch", "2000000"}), 1, {"--batch", "2000000", "1048576"});
  expect_refusal(run_program({"plan", kConfig, "--host-memory", "1e30"}), 1, {"--host-memory", "1e+30"});
  expect_refusal(run_program({"plan", kConfig, "--devices", "0"}), 2, {"--devices"});
  expect_refusal(run_program({"plan", kConfig, "--kv-cache-dtype", "fp4"}), 2, {"--kv-cache-dtype"});
  expect_refusal(run_program({"plan", "nowhere.json"}), 1, {"nowhere.json"});
}

}  // namespace
}  // namespace moesaic
