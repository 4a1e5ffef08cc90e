#include "runtime/vision_tower.h"

#include <algorithm>
#include <cstring>

#include "runtime/run.h"

namespace moesaic {
namespace {

CompileOptions limited(CompileOptions options, int64_t patches, int64_t merge) {
  options.prefill = options.decode = {patches, patches / (merge * merge), 1};
  return options;
}

}  // namespace

VisionTower::VisionTower(Graph graph, const CompileOptions& options, int64_t merge, Device& device)
    : graph_(std::move(graph)), options_(options), merge_(merge) {
  reserve(merge * merge, device);
  weights_ = device.allocate(compiled_.weights.bytes, "the vision tower's weights");
}

// Layouts depend on formats alone, so the packed weights serve every plan.
void VisionTower::reserve(int64_t patches, Device& device) {
  if (patches <= compiled_.prefill.limits.tokens) return;
  compiled_ = compile(graph_, limited(options_, patches, merge_));
  activations_ = device.allocate(compiled_.activation_bytes(), "the vision tower's activations");
  workspace_ = device.allocate(compiled_.workspace_bytes(), "the vision tower's workspace");
}

const float* VisionTower::patches_on(Device& device, std::span<const float> values) {
  if (device.shares_host_memory()) return values.data();
  const auto bytes = static_cast<int64_t>(values.size_bytes());
  if (patches_.bytes() < bytes) patches_ = device.allocate(bytes, "an image's patches");
  if (host_.bytes() < bytes) host_ = device.allocate_host(bytes, "an image's patches on the host");
  std::memcpy(host_.data(), values.data(), values.size_bytes());
  device.upload(patches_.data(), host_.data(), bytes);
  return reinterpret_cast<const float*>(patches_.data());
}

std::vector<float> VisionTower::encode(const ImagePatches& image, Device& device) {
  const int64_t patches = image.rows * image.columns, rows = patches / (merge_ * merge_);
  CHECK(patches > 0 && image.rows % merge_ == 0 && image.columns % merge_ == 0, "{} x {} patches", image.rows,
        image.columns);
  reserve(patches, device);
  const Plan& plan = compiled_.prefill;
  BatchView batch;
  batch.tokens = patches, batch.rows = rows, batch.sequences = 1;
  batch.patches = patches_on(device, image.values);
  batch.grid_rows = image.rows, batch.grid_columns = image.columns;
  const Memory memory{weights_.data(), activations_.data(), workspace_.data(), nullptr, nullptr};
  run(plan, compiled_.cache, memory, batch, device.stream());
  std::vector<float> embeddings(static_cast<size_t>(rows * plan.vocab));
  const std::byte* out =
      on_host(device, logits(plan, memory), rows * plan.vocab * dtype_bytes(graph_.activation), host_);
  if (graph_.activation == DType::f32)
    std::copy_n(reinterpret_cast<const float*>(out), embeddings.size(), embeddings.data());
  else
    std::transform(reinterpret_cast<const double*>(out), reinterpret_cast<const double*>(out) + embeddings.size(),
                   embeddings.data(), [](double v) { return static_cast<float>(v); });
  return embeddings;
}

}  // namespace moesaic
