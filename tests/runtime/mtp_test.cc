// Multi-token prediction layers of DeepSeek-V3, V3.2 and GLM-5: what is loaded, and that the numbers are those of the
// definition.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/taps.h"
#include "support/mtp_checkpoint.h"

namespace moesaic {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;
using Row = std::vector<double>;

constexpr int64_t kHidden = 64;

struct MtpCase {
  const char* model;
  int64_t from;          // the layer that is copied
  bool indexer, normed;  // it chooses positions itself; drafts go on from the normalised state
  bool copies;           // the layer has an embedding and a head of its own
};
constexpr MtpCase kCases[] = {{"deepseek_v3", 3, false, false, true},
                              {"deepseek_v3", 2, false, false, false},
                              {"deepseek_v32", 3, true, false, false},
                              {"glm_moe_dsa", 3, true, true, true},
                              {"glm_moe_dsa", 4, false, true, false}};  // layer 4 has no indexer

void add_mtp(TensorMap& t, JsonObject& config, const MtpCase& c, Rng& rng) {
  const int64_t N = config.at("num_hidden_layers").to_number<int64_t>();
  add_random_mtp(t, config, rng, c.from);
  if (!c.copies) return;
  t[layer_name(N, "embed_tokens.weight")] = normal_tensor(rng, {320, kHidden}, 0.1);
  t[layer_name(N, "shared_head.head.weight")] = normal_tensor(rng, {320, kHidden}, 0.1);
}

LoadOptions options_for(const std::string& model, Backend backend, int64_t tokens) {
  LoadOptions options;
  options.model = model;
  options.backend = backend;
  options.precision = Precision::float32;
  options.progress = false;
  options.threads = 2;
  return forward_limits(options, 1, tokens);
}

Row normalised(const Row& x, const Row& weight, double eps) {
  double square = 0;
  for (double v : x) square += v * v;
  Row y;
  for (size_t i = 0; i < x.size(); ++i)
    y.push_back(weight[i] * x[i] / std::sqrt(square / static_cast<double>(x.size()) + eps));
  return y;
}

// The definition in float64: the model's and the layer's ends here, the layer between them as the only layer of a
// model whose embedding is eh_proj's output. That such a layer is right the golden checkpoints show.
class Definition {
 public:
  Definition(const MtpCase& c, const TensorMap& tensors, const JsonObject& config)
      : case_(c), tensors_(tensors), config_(config), layer_(config.at("num_hidden_layers").to_number<int64_t>()) {}

  // Appends a position: the token after it, and the hidden state at it.
  void append(int32_t next_token, const Row& hidden) {
    const double eps = config_.at("rms_norm_eps").to_number<double>();
    const Row table = weight(case_.copies ? own("embed_tokens") : "model.embed_tokens.weight");
    const auto at = table.begin() + next_token * kHidden;
    Row both = normalised({at, at + kHidden}, weight(own("enorm")), eps);
    const Row second = normalised(hidden, weight(own("hnorm")), eps);
    both.insert(both.end(), second.begin(), second.end());
    const Row projection = weight(own("eh_proj"));
    Row z(static_cast<size_t>(kHidden));
    for (size_t i = 0; i < projection.size(); ++i) z[i / both.size()] += projection[i] * both[i % both.size()];
    inputs_.insert(inputs_.end(), z.begin(), z.end());
  }
  // Of all positions so far, [positions, vocab].
  Row logits();
  // What the last position leaves for a draft one further.
  const Row& carry() const { return carry_; }

 private:
  std::string own(const std::string& name) const { return layer_name(layer_, name + ".weight"); }
  Row weight(const std::string& name) const { return values_of(tensors_.at(name)); }

  static Row last_row(const Row& all, int64_t width) { return {all.end() - width, all.end()}; }

  const MtpCase case_;
  const TensorMap& tensors_;
  const JsonObject& config_;
  const int64_t layer_;
  Row inputs_, carry_;
};

Row Definition::logits() {
  const EditedCheckpoint model(case_.model, [&](TensorMap& t, JsonObject& config) {
    t.clear();
    for (const auto& [name, tensor] : tensors_)
      if (name.starts_with(layer_name(layer_, ""))) t[name] = tensor;
    copy_layer(t, layer_, 0);
    std::erase_if(t, [&](const auto& item) { return item.first.starts_with(layer_name(layer_, "")); });
    for (const char* end : {"enorm", "hnorm", "eh_proj", "shared_head.norm", "embed_tokens", "shared_head.head"})
      t.erase(layer_name(0, std::string(end) + ".weight"));
    Row table = inputs_;
    table.resize(320 * kHidden);
    t["model.embed_tokens.weight"] = float_tensor({320, kHidden}, table);
    t["model.norm.weight"] = tensors_.at(own("shared_head.norm"));
    t["lm_head.weight"] = tensors_.at(case_.copies ? own("shared_head.head") : "lm_head.weight");
    config["num_hidden_layers"] = 1, config["first_k_dense_replace"] = 0, config["num_nextn_predict_layers"] = 0;
    for (const char* lists : {"mlp_layer_types", "layer_types", "indexer_types"}) config.erase(lists);
    if (!case_.indexer) config["architectures"] = JsonArray{"DeepseekV3ForCausalLM"};
  });
  Ids ids;
  for (size_t i = 0; i < inputs_.size() / kHidden; ++i) ids.push_back(static_cast<int32_t>(i));
  LoadedModel loaded = load_model(options_for(model.path(), Backend::ref, std::ssize(ids)));
  const Forward got = forward(loaded, {ids}, true);
  for (const auto& [label, tap] : got.ops)
    if (label.ends_with(case_.normed ? "model.norm" : "last_token")) carry_ = last_row(tap.values, kHidden);
  return got.named.back().second.values;
}

double relative_l2(const Row& got, const Row& want) {
  double difference = 0, square = 0;
  for (size_t i = 0; i < want.size(); ++i)
    difference += (got[i] - want[i]) * (got[i] - want[i]), square += want[i] * want[i];
  return std::sqrt(difference / square);
}

Row row_of(const LoadedModel& loaded, const std::byte* values, int64_t row, int64_t width) {
  Row out;
  for (int64_t i = row * width; i < (row + 1) * width; ++i)
    out.push_back(loaded.device->info().backend == Backend::ref ? reinterpret_cast<const double*>(values)[i]
                                                                : reinterpret_cast<const float*>(values)[i]);
  return out;
}

struct Compared {
  const MtpCase& c;
  Backend backend;
  Rng& rng;
};

// A prompt's hidden states through the layer, then two drafts one after the other, all against the definition.
void compare(const Compared& x) {
  TensorMap tensors;
  JsonObject config;
  const EditedCheckpoint model(x.c.model, [&](TensorMap& t, JsonObject& json) {
    add_mtp(t, json, x.c, x.rng);
    tensors = t, config = json;
  });
  constexpr int64_t kTokens = 24;  // more than index_topk = 16
  LoadOptions options = options_for(model.path(), x.backend, kTokens + 2);
  options.speculative_tokens = 3;
  LoadedModel loaded = load_model(options);
  Ids ids;
  for (int64_t i = 0; i < kTokens + 2; ++i) ids.push_back(static_cast<int32_t>(x.rng.below(318)));
  forward(loaded, {{ids.begin(), ids.begin() + kTokens - 1}});
  const std::byte* hidden = hidden_states(loaded.compiled.prefill, loaded.memory());
  Definition definition(x.c, tensors, config);
  for (int64_t t = 0; t + 1 < kTokens; ++t)
    definition.append(ids[static_cast<size_t>(t) + 1], row_of(loaded, hidden, t, kHidden));

  Batch batch(loaded.draft->start_limits(), loaded.draft->next_limits(), loaded.max_blocks());
  const Ids blocks(static_cast<size_t>(loaded.max_blocks()), 0);
  batch.add({ids.data() + 1, static_cast<size_t>(kTokens - 1)}, 0, blocks, 0, kTokens - 1);
  batch.set_hidden_rows(0);
  loaded.draft->start(batch.view(), hidden, loaded.device->stream());
  Row got;
  for (int64_t t = 0; t + 1 < kTokens; ++t) {
    const Row row = row_of(loaded, loaded.draft->logits(), t, 320);
    got.insert(got.end(), row.begin(), row.end());
  }
  EXPECT_LE(relative_l2(got, definition.logits()), 1e-5);

  for (int64_t position = kTokens - 1, row = kTokens - 2; position < kTokens + 1; ++position, row = 0) {
    const int32_t token = ids[static_cast<size_t>(position) + 1];
    batch.clear();
    batch.add({&token, 1}, position, blocks, 0, 1);
    batch.set_hidden_rows(row);
    loaded.draft->next(batch.view(), loaded.device->stream());
    definition.append(token, Row(definition.carry()));
    const Row want = definition.logits();
    EXPECT_LE(relative_l2(row_of(loaded, loaded.draft->logits(), 0, 320), {want.end() - 320, want.end()}), 1e-5)
        << "draft at " << position;
  }
}

TEST(Mtp, NumbersEqualTheDefinition) {
  Rng rng = fresh_rng();
  for (const MtpCase& c : kCases)
    for (Backend backend : {Backend::ref, Backend::cpu}) {
      SCOPED_TRACE(fmt::format("{} from layer {} on {}", c.model, c.from, backend_name(backend)));
      compare({c, backend, rng});
    }
}

std::string error_of(LoadOptions options) {
  options.progress = false;
  options.max_model_len = 64;
  try {
    load_model(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "loaded";
}

std::string error_with(const std::string& model, int64_t tokens) {
  LoadOptions options;
  options.model = model;
  options.speculative_tokens = tokens;
  return error_of(options);
}

TEST(Mtp, LayersAreLoadedOnlyWhenAskedFor) {
  for (const MtpCase& c : kCases) {
    Rng rng(1);
    const EditedCheckpoint model(c.model, [&](TensorMap& t, JsonObject& config) { add_mtp(t, config, c, rng); });
    LoadedModel plain = load_model(options_for(model.path(), Backend::cpu, 8));
    EXPECT_EQ(plain.draft, nullptr);
    const ModelSource source = open_model(model.path(), true);
    const Binding binding = build_graph(source, Backend::cpu, DType::f32).binding;
    EXPECT_TRUE(binding.complete());
    EXPECT_FALSE(binding.skipped.empty());
    const BoundGraph drafts = build_draft_graph(source, Backend::cpu, DType::f32);
    EXPECT_TRUE(drafts.binding.complete());
    EXPECT_EQ(drafts.graph.caches.size(), c.indexer ? 2u : 1u);
    size_t used = 0, shared = 0;
    for (const WeightSource& weight : drafts.binding.sources)
      for (const StoredTensor& tensor : weight.tensors)
        (tensor.name().starts_with(source.model.mtp->prefix) ? used : shared) += 1;
    EXPECT_EQ(used, binding.skipped.size()) << "a tensor of the layer is not used";
    EXPECT_EQ(shared, c.copies ? 0u : 2u) << "embedding and head";
    EXPECT_EQ(error_with(model.path(), 1), "loaded");
    EXPECT_EQ(print(parse_graph(print(drafts.graph))), print(drafts.graph));
  }
}

TEST(Mtp, OnlyTheFirstOfSeveralLayersIsUsed) {
  Rng rng(1);
  const EditedCheckpoint model("deepseek_v3", [&](TensorMap& t, JsonObject& config) {
    add_mtp(t, config, kCases[0], rng);
    copy_layer(t, 4, 5);
    config["num_nextn_predict_layers"] = 2;
  });
  EXPECT_EQ(error_with(model.path(), 1), "loaded");
}

TEST(Mtp, WhatCannotDraftIsRefused) {
  EXPECT_THAT(error_with(golden("gpt_oss-mxfp4"), 2),
              AllOf(HasSubstr("--num-speculative-tokens is 2"), HasSubstr("gpt_oss"), HasSubstr("leave the flag out")));
  EXPECT_THAT(error_with(golden("deepseek_v32"), 2), HasSubstr("num_nextn_predict_layers"));
  EXPECT_THAT(error_with(golden("deepseek_v4"), 2), HasSubstr("deepseek_v4 model has no"));
  EXPECT_THAT(error_with(golden("kimi_k25"), 2), HasSubstr("kimi_k25 model has no"));
  EXPECT_THAT(error_with(golden("deepseek_v3"), 2),  // its config says 1
              AllOf(HasSubstr("published without"), HasSubstr("model.layers.4.*"), HasSubstr(golden("deepseek_v3"))));
  EXPECT_THAT(error_with(golden("deepseek_v3"), -1), AllOf(HasSubstr("-1"), HasSubstr("0 (off) to 16")));
  EXPECT_THAT(error_with(golden("deepseek_v3"), 17), HasSubstr("17"));
}

TEST(Mtp, IncompleteLayersAreRefused) {
  const auto error_after = [](const std::function<void(TensorMap&)>& edit) {
    Rng rng(1);
    const EditedCheckpoint model("glm_moe_dsa", [&](TensorMap& t, JsonObject& config) {
      add_mtp(t, config, kCases[3], rng);
      edit(t);
    });
    return error_with(model.path(), 1);
  };
  EXPECT_EQ(error_after([](TensorMap&) {}), "loaded");
  EXPECT_THAT(error_after([](TensorMap& t) { t.erase("model.layers.5.eh_proj.weight"); }),
              AllOf(HasSubstr("missing"), HasSubstr("model.layers.5.eh_proj.weight")));
  EXPECT_THAT(error_after([](TensorMap& t) { t.erase("model.layers.5.self_attn.indexer.wk.weight"); }),
              AllOf(HasSubstr("missing"), HasSubstr("indexer.wk")));
  EXPECT_THAT(error_after([](TensorMap& t) { t["model.layers.5.extra.weight"] = float_tensor({1}, {1}); }),
              AllOf(HasSubstr("unexpected"), HasSubstr("model.layers.5.extra.weight")));
  EXPECT_THAT(error_after([](TensorMap& t) {
                t["model.layers.5.hnorm.weight"] = float_tensor({3}, {1, 1, 1});
              }),
              AllOf(HasSubstr("mismatched"), HasSubstr("hnorm")));
}

TEST(Mtp, RandomWeightsNeedTheConfigAlone) {
  LoadOptions options;
  options.model = golden("deepseek_v3");
  options.dummy_weights = true;
  options.speculative_tokens = 2;
  EXPECT_EQ(error_of(options), "loaded");
}

}  // namespace
}  // namespace moesaic
