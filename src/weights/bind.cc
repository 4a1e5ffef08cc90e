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

std::string without_suffix(const std::string& name) {
  return name.ends_with(".weight") ? name.substr(0, name.size() - 7) : name;
}

class Binder {
 public:
  Binder(Graph& graph, const Shards& shards, const std::vector<std::string>& skipped)
      : graph_(graph), shards_(shards), skipped_(skipped) {}

  Binding bind() {
    for (WeightSpec& spec : graph_.weights) binding_.sources.push_back(bind_weight(spec));
    for (std::string_view name : shards_.names()) {
      if (used_.contains(std::string(name)) || is_ignored(name)) continue;
      const auto begins = [&](const std::string& prefix) { return name.starts_with(prefix); };
      const bool skipped = std::any_of(skipped_.begin(), skipped_.end(), begins);
      (skipped ? binding_.skipped : binding_.unexpected).emplace_back(name);
    }
    return std::move(binding_);
  }

 private:
  WeightSource bind_weight(WeightSpec& spec) {
    if (spec.kind == WeightKind::experts) return bind_experts(spec);
    for (const std::string& name : {spec.name, spec.fallback}) {
      if (name.empty()) continue;
      if (auto source = bind_tensor(spec, name, spec.shape)) return std::move(*source);
    }
    if (!spec.fused.empty() && shards_.find(spec.fused)) {  // rows of the parts one after the other
      const StoredTensor tensor = *take(spec.fused);
      std::vector<int64_t> dims(spec.shape.dims().begin(), spec.shape.dims().end());
      dims[0] *= spec.fused_parts;
      set_plain(spec, tensor, Shape(dims));
      return {{tensor}, {}, false, spec.fused_parts, spec.fused_part};
    }
    binding_.missing.push_back(spec.name);
    return {};
  }

  WeightSource bind_experts(WeightSpec& spec) {
    const int64_t E = spec.shape[0], N = spec.shape[1], K = spec.shape[2];
    if (shards_.find(spec.name + "_blocks")) return bind_mxfp4_stack(spec);
    for (const std::string& name : {spec.name, spec.fallback})
      if (name.find("{}") != std::string::npos && any_of_stack(name)) return bind_each(spec, name);
    if (!spec.fused.empty() && shards_.find(spec.fused)) {  // [E, parts * N, K], rows of the parts one after the other
      const StoredTensor tensor = *take(spec.fused);
      set_plain(spec, tensor, {E, N * spec.fused_parts, K});
      return {{tensor}, {}, false, spec.fused_parts, spec.fused_part};
    }
    if (const auto tensor = take(spec.name)) {
      set_plain(spec, *tensor, {E, K, N});
      return {{*tensor}, {}, true};
    }
    const bool gpt_oss = spec.name.find("{}") == std::string::npos;
    binding_.missing.push_back(gpt_oss ? spec.name + "_blocks (or " + spec.name + ")"
                                       : spec.name + " for every expert {}");
    return {};
  }

  bool any_of_stack(const std::string& pattern) const {
    const std::string first = expert_name(pattern, 0), base = without_suffix(first);
    return shards_.find(first) || shards_.find(base + ".weight_packed");
  }

  static std::string expert_name(const std::string& pattern, int64_t e) {
    const size_t at = pattern.find("{}");
    return pattern.substr(0, at) + std::to_string(e) + pattern.substr(at + 2);
  }

  // One tensor per expert, all in one format.
  WeightSource bind_each(WeightSpec& spec, const std::string& pattern) {
    WeightSource all;
    std::optional<std::string> format;
    for (int64_t e = 0; e < spec.shape[0]; ++e) {
      const std::string name = expert_name(pattern, e);
      auto one = bind_tensor(spec, name, {spec.shape[1], spec.shape[2]});
      if (!one) {
        binding_.missing.push_back(name);
        continue;
      }
      if (format.value_or(format_name(spec)) != format_name(spec))
        binding_.mismatched.push_back(
            fmt::format("{} is {}; the experts before it are {}", name, format_name(spec), *format));
      format = format_name(spec);
      all.tensors.push_back(one->tensors[0]);
      if (!one->scales.empty()) all.scales.push_back(one->scales[0]);
    }
    return all;
  }

  // One tensor, in whichever format it turns out to be; nothing when there is none of that name.
  std::optional<WeightSource> bind_tensor(WeightSpec& spec, const std::string& name, const Shape& shape) {
    const std::string base = without_suffix(name);
    const bool coded = spec.kind == WeightKind::matrix || spec.kind == WeightKind::experts;
    if (coded && shards_.find(base + ".weight_packed")) return bind_packed(spec, base, shape);
    const auto tensor = take(name);
    if (!tensor) return std::nullopt;
    if (coded && tensor->dtype() == DType::e4m3) return bind_fp8(spec, *tensor, base, shape);
    if (coded && (tensor->dtype() == DType::i8 || tensor->dtype() == DType::u8))
      return bind_fp4(spec, *tensor, base, shape);
    if (spec.kind == WeightKind::table) return bind_table(spec, *tensor);
    set_plain(spec, *tensor, shape);
    return WeightSource{{*tensor}, {}};
  }

  void set_plain(WeightSpec& spec, const StoredTensor& tensor, const Shape& shape) {
    spec.format = Format::plain;
    spec.dtype = tensor.dtype();
    // A vector may come in any shape, and a padded one longer than it is.
    const int64_t found = tensor.shape().elements(), wanted = shape.elements();
    // A convolution over whole patches [N, channels, h, w] is a matrix [N, K].
    const bool convolution =
        spec.kind == WeightKind::matrix && tensor.shape().rank() == 4 && tensor.shape()[0] == shape[0];
    const bool flat = spec.kind == WeightKind::vector || convolution;
    const bool fits = flat ? found == wanted || (spec.padded && found > wanted) : tensor.shape() == shape;
    if (!fits || !is_float(tensor.dtype())) mismatch(tensor, shape, "F32, BF16 or F16");
  }

  WeightSource bind_table(WeightSpec& spec, const StoredTensor& tensor) {
    spec.dtype = DType::i32;
    check(tensor, spec.shape, tensor.dtype() == DType::i64 || tensor.dtype() == DType::i32, "I64 or I32");
    return {{tensor}, {}};
  }

  // gpt-oss: all experts in one tensor of codes and one of scales.
  WeightSource bind_mxfp4_stack(WeightSpec& spec) {
    const int64_t E = spec.shape[0], N = spec.shape[1], groups = spec.shape[2] / kMxGroup;
    spec.format = Format::mxfp4;
    const auto blocks = take(spec.name + "_blocks"), scales = take(spec.name + "_scales");
    if (!scales) {
      binding_.missing.push_back(spec.name + "_scales");
      return {};
    }
    check_groups(spec);
    check(*blocks, {E, N, groups, 16}, blocks->dtype() == DType::u8, "U8");
    check(*scales, {E, N, groups}, is_exponent(*scales), "U8");
    return {{*blocks}, {*scales}};
  }

  // compressed-tensors: mxfp4-pack-quantized (U8, two codes a byte) or pack-quantized INT4 (I32, eight a word).
  WeightSource bind_packed(WeightSpec& spec, const std::string& base, const Shape& shape) {
    const StoredTensor packed = *take(base + ".weight_packed");
    const auto scales = take(base + ".weight_scale");
    take(base + ".weight_shape");
    if (!scales) {
      binding_.missing.push_back(base + ".weight_scale");
      return {};
    }
    const bool int4 = packed.dtype() == DType::i32;
    spec.format = int4 ? Format::int4 : Format::mxfp4;
    check_groups(spec);
    check(packed, {shape[0], shape[1] / (int4 ? 8 : 2)}, int4 || packed.dtype() == DType::u8, "U8 or I32");
    check(*scales, {shape[0], shape[1] / kMxGroup}, int4 ? scales->dtype() == DType::bf16 : is_exponent(*scales),
          int4 ? "BF16" : "U8");
    return {{packed}, {*scales}};
  }

  // DeepSeek-V4: two FP4 codes a byte as I8, exponents beside them in .scale.
  WeightSource bind_fp4(WeightSpec& spec, const StoredTensor& tensor, const std::string& base, const Shape& shape) {
    spec.format = Format::mxfp4;
    check_groups(spec);
    check(tensor, {shape[0], shape[1] / 2}, true, "I8");
    const auto scales = take(base + ".scale");
    if (!scales) {
      binding_.missing.push_back(base + ".scale");
      return {};
    }
    check(*scales, {shape[0], shape[1] / kMxGroup}, is_exponent(*scales), "F8_E8M0");
    return {{tensor}, {*scales}};
  }

  // E4M3 with a grid of multipliers beside it: 128 x 128 blocks (DeepSeek's weight_scale_inv, which is the multiplier
  // despite its name), or MXFP8, one E8M0 byte per 32 elements of a row.
  WeightSource bind_fp8(WeightSpec& spec, const StoredTensor& tensor, const std::string& base, const Shape& shape) {
    const int64_t N = shape[0], K = shape[1];
    spec.format = Format::fp8;
    spec.dtype = DType::none;
    check(tensor, shape, true, "F8_E4M3");
    std::optional<StoredTensor> scales;
    for (const char* suffix : {".weight_scale_inv", ".weight_scale", ".scale"})
      if (!scales) scales = take(base + suffix);
    if (!scales) {
      binding_.missing.push_back(base + ".weight_scale_inv (or .weight_scale)");
      return {};
    }
    const Shape mx{N, (K + 31) / 32}, blocks{(N + 127) / 128, (K + 127) / 128};
    const bool is_mx = is_exponent(*scales) && scales->shape() == mx;
    spec.scale_rows = is_mx ? 1 : 128;
    spec.scale_cols = is_mx ? 32 : 128;
    check(*scales, is_mx ? mx : blocks, is_exponent(*scales) || is_float(scales->dtype()), "F32, BF16, U8 or F8_E8M0");
    return {{tensor}, {*scales}};
  }

  static bool is_exponent(const StoredTensor& tensor) {
    return tensor.dtype() == DType::u8 || tensor.dtype() == DType::e8m0;
  }

  std::optional<StoredTensor> take(const std::string& name) {
    auto found = shards_.find(name);
    if (found) used_.insert(name);
    return found;
  }

  void check_groups(WeightSpec& spec) {
    spec.dtype = DType::none;
    if (spec.shape[-1] % kMxGroup != 0)
      binding_.mismatched.push_back(
          fmt::format("{} has K = {}; groups of 32 need a multiple of 32", spec.name, spec.shape[-1]));
  }
  void check(const StoredTensor& found, const Shape& shape, bool dtype_fits, const char* dtypes) {
    if (found.shape() != shape || !dtype_fits) mismatch(found, shape, dtypes);
  }
  void mismatch(const StoredTensor& found, const Shape& shape, const char* dtypes) {
    binding_.mismatched.push_back(fmt::format("{} is {} {}; expected {} {}", found.name(),
                                              safetensors_name(found.dtype()), to_string(found.shape()), dtypes,
                                              to_string(shape)));
  }

  Graph& graph_;
  const Shards& shards_;
  const std::vector<std::string>& skipped_;
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

Binding bind_weights(Graph& graph, const Shards& shards, const std::vector<std::string>& skipped) {
  Binding binding = Binder(graph, shards, skipped).bind();
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

}  // namespace moesaic
