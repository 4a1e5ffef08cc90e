// Kimi K2.5 and K2.6: DeepSeek-V3's architecture (text_config) under the prefix language_model, and MoonViT.
#include "models/kimi_k25.h"

#include "models/deepseek_v3.h"
#include "models/moonvit.h"

namespace moesaic::kimi_k25 {

Model parse(const JsonObject& config, const std::string& where) {
  const Json* inner = json_find(config, "text_config");
  if (inner == nullptr) fail_data(where, "\"text_config\" is missing");
  Model model = deepseek_v3::parse(json_object(*inner, where), where);
  if (model.stop_tokens.empty()) model.stop_tokens = parse_token_ids(config, "eos_token_id", where);
  for (std::string& prefix : model.skipped) prefix = "language_model." + prefix;
  for (const char* prefix : {"vision_tower.", "mm_projector.", "model.mm_projector."})
    model.skipped.emplace_back(prefix);
  model.mtp.reset();  // none is published with this prefix
  model.build = [text = model.build](Builder& g) {
    const auto in = g.scope("language_model");
    text(g);
  };
  model.vision = moonvit::parse(config, moonvit::Kind::k25, model.hidden, where);
  if (model.vision->placeholder < 0 || model.vision->placeholder >= model.vocab)
    fail_data(where, "the image token is {}; the vocabulary has {} tokens", model.vision->placeholder, model.vocab);
  return model;
}

}  // namespace moesaic::kimi_k25
