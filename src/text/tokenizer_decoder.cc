#include "text/tokenizer_decoder.h"

#include <algorithm>

#include "base/error.h"
#include "text/pre_tokenizer.h"
#include "text/unicode.h"

namespace moesaic {
namespace {

constexpr size_t kMaxSteps = 16;
constexpr size_t kMaxContentBytes = 16;  // of a replacement; keeps the table of token bytes small

std::string replace_all(std::string_view text, std::string_view pattern, std::string_view content) {
  std::string out;
  size_t end = 0;
  for (size_t at = text.find(pattern); at != std::string_view::npos; at = text.find(pattern, end)) {
    out.append(text.substr(end, at - end)).append(content);
    end = at + pattern.size();
  }
  return out.append(text.substr(end));
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

}  // namespace

TokenDecoder::TokenDecoder(const Json* value, const std::string& where) {
  if (value == nullptr) separator_ = " ";
  else add(*value, where);
}

void TokenDecoder::add(const Json& value, const std::string& where) {
  const JsonObject& object = json_object(value, where);
  const std::string type = json_string(object, "type", where);
  if (type != "Sequence") return add_step(object, type, where);
  const Json* list = json_find(object, "decoders");
  if (list == nullptr || !list->is_array()) fail_data(where, "Sequence has no list \"decoders\"");
  for (const Json& item : list->get_array()) add(item, where);
}

void TokenDecoder::add_step(const JsonObject& object, const std::string& type, const std::string& where) {
  if (steps_.size() >= kMaxSteps) fail_data(where, "has more than {} steps", kMaxSteps);
  if (type == "Fuse") {
    fused_ = true;
    return;
  }
  if (fused_ && type != "Strip")
    fail_data(where, "decoder {} comes after the tokens were joined; expected only Strip there", quote_beginning(type));
  if (type == "ByteLevel") {
    steps_.emplace_back(ByteLevel{});
    fused_ = true;
  } else if (type == "ByteFallback") {
    steps_.emplace_back(ByteFallback{});
  } else if (type == "Metaspace") {
    const MetaspaceStep step = parse_metaspace(object, where);
    steps_.emplace_back(Metaspace{step.replacement, step.scheme != PrependScheme::never});
    start_differs_ = true;
  } else if (type == "Replace") {
    const Json* pattern = json_find(object, "pattern");
    if (pattern == nullptr) fail_data(where, "Replace has no \"pattern\"");
    Replace step{json_string(json_object(*pattern, where), "String", where), json_string(object, "content", where)};
    if (step.pattern.empty() || step.content.size() > kMaxContentBytes)
      fail_data(where, "Replace writes {} bytes for {}; expected a pattern and at most {} bytes", step.content.size(),
                step.pattern.size(), kMaxContentBytes);
    steps_.emplace_back(std::move(step));
  } else if (type == "Strip") {
    const std::string content = json_string(object, "content", where);
    const int64_t start = json_int(object, "start", where, 0), stop = json_int(object, "stop", where, 0);
    if (content.size() != 1 || !is_ascii(content) || start < 0 || start > 1000 || stop < 0 || stop > 1000)
      fail_data(where, "Strip takes {} and {} of {}; expected up to 1000 of one ASCII character", start, stop,
                quote_beginning(content));
    const Strip step{content[0], static_cast<uint32_t>(start), static_cast<uint32_t>(stop)};
    if (fused_ && (stop != 0 || whole_.start != 0))
      fail_data(where, "Strip after the tokens were joined can only take from the start, once");
    if (fused_) whole_ = step;
    else steps_.emplace_back(step);
  } else {
    fail_data(where,
              "decoder type {} is not supported; expected Sequence, ByteLevel, Metaspace, Replace, "
              "ByteFallback, Fuse or Strip",
              quote_beginning(type));
  }
}

std::string TokenDecoder::bytes(std::string_view token, bool literal, bool at_start) const {
  std::string out(token);
  for (const auto& step : steps_)
    out = std::visit([&](const auto& s) { return apply(s, std::move(out), literal, at_start); }, step);
  return out;
}

void TokenDecoder::append(std::string_view bytes, DecodeState& state, std::string& out) const {
  if (!std::exchange(state.at_start, false)) out += separator_;
  while (!state.strip_done && state.stripped < whole_.start && bytes.starts_with(whole_.character)) {
    bytes.remove_prefix(1);
    ++state.stripped;
  }
  if (!bytes.empty()) state.strip_done = true;
  out += bytes;
}

// A token with a character outside the byte alphabet stands for itself.
std::string TokenDecoder::apply(ByteLevel, std::string token, bool literal, bool) {
  std::string out;
  for (size_t i = 0; i < token.size() && !literal;) {
    const CodePoint code = code_point_at(token, i);
    const int byte = byte_of(code.value);
    if (byte < 0) return token;
    out += static_cast<char>(byte);
    i += code.size;
  }
  return literal ? token : out;
}

std::string TokenDecoder::apply(ByteFallback, std::string token, bool, bool) {  // <0x41>
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return token;
  const int high = hex_digit(token[3]), low = hex_digit(token[4]);
  return high < 0 || low < 0 ? token : std::string(1, static_cast<char>(high * 16 + low));
}

std::string TokenDecoder::apply(const Metaspace& step, std::string token, bool, bool at_start) {
  return replace_all(token, step.replacement, at_start && step.prefix ? "" : " ");
}

std::string TokenDecoder::apply(const Replace& step, std::string token, bool, bool) {
  return replace_all(token, step.pattern, step.content);
}

std::string TokenDecoder::apply(const Strip& step, std::string token, bool, bool) {
  size_t begin = 0, end = token.size();
  while (begin < end && begin < step.start && token[begin] == step.character) ++begin;
  for (uint32_t i = 0; i < step.stop && end > begin && token[end - 1] == step.character; ++i) --end;
  return token.substr(begin, end - begin);
}

}  // namespace moesaic
