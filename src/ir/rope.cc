#include "ir/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace moesaic {

Attrs RopeConfig::attrs(int64_t head_dim) const {
  Attrs attrs{{Attr::theta, theta},
              {Attr::head_dim, static_cast<double>(head_dim)},
              {Attr::attention_factor, attention_factor}};
  if (factor == 1) return attrs;
  attrs.set(Attr::factor, factor);
  attrs.set(Attr::beta_fast, beta_fast);
  attrs.set(Attr::beta_slow, beta_slow);
  attrs.set(Attr::original_positions, original_positions);
  attrs.set(Attr::truncate, truncate);
  return attrs;
}

RopeConfig RopeConfig::from(const Attrs& attrs) {
  RopeConfig rope;
  rope.theta = attrs.number(Attr::theta);
  rope.attention_factor = attrs.number(Attr::attention_factor);
  if (!attrs.has(Attr::factor)) return rope;
  rope.factor = attrs.number(Attr::factor);
  rope.beta_fast = attrs.number(Attr::beta_fast);
  rope.beta_slow = attrs.number(Attr::beta_slow);
  rope.original_positions = attrs.number(Attr::original_positions);
  rope.truncate = attrs.integer(Attr::truncate) != 0;
  return rope;
}

namespace {

// m(mscale) / m(mscale_all_dim) where the config has both (DeepSeek), else m(1); m(a) = 0.1 a ln(factor) + 1.
double yarn_amplitude(double factor, const JsonObject& scaling, const std::string& where) {
  const auto m = [&](double a) { return 0.1 * a * std::log(factor) + 1; };
  const double mscale = json_number(scaling, "mscale", where, 0);
  const double all_dim = json_number(scaling, "mscale_all_dim", where, 0);
  return mscale != 0 && all_dim != 0 ? m(mscale) / m(all_dim) : m(1);
}

}  // namespace

RopeConfig parse_rope(const JsonObject& config, const std::string& where) {
  RopeConfig rope;
  rope.theta = json_number(config, "rope_theta", where, rope.theta);
  const Json* found = json_find(config, "rope_parameters");
  if (found == nullptr) found = json_find(config, "rope_scaling");
  if (found == nullptr) return rope;
  const JsonObject& scaling = json_object(*found, where + ": rope parameters");
  rope.theta = json_number(scaling, "rope_theta", where, rope.theta);
  const std::string type = json_string(scaling, "rope_type", where, json_string(scaling, "type", where, "default"));
  if (type == "default") return rope;
  if (type != "yarn") fail_data(where, "rope_type is \"{}\"; supported are \"default\" and \"yarn\"", type);
  rope.factor = json_number(scaling, "factor", where);
  rope.beta_fast = json_number(scaling, "beta_fast", where, 32);
  rope.beta_slow = json_number(scaling, "beta_slow", where, 1);
  rope.truncate = json_bool(scaling, "truncate", where, true);
  const double positions = json_number(config, "max_position_embeddings", where, 0);
  rope.original_positions = json_number(scaling, "original_max_position_embeddings", where, positions);
  if (!(rope.factor >= 1) || !(rope.original_positions > 0) || !(rope.theta > 1))
    fail_data(where,
              "YaRN needs factor >= 1, original_max_position_embeddings > 0 and rope_theta > 1; found {}, {} and {}",
              rope.factor, rope.original_positions, rope.theta);
  rope.attention_factor = json_number(scaling, "attention_factor", where, yarn_amplitude(rope.factor, scaling, where));
  return rope;
}

RopeRange yarn_range(const RopeConfig& rope, int64_t head_dim) {
  const auto dimension = [&](double rotations) {
    return static_cast<double>(head_dim) * std::log(rope.original_positions / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  RopeRange range{dimension(rope.beta_fast), dimension(rope.beta_slow)};
  return rope.truncate ? RopeRange{std::floor(range.low), std::ceil(range.high)} : range;
}

std::vector<float> rope_frequencies(const RopeConfig& rope, int64_t head_dim) {
  std::vector<float> out(static_cast<size_t>(head_dim / 2));
  rope_frequencies(rope, out);
  return out;
}

void rope_frequencies(const RopeConfig& rope, std::span<float> out) {
  const auto head_dim = static_cast<int64_t>(2 * out.size());
  RopeRange range{0, 0};
  if (rope.factor != 1) {
    range = yarn_range(rope, head_dim);
    range = {std::max(range.low, 0.0), std::min(range.high, static_cast<double>(head_dim - 1))};
    if (range.low == range.high) range.high += 0.001;  // as the reference: no division by zero
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const double base = std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    if (rope.factor == 1) {
      out[i] = static_cast<float>(base);
      continue;
    }
    const double ramp = std::clamp((static_cast<double>(i) - range.low) / (range.high - range.low), 0.0, 1.0);
    out[i] = static_cast<float>(base * ((1 - ramp) + ramp / rope.factor));
  }
}

}  // namespace moesaic
