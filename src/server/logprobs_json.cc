#include "server/logprobs_json.h"

#include <fmt/format.h>

#include <cmath>

#include "text/unicode.h"

namespace moesaic {
namespace {

constexpr double kImpossible = -9999.0;

double finite(float logprob) {
  return std::isfinite(logprob) ? static_cast<double>(logprob) : kImpossible;
}

std::string_view bytes_of(int32_t id, const LogprobFormat& format) {
  return format.tokenizer != nullptr ? format.tokenizer->token_bytes(id).value_or("") : std::string_view();
}

bool named_by_id(const LogprobFormat& format) {
  return format.tokens_as_ids || format.tokenizer == nullptr;
}

std::string name_by_id(int32_t id) {
  return fmt::format("token_id:{}", id);
}

JsonObject chat_entry(int32_t id, float logprob, const LogprobFormat& format) {
  const std::string_view bytes = bytes_of(id, format);
  JsonArray numbers;
  for (const char c : bytes) numbers.push_back(static_cast<unsigned char>(c));
  JsonObject out;
  out["token"] = named_by_id(format) ? name_by_id(id) : replace_invalid_utf8(bytes);
  out["logprob"] = finite(logprob);
  out["bytes"] = std::move(numbers);
  return out;
}

// The whole token, so that different tokens have different names: top_logprobs is keyed by them.
std::string text_name(int32_t id, const LogprobFormat& format) {
  if (named_by_id(format)) return name_by_id(id);
  const std::string_view bytes = bytes_of(id, format);
  std::string text = replace_invalid_utf8(bytes);
  if (text == bytes) return text;
  text = "bytes:";
  for (const char c : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return text;
}

int64_t characters(std::string_view text) {
  int64_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

JsonObject top_json(const GeneratedToken& token, const LogprobFormat& format) {
  JsonObject top;
  for (const auto& [id, logprob] : token.top) top[text_name(id, format)] = finite(logprob);
  top[text_name(token.id, format)] = finite(token.logprob);
  return top;
}

}  // namespace

JsonArray chat_logprobs(std::span<const GeneratedToken> tokens, const LogprobFormat& format) {
  JsonArray out;
  for (const GeneratedToken& token : tokens) {
    const bool special = format.tokenizer != nullptr && format.tokenizer->is_special(token.id);
    if (format.skip_special && (special || token.markup)) continue;
    JsonObject entry = chat_entry(token.id, token.logprob, format);
    JsonArray top;
    for (const auto& [id, logprob] : token.top) top.push_back(chat_entry(id, logprob, format));
    entry["top_logprobs"] = std::move(top);
    out.push_back(std::move(entry));
  }
  return out;
}

TextLogprobs::TextLogprobs(const LogprobFormat& format) : format_(format) {
  if (format.tokenizer != nullptr) text_.emplace(*format.tokenizer, format.skip_special);
}

void TextLogprobs::add_name(int32_t id) {
  tokens_.push_back(Json(text_name(id, format_)));
  offsets_.push_back(offset_);
  if (text_) offset_ += characters(text_->push(id));
}

void TextLogprobs::add(const GeneratedToken& token) {
  add_name(token.id);
  logprobs_.push_back(finite(token.logprob));
  top_.push_back(top_json(token, format_));
}

void TextLogprobs::add_prompt(std::span<const int32_t> ids, std::span<const GeneratedToken> rest) {
  if (ids.empty()) return;
  add_name(ids[0]);
  logprobs_.push_back(nullptr);
  top_.push_back(nullptr);
  for (const GeneratedToken& token : rest) add(token);
}

JsonObject TextLogprobs::take() {
  JsonObject out;
  out["tokens"] = std::move(tokens_);
  out["token_logprobs"] = std::move(logprobs_);
  out["top_logprobs"] = std::move(top_);
  out["text_offset"] = std::move(offsets_);
  tokens_ = {}, logprobs_ = {}, top_ = {}, offsets_ = {};
  return out;
}

JsonArray prompt_logprobs_json(std::span<const GeneratedToken> tokens, const LogprobFormat& format) {
  JsonArray out = {nullptr};
  for (const GeneratedToken& token : tokens) {
    JsonObject alternatives;
    const auto add = [&](int32_t id, float logprob, size_t rank) {
      JsonObject entry;
      entry["logprob"] = finite(logprob);
      if (rank > 0) entry["rank"] = rank;
      entry["decoded_token"] = replace_invalid_utf8(bytes_of(id, format));
      alternatives[std::to_string(id)] = std::move(entry);
    };
    add(token.id, token.logprob, 0);
    for (size_t i = 0; i < token.top.size(); ++i) add(token.top[i].first, token.top[i].second, i + 1);
    out.push_back(std::move(alternatives));
  }
  return out;
}

}  // namespace moesaic
