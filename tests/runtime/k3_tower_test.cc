// Kimi K3's vision tower on random weights, against the steps of its specification written out plainly in float64.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "base/fresh_rng.h"
#include "models/moonvit.h"
#include "support/run_graph.h"

namespace moesaic {
namespace {

using Rows = std::vector<std::vector<double>>;

constexpr int64_t kHidden = 24, kHeads = 2, kHeadDim = 16, kInner = 40, kPatch = 2, kGrid = 6, kLayers = 2, kText = 20;
constexpr const char* kConfig = R"({"media_placeholder_token_id": 7, "vision_config": {"patch_size": 2,
  "init_pos_emb_height": 6, "init_pos_emb_width": 6, "vt_num_attention_heads": 2, "vt_num_hidden_layers": 2,
  "vt_hidden_size": 24, "vt_intermediate_size": 40, "qkv_hidden_size": 32, "merge_kernel_size": [2, 2],
  "projector_ln_eps": 1e-5}})";

// Random weights by name, as a checkpoint and as numbers.
class Weights {
 public:
  explicit Weights(Rng& rng) : rng_(rng) {
    add("vision_tower.patch_embed.proj.weight", {kHidden, 3, kPatch, kPatch}, 0.3);
    add("vision_tower.patch_embed.pos_emb.weight", {kGrid, kGrid, kHidden}, 0.5);
    for (int64_t i = 0; i < kLayers; ++i) {
      const std::string block = fmt::format("vision_tower.encoder.blocks.{}.", i);
      add(block + "norm0.weight", {kHidden}, 0.2, 1);
      add(block + "norm1.weight", {kHidden}, 0.2, 1);
      add(block + "wqkv.weight", {3 * kHeads * kHeadDim, kHidden}, 0.3);
      add(block + "wo.weight", {kHidden, kHeads * kHeadDim}, 0.3);
      add(block + "mlp.fc0.weight", {kInner, kHidden}, 0.3);
      add(block + "mlp.fc1.weight", {kHidden, kInner}, 0.3);
    }
    add("vision_tower.encoder.final_layernorm.weight", {kHidden}, 0.2, 1);
    add("mm_projector.proj.0.weight", {4 * kHidden, 4 * kHidden}, 0.1);
    add("mm_projector.proj.2.weight", {kText, 4 * kHidden}, 0.1);
    add("mm_projector.post_norm.weight", {kText}, 0.2, 1);
  }

  TensorMap tensors;
  std::map<std::string, std::vector<double>> values;

 private:
  void add(const std::string& name, const Shape& shape, double scale, double centre = 0) {
    std::vector<float> numbers(static_cast<size_t>(shape.elements()));
    for (float& v : numbers) v = static_cast<float>(centre + scale * rng_.normal());
    values[name] = {numbers.begin(), numbers.end()};
    tensors[name] = f32_tensor(shape, numbers);
  }
  Rng& rng_;
};

Rows times(const Rows& x, const std::vector<double>& w) {
  Rows out;
  for (const auto& row : x) {
    out.emplace_back(w.size() / row.size());
    for (size_t n = 0; n < out.back().size(); ++n)
      for (size_t k = 0; k < row.size(); ++k) out.back()[n] += w[n * row.size() + k] * row[k];
  }
  return out;
}

Rows normed(Rows x, const std::vector<double>& w, double eps) {
  for (auto& row : x) {
    double square = 0;
    for (double v : row) square += v * v;
    for (size_t h = 0; h < row.size(); ++h) row[h] *= w[h] / std::sqrt(square / static_cast<double>(row.size()) + eps);
  }
  return x;
}

Rows sum(Rows x, const Rows& y) {
  for (size_t t = 0; t < x.size(); ++t)
    for (size_t h = 0; h < x[t].size(); ++h) x[t][h] += y[t][h];
  return x;
}

// Steps 1 and 2: half-pixel centres, clamped; two neighbours each way.
void add_positions(Rows& x, const std::vector<double>& table, int64_t rows, int64_t columns) {
  const auto source = [](int64_t i, int64_t size) {
    return std::clamp((static_cast<double>(i) + 0.5) * kGrid / static_cast<double>(size) - 0.5, 0.0, kGrid - 1.0);
  };
  const auto at = [&](int64_t r, int64_t c, size_t h) {
    return table[static_cast<size_t>((std::min(r, kGrid - 1) * kGrid + std::min(c, kGrid - 1)) * kHidden) + h];
  };
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      const double y = source(r, rows), z = source(c, columns);
      const auto y0 = static_cast<int64_t>(y), z0 = static_cast<int64_t>(z);
      const double v = y - static_cast<double>(y0), w = z - static_cast<double>(z0);
      for (size_t h = 0; h < kHidden; ++h)
        x[static_cast<size_t>(r * columns + c)][h] += (1 - v) * ((1 - w) * at(y0, z0, h) + w * at(y0, z0 + 1, h)) +
                                                      v * ((1 - w) * at(y0 + 1, z0, h) + w * at(y0 + 1, z0 + 1, h));
    }
}

// Complex slot 2i turns with the column, slot 2i + 1 with the row.
void turn(double* head, int64_t row, int64_t column) {
  for (int64_t slot = 0; slot < kHeadDim / 2; ++slot) {
    const double frequency = std::pow(10000.0, -4.0 * static_cast<double>(slot / 2) / kHeadDim);
    const double angle = static_cast<double>(slot % 2 == 0 ? column : row) * frequency;
    const double a = head[2 * slot], b = head[2 * slot + 1];
    head[2 * slot] = a * std::cos(angle) - b * std::sin(angle);
    head[2 * slot + 1] = a * std::sin(angle) + b * std::cos(angle);
  }
}

Rows attended(Rows qkv, int64_t columns) {
  const int64_t T = static_cast<int64_t>(qkv.size()), width = kHeads * kHeadDim;
  for (int64_t t = 0; t < T; ++t)
    for (int64_t i = 0; i < 2 * kHeads; ++i)
      turn(qkv[static_cast<size_t>(t)].data() + i * kHeadDim, t / columns, t % columns);
  Rows out(qkv.size(), std::vector<double>(static_cast<size_t>(width)));
  for (int64_t head = 0; head < kHeads; ++head)
    for (size_t t = 0; t < qkv.size(); ++t) {
      const auto part = [&](size_t row, int64_t which) { return qkv[row].data() + which * width + head * kHeadDim; };
      double total = 0;
      for (size_t key = 0; key < qkv.size(); ++key) {
        double score = 0;
        for (int64_t d = 0; d < kHeadDim; ++d) score += part(t, 0)[d] * part(key, 1)[d];
        const double weight = std::exp(score / std::sqrt(static_cast<double>(kHeadDim)));
        total += weight;
        for (int64_t d = 0; d < kHeadDim; ++d)
          out[t][static_cast<size_t>(head * kHeadDim + d)] += weight * part(key, 2)[d];
      }
      for (int64_t d = 0; d < kHeadDim; ++d) out[t][static_cast<size_t>(head * kHeadDim + d)] /= total;
    }
  return out;
}

template <typename F>
Rows each(Rows x, F f) {
  for (auto& row : x)
    for (double& v : row) v = f(v);
  return x;
}

Rows merged(const Rows& x, int64_t rows, int64_t columns) {
  Rows out;
  for (int64_t r = 0; r < rows; r += 2)
    for (int64_t c = 0; c < columns; c += 2) {
      out.emplace_back();
      for (int64_t at : {r * columns + c, r * columns + c + 1, (r + 1) * columns + c, (r + 1) * columns + c + 1})
        out.back().insert(out.back().end(), x[static_cast<size_t>(at)].begin(), x[static_cast<size_t>(at)].end());
    }
  return out;
}

Rows expected(Weights& w, const std::vector<float>& pixels, int64_t rows, int64_t columns) {
  constexpr double kEps = 0x1p-7;
  constexpr int64_t kWidth = 3 * kPatch * kPatch;
  Rows patches;
  for (auto p = pixels.begin(); p != pixels.end(); p += kWidth) patches.emplace_back(p, p + kWidth);
  Rows x = times(patches, w.values["vision_tower.patch_embed.proj.weight"]);
  add_positions(x, w.values["vision_tower.patch_embed.pos_emb.weight"], rows, columns);
  const auto gelu_tanh = [](double v) {
    return 0.5 * v * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (v + 0.044715 * v * v * v)));
  };
  const auto gelu = [](double v) { return 0.5 * v * (1 + std::erf(v / std::numbers::sqrt2)); };
  for (int64_t i = 0; i < kLayers; ++i) {
    const auto of = [&](const char* name) {
      return w.values[fmt::format("vision_tower.encoder.blocks.{}.{}.weight", i, name)];
    };
    x = sum(x, times(attended(times(normed(x, of("norm0"), kEps), of("wqkv")), columns), of("wo")));
    x = sum(x, times(each(times(normed(x, of("norm1"), kEps), of("mlp.fc0")), gelu_tanh), of("mlp.fc1")));
  }
  x = merged(normed(x, w.values["vision_tower.encoder.final_layernorm.weight"], kEps), rows, columns);
  x = times(each(times(x, w.values["mm_projector.proj.0.weight"]), gelu), w.values["mm_projector.proj.2.weight"]);
  return normed(x, w.values["mm_projector.post_norm.weight"], 1e-5);
}

std::vector<float> tower_rows(const TensorMap& source, Backend backend, const ImagePatches& image) {
  const TempDir dir;
  TensorMap tensors = source;
  write_tensors(dir.path() / "model.safetensors", tensors);
  const Shards shards = Shards::open(dir.path());
  const Vision vision = moonvit::parse(parse_json(kConfig, "config").as_object(), moonvit::Kind::k3, kText, "config");
  EXPECT_EQ(vision.placeholder, 7);
  Graph graph;
  const BuildOptions options{.activation = activation_dtype(backend), .cache = DType::f32, .has_tensor = {}};
  Builder builder(graph, options);
  vision.build(builder);
  const Binding binding = bind_weights(graph, shards);
  check_binding(binding, "checkpoint");
  const auto device = make_cpu_device(backend, 2);
  CompileOptions compile_options;
  compile_options.device = device->info();
  VisionTower tower(std::move(graph), compile_options, vision.merge, *device);
  Progress progress("", 0, ProgressUnit::bytes, false);
  MemorySink sink({tower.weights().data(), static_cast<size_t>(tower.weights().bytes())});
  load_weights(tower.weight_map(), binding, shards, sink, *device->stream().pool, progress);
  return tower.encode(image, *device);
}

TEST(KimiK3Tower, FollowsItsSpecification) {
  Rng rng = fresh_rng();
  Weights weights(rng);
  for (auto [rows, columns] : {std::pair<int64_t, int64_t>{6, 6}, {2, 4}, {10, 8}}) {
    std::vector<float> pixels(static_cast<size_t>(rows * columns * 3 * kPatch * kPatch));
    for (float& v : pixels) v = static_cast<float>(rng.uniform(-1, 1));
    const Rows want = expected(weights, pixels, rows, columns);
    for (Backend backend : {Backend::ref, Backend::cpu}) {
      const std::vector<float> got = tower_rows(weights.tensors, backend, {pixels, rows, columns});
      ASSERT_EQ(got.size(), want.size() * kText);
      double difference = 0, square = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        const double w = want[i / kText][i % kText];
        difference += (got[i] - w) * (got[i] - w), square += w * w;
      }
      // The angles are float32 products and the rows come out as float32, in the reference too.
      EXPECT_LE(std::sqrt(difference / square), backend == Backend::ref ? 2e-7 : 1e-5) << rows << " x " << columns;
    }
  }
}

}  // namespace
}  // namespace moesaic
