// Kimi K2.5's vision tower and its rows in the text model, against the reference's values.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "engine/image_prompt.h"
#include "engine/taps.h"
#include "support/golden_values.h"

namespace moesaic {
namespace {

std::vector<double> floats(const OwnedTensor& t) {
  std::vector<float> narrow(static_cast<size_t>(t.shape.elements()));
  std::memcpy(narrow.data(), t.bytes.data(), t.bytes.size());
  return {narrow.begin(), narrow.end()};
}

std::vector<int64_t> integers(const OwnedTensor& t) {
  std::vector<int64_t> out(static_cast<size_t>(t.shape.elements()));
  std::memcpy(out.data(), t.bytes.data(), t.bytes.size());
  return out;
}

class KimiK25 : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (GetParam() == Backend::cuda && !cuda_unavailable().empty()) GTEST_SKIP() << cuda_unavailable();
    golden_ = read_tensors(golden("kimi_k25") + "/golden.safetensors");
    const TensorMap image = read_tensors(golden("kimi_k25") + "/image.safetensors");
    const std::vector<double> wide = floats(image.at("pixel_values"));
    pixels_.assign(wide.begin(), wide.end());
    grid_ = integers(image.at("image_grid_thw"));
    for (int64_t id : integers(golden_.at("input_ids"))) ids_.push_back(static_cast<int32_t>(id));
    LoadOptions options;
    options.model = golden("kimi_k25");
    options.backend = GetParam();
    options.precision = Precision::float32;
    options.progress = false;
    options.threads = 2;
    loaded_ = load_model(forward_limits(options, 1, static_cast<int64_t>(ids_.size())));
  }
  std::vector<float> rows() { return loaded_.vision->encode({pixels_, grid_[1], grid_[2]}, *loaded_.device); }

  TensorMap golden_;
  std::vector<float> pixels_;
  std::vector<int64_t> grid_;
  std::vector<int32_t> ids_;
  LoadedModel loaded_;
};

// hidden.0 holds the embeddings after the image's rows have replaced those of its tokens.
TEST_P(KimiK25, TheTowersRowsAreTheReferences) {
  const std::vector<float> got = rows();
  const std::vector<double> want = floats(golden_.at("hidden.0"));
  const auto H = static_cast<size_t>(loaded_.model.hidden);
  size_t row = 0;
  for (size_t t = 0; t < ids_.size(); ++t) {
    if (ids_[t] != loaded_.model.vision->placeholder) continue;
    const std::vector<double> ours(got.begin() + static_cast<long>(row * H),
                                   got.begin() + static_cast<long>((row + 1) * H));
    EXPECT_LE(relative_l2(ours, std::span(want).subspan(t * H, H)), 1e-5) << "row " << row;
    ++row;
  }
  EXPECT_EQ(row * H, got.size());
  EXPECT_EQ(row, 20u);
}

TEST_P(KimiK25, EveryLayerIsTheReferences) {
  const Forward got = forward(loaded_, {ids_}, false, rows());
  int compared = 0;
  for (const auto& [name, tap] : got.named) {
    EXPECT_LE(relative_l2(tap.values, floats(golden_.at(name))), 1e-5) << name;
    ++compared;
  }
  EXPECT_EQ(compared, 6);  // hidden.0 to hidden.4 and the logits
}

// From the image file on: the bounds of pixels, features and logits, of which the reference's pixels are the middle.
TEST_P(KimiK25, TheFileGivesTheReferencesLogits) {
  const PatchOptions options = load_patch_options(golden("kimi_k25"), *loaded_.model.vision);
  const TensorMap image = read_tensors(golden("kimi_k25") + "/image.safetensors");
  const OwnedTensor& rgb = image.at("image_rgb");
  Image source = make_image(rgb.shape[1], rgb.shape[0], 3);
  std::memcpy(source.pixels.data(), rgb.bytes.data(), rgb.bytes.size());
  const std::vector<float> reference_rows = rows();
  const PatchedImage patched = make_patches(source, options);
  ASSERT_EQ(patched.values.size(), pixels_.size());
  for (size_t i = 0; i < pixels_.size(); ++i) EXPECT_NEAR(patched.values[i], pixels_[i], 1.0 / 255) << i;
  pixels_ = patched.values;
  const std::vector<float> ours = rows();
  const std::vector<double> wide(ours.begin(), ours.end());
  EXPECT_LE(relative_l2(wide, std::vector<double>(reference_rows.begin(), reference_rows.end())), 1e-4);
  const Forward got = forward(loaded_, {ids_}, false, ours);
  EXPECT_LE(relative_l2(got.named.back().second.values, floats(golden_.at("logits"))), 1e-4);
}

TEST_P(KimiK25, ALargerImageBetweenChangesNothing) {
  const std::vector<float> before = rows();
  std::vector<float> large(static_cast<size_t>(12 * 14 * 48), 0.25f);
  EXPECT_EQ(loaded_.vision->encode({large, 12, 14}, *loaded_.device).size(),
            static_cast<size_t>(6 * 7 * loaded_.model.hidden));
  EXPECT_EQ(rows(), before);
}

INSTANTIATE_TEST_SUITE_P(, KimiK25, testing::Values(Backend::ref, Backend::cpu, Backend::cuda),
                         [](const auto& backend) { return backend_name(backend.param); });

}  // namespace
}  // namespace moesaic
