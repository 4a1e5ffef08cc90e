// LoadedModel: a compiled model with its weights and memory on a device, ready for run().
#pragma once

#include <filesystem>
#include <memory>

#include "compile/compile.h"
#include "models/model.h"
#include "runtime/batch.h"
#include "runtime/draft_model.h"
#include "runtime/run.h"
#include "runtime/step_runner.h"
#include "runtime/vision_tower.h"
#include "weights/bind.h"
#include "weights/quantization.h"

namespace moesaic {

struct LoadOptions {
  std::string model;  // directory, config.json, or a name in the Hugging Face cache
  Backend backend = Backend::cpu;
  Precision precision = Precision::fast;
  DType cache_dtype = DType::none;  // of keys and values: f32 or bf16; none: the default
  int threads = 0;                  // 0: one per available core
  bool dummy_weights = false;       // random weights; only config.json is read
  int64_t max_model_len = 0;        // longest sequence in tokens; 0: what the config says, at most kDefaultContext
  int64_t max_sequences = 16;       // sequences in flight
  int64_t prefill_tokens = 512;     // tokens of one prefill step
  int64_t prefill_rows = 0;         // rows with logits in one prefill step; 0: one per sequence
  int64_t cache_tokens = 0;         // size of the block pool; 0: enough for every sequence at its longest
  int64_t speculative_tokens = 0;   // drafted at a time by the model's prediction layer; 0: it is not loaded
  int64_t snapshots = 0;  // slots for copies of sequences' state of constant size; -1: kSnapshotShare of memory
  std::set<std::string> skip_passes;
  bool progress = true;
  std::function<void(int64_t done, int64_t total)> on_load;  // while the model's weights load
};

constexpr double kSnapshotShare = 0.05;  // of the device's memory

constexpr int64_t kDefaultContext = 8192;
constexpr int64_t kMaxSpeculativeTokens = 16;  // each adds a row of logits per sequence to a step

// What is known of a model before any weight is read.
struct ModelSource {
  std::filesystem::path directory;  // holds config.json
  std::string config_path;
  Model model;
  Quantization quantization;     // formats to assume where there are no shards
  std::optional<Shards> shards;  // absent with dummy weights or a config.json alone
};
// Throws Error when the model is not found or its config is not one we know. `need_weights` asks for the checkpoint.
ModelSource open_model(const std::string& model, bool need_weights);

// Builds the graph of a model for a backend and binds it to the checkpoint, or assumes formats where there is none.
struct BoundGraph {
  Graph graph;
  Binding binding;
};
// `hidden`: with the hidden states that a prediction layer reads as an output.
BoundGraph build_graph(const ModelSource& source, Backend backend, DType cache_dtype, bool hidden = false);
// The same for the vision tower of a model that has one, and for the prediction layer of one that can draft.
BoundGraph build_vision_graph(const ModelSource& source, Backend backend);
BoundGraph build_draft_graph(const ModelSource& source, Backend backend, DType cache_dtype);

DType activation_dtype(Backend backend);
// Elements of keys and values: what the options ask for, f32 by default; always f64 on the reference backend.
DType cache_dtype(const LoadOptions& options);
// What load_model would compile, without weights: for `explain` and `inspect`.
CompileOptions compile_options(const LoadOptions& options, const Model& model, const DeviceInfo& device);

struct LoadedModel {
  Model model;
  std::filesystem::path directory;
  std::unique_ptr<Device> device;
  Compiled compiled;
  int64_t max_model_len = 0;
  int64_t blocks = 0, slots = 0;  // of the cache pools; slots include `snapshots`
  int64_t sequences = 0, snapshots = 0;
  Buffer weights, activations, workspace, cache_blocks, cache_slots;
  std::unique_ptr<VisionTower> vision;  // null: the model sees no images
  std::unique_ptr<DraftModel> draft;    // null: nothing is drafted
  int64_t speculative_tokens = 0;       // drafted at a time, with `draft`

  Memory memory() const {
    return {weights.data(), activations.data(), workspace.data(), cache_blocks.data(), cache_slots.data()};
  }
  double fill_seconds = 0;            // what loading the weights took
  std::unique_ptr<StepRunner> steps;  // on a GPU; null: run() does it

  // Runs a step and waits for it; the batch lies in host memory. `hook` as run() takes it: its args are the device's.
  void run_step(const Plan& plan, const BatchView& batch, const StepHook* hook = nullptr);

  // Of weights, activations, workspace and caches: what `moesaic plan` prints.
  int64_t device_bytes() const {
    return weights.bytes() + activations.bytes() + workspace.bytes() + cache_blocks.bytes() + cache_slots.bytes();
  }
  int64_t max_blocks() const { return (max_model_len + kBlockTokens - 1) / kBlockTokens; }
};

// Compiles and loads. Throws Error with one clear line for anything wrong with the files or too large for the device.
LoadedModel load_model(const LoadOptions& options);

}  // namespace moesaic
