// Kernel: a value that says which op it implements, why it would refuse, what it needs and how to launch it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "ir/graph.h"

namespace moesaic {

enum class Precision : uint8_t {
  float32,  // activations in float32, weights exactly as stored: agrees with a float32 reference to 1e-5
  fast,     // inputs of products rounded: on the CPU those of MXFP4 experts to int8, on a GPU all to bf16
  fp8,      // as fast, and prompts' inputs of MXFP4 experts to E4M3 per 128 channels
};

struct OperandDesc {
  ValueType type;
  bool is_weight = false;
  WeightKind kind = WeightKind::vector;
  Format format = Format::plain;
  DType stored = DType::none;              // element type of a plain weight as it lies in memory
  int64_t scale_rows = 0, scale_cols = 0;  // of an fp8 weight
};

// One op with everything resolved but the step's T and S, which stay within `bounds`.
struct OpDesc {
  Op op = Op::embed;
  Attrs attrs;
  std::vector<OperandDesc> inputs, outputs;
  Bounds bounds;
  Precision precision = Precision::float32;
  DType cache_dtype = DType::f32;

  const OperandDesc& in(int i) const { return inputs[static_cast<size_t>(i)]; }
  const OperandDesc& out(int i) const { return outputs[static_cast<size_t>(i)]; }
  Rotate rotate() const { return static_cast<Rotate>(attrs.integer(Attr::rotate, 0)); }
  // Inputs but for the table that `rotate` adds at the end.
  size_t inputs_before_table() const { return inputs.size() - (rotate() == Rotate::none ? 0 : 1); }
};

// The step's batch as kernels see it; every array lies in device memory. Tokens of one sequence are consecutive.
struct BatchView {
  int64_t tokens = 0, sequences = 0, rows = 0;
  // [1] tokens from this one on are padding of a captured step, which routing sends nowhere; null: none are.
  const int32_t* live_tokens = nullptr;
  const int32_t* token_ids = nullptr;         // [T]
  const int32_t* positions = nullptr;         // [T] position of each token in its sequence
  const int32_t* sequence_of = nullptr;       // [T]
  const int32_t* sequence_offsets = nullptr;  // [sequences + 1] first token of each sequence
  const int32_t* block_tables = nullptr;      // [sequences, max_blocks] cache blocks in order of position
  const int32_t* state_slots = nullptr;       // [sequences]
  const int32_t* output_rows = nullptr;       // [S] tokens whose logits are wanted
  int64_t max_blocks = 0;
  // [T] embeddings that stand in for a token's own, f32[hidden] each and null for text; the array is null without
  // images.
  const float* const* image_rows = nullptr;
  // Of a multi-token prediction layer's step: rows of hidden states [., D of join_hidden] in the activation type, and
  // which of them belongs to each token.
  const std::byte* hidden = nullptr;
  const int32_t* hidden_rows = nullptr;  // [T]
  // Of a vision tower's step, which is one image: its patches and their grid.
  const float* patches = nullptr;  // f32[T, count of the patches op]
  int64_t grid_rows = 0, grid_columns = 0;
};

// One layer's part of the cache pools. Offsets are 64-bit throughout: pools exceed 2 GiB.
struct CacheView {
  std::byte* blocks = nullptr;  // block b of this layer starts at blocks + b * block_stride
  int64_t block_stride = 0;
  std::byte* slots = nullptr;  // slot s of this layer starts at slots + s * slot_stride
  int64_t slot_stride = 0;

  std::byte* block(int64_t b) const { return blocks + b * block_stride; }
  std::byte* slot(int64_t s) const { return slots + s * slot_stride; }
};

struct Args {
  std::span<std::byte*const> in, out;
  Bounds now;  // T and S of this step
  const BatchView* batch = nullptr;
  CacheView cache;

  template <typename T>
  const T* input(int i) const {
    return reinterpret_cast<const T*>(in[static_cast<size_t>(i)]);
  }
  template <typename T>
  T* output(int i) const {
    return reinterpret_cast<T*>(out[static_cast<size_t>(i)]);
  }
};

struct Kernel {
  const char* name;  // op.format.level: "linear.bf16.cpu"
  Op op;
  Backend backend;
  // Null accepts; otherwise the reason, shown by `moesaic explain`.
  const char* (*refuse)(const OpDesc& desc, const DeviceInfo& device) = nullptr;
  // The layout that weight input `input` must have; null means row_major.
  Layout (*layout)(const OpDesc& desc, int input) = nullptr;
  // Scratch for the largest step; the planner reserves the maximum over all steps, once.
  int64_t (*workspace_bytes)(const OpDesc& desc, const DeviceInfo& device) = nullptr;
  void (*launch)(const OpDesc& desc, const Args& args, std::byte* workspace, Stream& stream) = nullptr;
  // Where a launch can do the work of several steps: as `launch` on each of them in turn. Null: it cannot. The steps
  // are up to kMostTogether of this kernel that do not read each other's outputs or, where `then` is set, one of this
  // kernel and the step right behind it, of that op, which reads its output.
  void (*launch_together)(std::span<const OpDesc* const> descs, std::span<const Args> args, std::byte* workspace,
                          Stream& stream) = nullptr;
  std::optional<Op> then = std::nullopt;
};
constexpr size_t kMostTogether = 4;

// Kernels in order of preference.
class Registry {
 public:
  void add(const Kernel& kernel) { kernels_.push_back(&kernel); }
  std::span<const Kernel* const> kernels() const { return kernels_; }

 private:
  std::vector<const Kernel*> kernels_;
};

void register_ref(Registry& registry);
void register_cpu(Registry& registry);
void register_cuda(Registry& registry);  // none where the build has no CUDA
// The kernels of one backend.
const Registry& registry_of(Backend backend);

// Work of one launch: bytes moved (each operand once; of stacked experts only those the tokens can reach) and
// floating-point operations.
struct Cost {
  double weight_bytes = 0, activation_bytes = 0, flops = 0;
};
Cost op_cost(const OpDesc& desc, const Bounds& now);

}  // namespace moesaic
