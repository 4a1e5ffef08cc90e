#include "weights/bind.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "quant/fp4.h"

namespace moesaic {
namespace {

bool is_float(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f32;
}

// Tensors that some exporters add and that hold nothing we need.
bool is_ignored(std::string_view name) {
  return name.ends_with("rotary_emb.inv_freq");
}

class Binder {
 public:
  Binder(Graph& graph, const Shards& shards) : graph_(graph), shards_(shards) {}

  Binding bind() {
    for (WeightSpec& spec : graph_.weights) binding_.sources.push_back(bind_weight(spec));
    for (std::string_view name : shards_.names())
      if (!used_.contains(std::string(name)) && !is_ignored(name)) binding_.unexpected.emplace_back(name);
    return std::move(binding_);
  }

 private:
  WeightSource bind_weight(WeightSpec& spec) {
    if (spec.kind == WeightKind::experts && shards_.find(spec.name + "_blocks")) return bind_mxfp4(spec);
    auto found = take(spec.name);
    if (!found && !spec.fallback.empty()) found = take(spec.fallback);
    if (found && found->dtype() == DType::e4m3 && spec.kind == WeightKind::matrix) return bind_fp8(spec, *found);
    if (!found) {
      binding_.missing.push_back(spec.kind == WeightKind::experts ? spec.name + "_blocks (or " + spec.name + ")" : spec.name);
      return {};
    }
    spec.format = Format::plain;
    spec.dtype = found->dtype();
    const bool k_first = spec.kind == WeightKind::experts;
    const Shape shape = k_first ? Shape{spec.shape[0], spec.shape[2], spec.shape[1]} : spec.shape;
    check(*found, shape, is_float(found->dtype()), "F32, BF16 or F16");
    return {*found, std::nullopt, k_first};
  }

  WeightSource bind_mxfp4(WeightSpec& spec) {
    const int64_t E = spec.shape[0], N = spec.shape[1], groups = spec.shape[2] / kMxGroup;
    spec.format = Format::mxfp4;
    const auto blocks = take(spec.name + "_blocks"), scales = take(spec.name + "_scales");
    if (!scales) {
      binding_.missing.push_back(spec.name + "_scales");
      return {};
    }
    if (spec.shape[2] % kMxGroup != 0)
      binding_.mismatched.push_back(fmt::format("{} has K = {}; MXFP4 needs a multiple of 32", spec.name, spec.shape[2]));
    check(*blocks, {E, N, groups, 16}, blocks->dtype() == DType::u8, "U8");
    check(*scales, {E, N, groups}, scales->dtype() == DType::u8 || scales->dtype() == DType::e8m0, "U8");
    return {*blocks, scales, false};
  }

  // E4M3 with a grid of multipliers beside it: 128 x 128 blocks (DeepSeek's weight_scale_inv, which is the multiplier
  // despite its name), or MXFP8, one E8M0 byte per 32 elements of a row.
  WeightSource bind_fp8(WeightSpec& spec, const StoredTensor& tensor) {
    const int64_t N = spec.shape[0], K = spec.shape[1];
    spec.format = Format::fp8;
    check(tensor, spec.shape, true, "F8_E4M3");
    auto scales = take(spec.name + "_scale_inv");
    if (!scales) scales = take(spec.name + "_scale");
    if (!scales) {
      binding_.missing.push_back(spec.name + "_scale_inv (or " + spec.name + "_scale)");
      return {};
    }
    const Shape mx{N, (K + 31) / 32}, blocks{(N + 127) / 128, (K + 127) / 128};
    const bool exponents = scales->dtype() == DType::u8 || scales->dtype() == DType::e8m0;
    const bool is_mx = exponents && scales->shape() == mx;
    spec.scale_rows = is_mx ? 1 : 128;
    spec.scale_cols = is_mx ? 32 : 128;
    check(*scales, is_mx ? mx : blocks, exponents || is_float(scales->dtype()), "F32, BF16, U8 or F8_E8M0");
    return {tensor, scales, false};
  }

  std::optional<StoredTensor> take(const std::string& name) {
    auto found = shards_.find(name);
    if (found) used_.insert(name);
    return found;
  }

  void check(const StoredTensor& found, const Shape& shape, bool dtype_fits, const char* dtypes) {
    if (found.shape() == shape && dtype_fits) return;
    binding_.mismatched.push_back(fmt::format("{} is {} {}; expected {} {}", found.name(), safetensors_name(found.dtype()),
                                              to_string(found.shape()), dtypes, to_string(shape)));
  }

  Graph& graph_;
  const Shards& shards_;
  Binding binding_;
  std::set<std::string> used_;
};

std::string list(const char* title, std::vector<std::string> names) {
  constexpr size_t kShown = 20;
  if (names.empty()) return "";
  const size_t count = names.size();
  names.resize(std::min(count, kShown));
  return fmt::format("; {} {}: {}{}", count, title, fmt::join(names, ", "),
                     count > kShown ? fmt::format(" and {} more", count - kShown) : "");
}

}  // namespace

Binding bind_weights(Graph& graph, const Shards& shards) {
  Binding binding = Binder(graph, shards).bind();
  // Types of weight values follow what the checkpoint turned out to hold.
  for (size_t i = 0; i < graph.value_count(); ++i) {
    const Value value{static_cast<int>(i)};
    if (const WeightSpec* weight = graph.weight(value)) graph.info(value).type.dtype = weight->dtype;
  }
  return binding;
}

void check_binding(const Binding& binding, const std::string& where) {
  if (binding.complete()) return;
  fail_data(where, "the checkpoint does not fit its config.json{}{}{}", list("missing", binding.missing),
            list("mismatched", binding.mismatched), list("unexpected", binding.unexpected));
}

void assume_formats(Graph& graph, bool mxfp4_experts) {
  for (size_t i = 0; i < graph.value_count(); ++i) {
    const Value value{static_cast<int>(i)};
    if (graph.info(value).weight < 0) continue;
    WeightSpec& weight = graph.weights[static_cast<size_t>(graph.info(value).weight)];
    const bool packed = mxfp4_experts && weight.kind == WeightKind::experts && weight.shape[-1] % kMxGroup == 0;
    weight.format = packed ? Format::mxfp4 : Format::plain;
    weight.dtype = packed ? DType::none : DType::bf16;
    graph.info(value).type.dtype = weight.dtype;
  }
}

}  // namespace moesaic
