#include "models/mtp.h"

namespace moesaic {
namespace {

// The layer's own copy of a tensor, or the model's.
std::string own_or(Builder& g, const std::string& own, const std::string& shared) {
  return g.has_tensor(own + ".weight") ? own : shared;
}

Value decode(Builder& g, const TextEnd& end, const DecoderLayer& layer, Value embedding) {
  const auto in = g.scope("model.layers", end.layers);
  const Value both = g.join_hidden(g.rms_norm(embedding, "enorm", end.eps), "hnorm", end.eps);
  return g.last_token(layer(g, g.linear(both, "eh_proj", end.hidden)));
}

void build_mtp(Builder& g, const TextEnd& end, Carry carry, const DecoderLayer& layer) {
  const std::string prefix = fmt::format("model.layers.{}.", end.layers);
  const Value x =
      decode(g, end, layer, g.embed(own_or(g, prefix + "embed_tokens", "model.embed_tokens"), end.vocab, end.hidden));
  const Value normed = g.rms_norm(x, prefix + "shared_head.norm", end.eps);
  g.output("hidden", carry == Carry::normalised ? normed : x);
  g.output("logits", g.head(normed, own_or(g, prefix + "shared_head.head", "lm_head"), end.vocab, end.tied_to()));
}

}  // namespace

std::optional<Mtp> make_mtp(const JsonObject& json, const TextEnd& end, Carry carry, const DecoderLayer& layer,
                            const std::string& where) {
  std::vector<std::string> prefixes = mtp_prefixes(json, end.layers, where);
  if (prefixes.empty()) return std::nullopt;
  Mtp mtp;
  mtp.prefix = prefixes.front();
  mtp.skipped.assign(prefixes.begin() + 1, prefixes.end());
  for (const char* prefix : {"model.embed_tokens.", "model.norm.", "lm_head."}) mtp.skipped.emplace_back(prefix);
  for (int64_t i = 0; i < end.layers; ++i) mtp.skipped.push_back(fmt::format("model.layers.{}.", i));
  mtp.build = [end, carry, layer](Builder& g) { build_mtp(g, end, carry, layer); };
  return mtp;
}

}  // namespace moesaic
