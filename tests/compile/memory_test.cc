// The memory plan, checked by a test that shares no code with the planner; kernels chosen and refused; one workspace.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "compile/compile.h"
#include "models/model.h"

namespace moesaic {
namespace {

Graph graph_with(int64_t layers, int64_t experts = 8) {
  const std::string text = fmt::format(
      R"({{"architectures": ["GptOssForCausalLM"], "num_hidden_layers": {}, "hidden_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 112, "intermediate_size": 64, "num_local_experts": {},
        "num_experts_per_tok": 3, "sliding_window": 8}})",
      layers, experts);
  Graph graph;
  const BuildOptions options;
  Builder builder(graph, options);
  parse_model(parse_json(text, "config").as_object(), "config").build(builder);
  for (size_t i = 0; i < graph.value_count(); ++i) {
    const Value value{static_cast<int>(i)};
    if (graph.info(value).weight < 0) continue;
    WeightSpec& w = graph.weights[static_cast<size_t>(graph.info(value).weight)];
    if (w.kind == WeightKind::experts) w.format = Format::mxfp4;
    else w.dtype = DType::bf16;
    graph.info(value).type.dtype = w.dtype;
  }
  return graph;
}

CompileOptions options_for(Precision precision) {
  CompileOptions options;
  options.device = {.backend = Backend::cpu, .name = "cpu", .isa = cpu_isa(), .threads = 2, .memory_bytes = 1 << 30};
  options.precision = precision;
  options.prefill = {37, 5, 5};
  options.decode = {6, 6, 6};
  return options;
}

// Walks the plan with a map of which step last wrote each byte: every input must still hold what its producer wrote.
void expect_no_overlap(const Plan& plan) {
  constexpr int64_t kGrain = 64;
  std::vector<int> writer(static_cast<size_t>(plan.activation_bytes / kGrain + 1), -1);
  std::map<int64_t, std::pair<int, int64_t>> produced;  // offset -> step, bytes
  const Bounds bounds{plan.limits.tokens, plan.limits.rows};
  const auto each_grain = [&](int64_t offset, int64_t bytes, auto body) {
    for (int64_t b = offset / kGrain; b < (offset + bytes + kGrain - 1) / kGrain; ++b)
      body(writer[static_cast<size_t>(b)]);
  };
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    const int now = static_cast<int>(i);
    for (size_t k = 0; k < step.inputs.size(); ++k) {
      if (step.inputs[k].region != Region::activations) continue;
      ASSERT_TRUE(produced.contains(step.inputs[k].offset)) << step.label;
      const auto [by, bytes] = produced.at(step.inputs[k].offset);
      each_grain(step.inputs[k].offset, bytes, [&, from = by](int w) { EXPECT_EQ(w, from) << step.label; });
    }
    for (size_t k = 0; k < step.outputs.size(); ++k) {
      const int64_t bytes = step.desc.outputs[k].type.bytes(bounds);
      EXPECT_LE(step.outputs[k].offset + bytes, plan.activation_bytes);
      produced[step.outputs[k].offset] = {now, bytes};
      each_grain(step.outputs[k].offset, bytes, [&](int& w) {
        EXPECT_NE(w, now) << "two outputs of " << step.label << " share memory";
        w = now;
      });
    }
    for (size_t k = 0; k < step.inputs.size(); ++k) {  // outputs must not have destroyed the inputs
      if (step.inputs[k].region != Region::activations) continue;
      const auto [by, bytes] = produced.at(step.inputs[k].offset);
      each_grain(step.inputs[k].offset, bytes, [&, from = by](int w) { EXPECT_EQ(w, from) << step.label; });
    }
  }
  ASSERT_TRUE(produced.contains(plan.logits.offset));
}

TEST(Memory, NothingIsOverwrittenBeforeItsLastUse) {
  for (Precision precision : {Precision::float32, Precision::fast}) {
    const Compiled compiled = compile(graph_with(3), options_for(precision));
    expect_no_overlap(compiled.prefill);
    expect_no_overlap(compiled.decode);
  }
}

TEST(Memory, ActivationsAreReused) {
  const Compiled two = compile(graph_with(2), options_for(Precision::fast));
  const Compiled eight = compile(graph_with(8), options_for(Precision::fast));
  EXPECT_EQ(two.prefill.activation_bytes, eight.prefill.activation_bytes);
  int64_t sum = 0;
  for (const Allocation& a : eight.prefill.allocations) sum += a.bytes;
  EXPECT_LT(eight.prefill.activation_bytes * 5, sum);
}

TEST(Memory, OneWorkspaceWhateverTheDepth) {
  const Compiled two = compile(graph_with(2), options_for(Precision::fast));
  const Compiled nine = compile(graph_with(9), options_for(Precision::fast));
  EXPECT_GT(two.workspace_bytes(), 0);
  EXPECT_EQ(two.workspace_bytes(), nine.workspace_bytes());
  int64_t most = 0;
  for (const Step& step : nine.prefill.steps) most = std::max(most, step.workspace_bytes);
  EXPECT_EQ(nine.prefill.workspace_bytes, most);
}

TEST(Memory, WeightsTakeTheirPackedSize) {
  const Graph graph = graph_with(2);
  const Compiled compiled = compile(graph, options_for(Precision::fast));
  int64_t end = 0;
  for (const WeightSlot& slot : compiled.weights.slots) {
    EXPECT_GE(slot.offset, end);
    end = slot.offset + slot.bytes;
    if (slot.spec.kind == WeightKind::vector) continue;
    EXPECT_EQ(slot.bytes, weight_bytes(slot.spec)) << slot.spec.name;
  }
  EXPECT_EQ(weight_bytes({.name = "x",
                          .kind = WeightKind::experts,
                          .shape = {8, 128, 96},
                          .fallback = "",
                          .fused = "",
                          .format = Format::mxfp4}),
            8 * 128 * 96 / 32 * 17);
}

TEST(Selection, SaysWhyAPreferredKernelRefused) {
  const Compiled exact = compile(graph_with(1), options_for(Precision::float32));
  bool seen = false;
  for (const Step& step : exact.prefill.steps) {
    if (step.desc.op != Op::expert_swiglu) continue;
    seen = true;
    EXPECT_STREQ(step.kernel->name, "expert_swiglu.f32.cpu");
    ASSERT_EQ(step.refused.size(), 1u);
    EXPECT_STREQ(step.refused[0].kernel, "expert_swiglu.q8.cpu");
    EXPECT_THAT(step.refused[0].reason, testing::HasSubstr("float32"));
  }
  EXPECT_TRUE(seen);
}

TEST(Selection, NoKernelIsOneErrorWithEveryReason) {
  CompileOptions options = options_for(Precision::fast);
  options.skip = {"expand_moe", "fuse_expert_swiglu"};  // the CPU backend has no kernel for a whole moe
  EXPECT_THAT([&] { compile(graph_with(1), options); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("no kernel runs")));
  options.skip = {"no_such_pass"};
  EXPECT_THAT([&] { compile(graph_with(1), options); },
              testing::ThrowsMessage<Error>(
                  testing::AllOf(testing::HasSubstr("no_such_pass"), testing::HasSubstr("expand_moe"))));
}

TEST(Passes, ObserverSeesEveryStage) {
  CompileOptions options = options_for(Precision::fast);
  std::vector<std::string> seen;
  options.observe = [&](Phase phase, const std::string& pass, const Graph&) {
    if (phase == Phase::decode) seen.push_back(pass);
  };
  compile(graph_with(1), options);
  EXPECT_THAT(seen, testing::ElementsAre("build", "infer_shapes", "fold_mla", "expand_moe", "fuse_expert_swiglu",
                                         "fuse_add_norm", "gather_linears"));
  std::vector<std::string> on_a_gpu;
  for (const Pass& pass : passes(Backend::cuda, Phase::prefill, Precision::fp8)) on_a_gpu.emplace_back(pass.name);
  EXPECT_THAT(on_a_gpu, testing::IsSupersetOf({"fuse_rope", "quantize_experts"}));
}

}  // namespace
}  // namespace moesaic
