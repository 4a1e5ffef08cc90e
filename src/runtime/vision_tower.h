// VisionTower: a compiled vision tower with its weights. It runs one image at a time, on a plan of its own that grows
// with the largest image so far: a model that is never shown an image needs no memory for activations.
#pragma once

#include <span>
#include <vector>

#include "compile/compile.h"
#include "weights/bind.h"

namespace moesaic {

// One image as patches, row by row.
struct ImagePatches {
  std::span<const float> values;  // [rows * columns, patch width]
  int64_t rows = 0, columns = 0;  // of the grid, multiples of the tower's merge
};

class VisionTower {
 public:
  // Compiles the tower, for the layouts of its weights, and allocates room for them.
  VisionTower(Graph graph, const CompileOptions& options, int64_t merge, Device& device);

  const WeightMap& weight_map() const { return compiled_.weights; }
  const Buffer& weights() const { return weights_; }  // filled by whoever made this

  // The image's embeddings [rows * columns / merge^2, hidden]. One call at a time.
  std::vector<float> encode(const ImagePatches& image, Device& device);

 private:
  void reserve(int64_t patches, Device& device);
  const float* patches_on(Device& device, std::span<const float> values);

  const Graph graph_;
  CompileOptions options_;
  const int64_t merge_;
  Compiled compiled_;
  Buffer weights_, activations_, workspace_;
  Buffer patches_, host_;  // on a GPU: a step's input, and memory for copies
};

}  // namespace moesaic
