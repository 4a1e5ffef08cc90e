// The golden checkpoints' names and reference values, and how far ours are from them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "support/checkpoint.h"

namespace moesaic {

// Every golden checkpoint of a model.
inline constexpr const char* kGoldenModels[] = {"gpt_oss-mxfp4",   "gpt_oss-bf16", "qwen3_moe",   "deepseek_v3",
                                                "deepseek_v3-fp8", "deepseek_v32", "deepseek_v4", "glm_moe_dsa",
                                                "kimi_k25",        "kimi_linear",  "kimi_k3",     "kimi_k3-grouped"};

// A model's name as a test's.
inline std::string golden_test_name(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// Integers and floats of a reference file.
inline std::vector<double> to_doubles(const OwnedTensor& t) {
  std::vector<double> out(static_cast<size_t>(t.shape.elements()));
  for (size_t i = 0; i < out.size(); ++i) {
    if (t.dtype == DType::f32) {
      float value;
      std::memcpy(&value, t.bytes.data() + i * 4, 4);
      out[i] = static_cast<double>(value);
    } else {
      int64_t value;
      std::memcpy(&value, t.bytes.data() + i * 8, 8);
      out[i] = static_cast<double>(value);
    }
  }
  return out;
}

// `input_ids` [B, T] of a reference file, as B sequences.
inline std::vector<std::vector<int32_t>> golden_input_ids(const TensorMap& reference) {
  const OwnedTensor& t = reference.at("input_ids");
  const std::vector<double> flat = to_doubles(t);
  std::vector<std::vector<int32_t>> ids(static_cast<size_t>(t.shape[0]));
  for (size_t i = 0; i < flat.size(); ++i)
    ids[i / static_cast<size_t>(t.shape[1])].push_back(static_cast<int32_t>(flat[i]));
  return ids;
}

inline double relative_l2(std::span<const double> got, std::span<const double> want) {
  EXPECT_EQ(got.size(), want.size());
  double difference = 0, square = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    square += want[i] * want[i];
  }
  return std::sqrt(difference / square);
}

}  // namespace moesaic
