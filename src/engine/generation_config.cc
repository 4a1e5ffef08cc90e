#include "engine/generation_config.h"

#include "engine/sampling_check.h"
#include "models/model.h"

namespace moesaic {

GenerationConfig load_generation_config(const std::filesystem::path& directory) {
  GenerationConfig out;
  const std::string where = (directory / "generation_config.json").string();
  if (!std::filesystem::exists(where)) return out;
  const Json json = read_json_file(where, {.python_constants = true});
  const JsonObject& config = json_object(json, where);
  const auto number = [&](const char* key, float fallback) {
    return static_cast<float>(json_number(config, key, where, static_cast<double>(fallback)));
  };
  SamplingParams& s = out.sampling;
  s.temperature = number("temperature", s.temperature);
  s.top_p = number("top_p", s.top_p);
  s.top_k = static_cast<int>(json_int(config, "top_k", where, s.top_k));
  s.min_p = number("min_p", s.min_p);
  s.repetition_penalty = number("repetition_penalty", s.repetition_penalty);
  if (!json_bool(config, "do_sample", where, true)) s.temperature = 0;
  const Status status = check_sampling(s, INT32_MAX);
  if (!status.ok()) fail_data(where, "{}", status.message());
  out.eos_token_ids = parse_token_ids(config, "eos_token_id", where);
  return out;
}

}  // namespace moesaic
