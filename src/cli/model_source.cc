#include "cli/model_source.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace moesaic {
namespace {

bool holds_checkpoint(const std::filesystem::path& directory) {
  const auto is_weights = [](const std::filesystem::directory_entry& entry) {
    return entry.path().extension() == ".safetensors" || entry.path().filename() == "model.safetensors.index.json";
  };
  const std::filesystem::directory_iterator entries(directory);
  return std::any_of(begin(entries), end(entries), is_weights);
}

bool all_digits(const std::string& text) {
  return !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

ModelSource find_model(const std::string& model, bool checkpoint) {
  ModelSource source = open_model(model, false);
  std::error_code ignored;  // a name is no path
  if (checkpoint && !std::filesystem::is_regular_file(model, ignored) && holds_checkpoint(source.directory))
    source.shards = Shards::open(source.directory);
  return source;
}

LayerLabel split_layer(const std::string& label) {
  for (size_t begin = 0; begin < label.size();) {
    const size_t end = std::min(label.find('.', begin), label.size());
    const std::string part = label.substr(begin, end - begin);
    if (all_digits(part))
      return {label.substr(0, begin) + "*" + label.substr(end), end < label.size() ? label.substr(end + 1) : label,
              std::stoll(part)};
    begin = end + 1;
  }
  return {label, label, -1};
}

std::string layer_list(const std::vector<int64_t>& layers) {
  if (layers.size() < 3) return fmt::format("{}", fmt::join(layers, ","));
  const int64_t stride = layers[1] - layers[0];
  bool even = true;
  for (size_t i = 1; i < layers.size(); ++i) even = even && layers[i] - layers[i - 1] == stride;
  if (even && stride == 1) return fmt::format("{}-{}", layers.front(), layers.back());
  if (even && layers.size() > 3) return fmt::format("{},{},...,{}", layers[0], layers[1], layers.back());
  std::string out;
  for (size_t i = 0, last = 0; i < layers.size(); i = last + 1) {
    for (last = i; last + 1 < layers.size() && layers[last + 1] == layers[last] + 1;) ++last;
    out += (out.empty() ? "" : ",") + std::to_string(layers[i]);
    if (last > i) out += (last > i + 1 ? "-" : ",") + std::to_string(layers[last]);
  }
  return out;
}

}  // namespace moesaic
