// Checkpoints for tests: the golden ones, and edited copies of them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/temp_dir.h"
#include "weights/safetensors_writer.h"

namespace moesaic {

inline std::string golden(const std::string& name) {
  return std::string(MOESAIC_SOURCE_DIR) + "/tests/golden/" + name;
}
inline std::string demo_model() {
  return std::string(MOESAIC_SOURCE_DIR) + "/models/demo";
}

struct OwnedTensor {
  DType dtype;
  Shape shape;
  std::vector<std::byte> bytes;
};
using TensorMap = std::map<std::string, OwnedTensor>;

inline TensorMap read_tensors(const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  TensorMap out;
  for (const SafetensorsEntry& entry : file.tensors()) {
    const Tensor t = file.tensor(entry);
    out[entry.name] = {t.dtype, t.shape, {t.data, t.data + t.bytes()}};
  }
  return out;
}

inline void write_tensors(const std::filesystem::path& path, TensorMap& tensors) {
  std::vector<NamedTensor> list;
  for (auto& [name, t] : tensors) list.push_back({name, {t.bytes.data(), t.dtype, t.shape}});
  write_safetensors(path, list);
}

// A copy of a golden checkpoint with its tensors and config edited.
class EditedCheckpoint {
 public:
  using Edit = std::function<void(TensorMap& tensors, JsonObject& config)>;

  EditedCheckpoint(const std::string& name, const Edit& edit) {
    TensorMap tensors = read_tensors(golden(name) + "/model.safetensors");
    Json config = read_json_file(golden(name) + "/config.json");
    edit(tensors, config.as_object());
    dir_.write("config.json", write_json(config));
    write_tensors(dir_.path() / "model.safetensors", tensors);
  }
  std::string path() const { return dir_.path().string(); }

 private:
  TempDir dir_;
};

}  // namespace moesaic
