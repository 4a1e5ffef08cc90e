#include "text/tokenizer_normalizer.h"

#include <optional>

#include "base/error.h"
#include "text/unicode.h"

namespace moesaic {
namespace {

// A space becomes three bytes in published files; the limit only stops files that are made to blow up.
constexpr double kMaxGrowth = 64;
constexpr size_t kMaxPrependBytes = 256;
constexpr size_t kMaxSteps = 64;

std::optional<NormalForm> normal_form(std::string_view type) {
  if (type == "NFC") return NormalForm::nfc;
  if (type == "NFD") return NormalForm::nfd;
  if (type == "NFKC") return NormalForm::nfkc;
  if (type == "NFKD") return NormalForm::nfkd;
  return std::nullopt;
}

std::string replace_spans(std::string_view text, const std::vector<Span>& matches, std::string_view content) {
  std::string out;
  size_t end = 0;
  for (const Span& match : matches) {
    out.append(text.substr(end, match.begin - end)).append(content);
    end = match.end;
  }
  return out.append(text.substr(end));
}

std::string replace_string(std::string_view text, std::string_view pattern, std::string_view content) {
  std::vector<Span> matches;
  for (size_t at = text.find(pattern); at != std::string_view::npos; at = text.find(pattern, at + pattern.size()))
    matches.push_back({at, at + pattern.size()});
  return replace_spans(text, matches, content);
}

}  // namespace

Normalizer::Normalizer(const Json* value, const std::string& where) {
  if (value != nullptr) add(*value, where);
}

void Normalizer::add(const Json& value, const std::string& where) {
  const JsonObject& object = json_object(value, where);
  const std::string type = json_string(object, "type", where);
  if (steps_.size() >= kMaxSteps) fail_data(where, "has more than {} steps", kMaxSteps);
  if (type == "Sequence") {
    const Json* list = json_find(object, "normalizers");
    if (list == nullptr || !list->is_array()) fail_data(where, "Sequence has no list \"normalizers\"");
    for (const Json& item : list->get_array()) add(item, where);
  } else if (const auto form = normal_form(type)) {
    steps_.emplace_back(*form);
  } else if (type == "Lowercase") {
    steps_.emplace_back(Lowercase{});
  } else if (type == "StripAccents") {
    steps_.emplace_back(StripAccents{});
  } else if (type == "Strip") {
    steps_.emplace_back(
        Strip{json_bool(object, "strip_left", where, true), json_bool(object, "strip_right", where, true)});
  } else if (type == "Prepend") {
    Prepend step{json_string(object, "prepend", where)};
    if (step.text.size() > kMaxPrependBytes)
      fail_data(where, "Prepend adds {} bytes; expected at most {}", step.text.size(), kMaxPrependBytes);
    steps_.emplace_back(std::move(step));
  } else if (type == "Replace") {
    add_replace(object, where);
  } else {
    fail_data(where,
              "normalizer type {} is not supported; expected Sequence, NFC, NFD, NFKC, NFKD, Lowercase, "
              "StripAccents, Strip, Prepend or Replace",
              quote_beginning(type));
  }
}

void Normalizer::add_replace(const JsonObject& object, const std::string& where) {
  const Json* pattern = json_find(object, "pattern");
  if (pattern == nullptr) fail_data(where, "Replace has no \"pattern\"");
  const JsonObject& kind = json_object(*pattern, where + ": pattern");
  const bool regex = json_find(kind, "Regex") != nullptr;
  const std::string text = json_string(kind, regex ? "Regex" : "String", where);
  std::string content = json_string(object, "content", where);
  if (text.empty()) fail_data(where, "Replace has an empty pattern; expected text to look for");
  const double per_match = static_cast<double>(content.size());
  growth_ *= std::max(1.0, regex ? 1 + per_match : per_match / static_cast<double>(text.size()));
  if (growth_ > kMaxGrowth) fail_data(where, "the Replace steps can make a text over {} times longer", kMaxGrowth);
  if (regex) steps_.emplace_back(Replace{Regex(text, where), std::move(content)});
  else steps_.emplace_back(Replace{text, std::move(content)});
}

std::string Normalizer::run(std::string_view text, RegexScratch& scratch) const {
  std::string out(text);
  for (const Step& step : steps_)
    out = std::visit([&](const auto& s) { return apply(s, std::move(out), scratch); }, step);
  return out;
}

std::string Normalizer::apply(NormalForm form, std::string text, RegexScratch&) {
  return normalize(text, form);
}

std::string Normalizer::apply(Lowercase, std::string text, RegexScratch&) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const CodePoint code = code_point_at(text, i);
    if (code.value == 0x130) out += "i\xCC\x87";  // the only character whose full lower case is two characters
    else append_utf8(out, to_lower(code.value));
    i += code.size;
  }
  return out;
}

std::string Normalizer::apply(StripAccents, std::string text, RegexScratch&) {
  if (is_ascii(text)) return text;
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const CodePoint code = code_point_at(text, i);
    if (!is_mark(code.value)) out.append(text, i, code.size);
    i += code.size;
  }
  return out;
}

std::string Normalizer::apply(const Strip& step, std::string text, RegexScratch&) {
  size_t begin = 0, end = text.size();
  for (CodePoint code; step.left && begin < end; begin += code.size) {
    code = code_point_at(text, begin);
    if (!is_white_space(code.value)) break;
  }
  while (step.right && end > begin) {
    const size_t last = previous_code_point(text, end);
    if (!is_white_space(code_point_at(text, last).value)) break;
    end = last;
  }
  return text.substr(begin, end - begin);
}

std::string Normalizer::apply(const Prepend& step, std::string text, RegexScratch&) {
  return text.empty() ? text : step.text + text;
}

std::string Normalizer::apply(const Replace& step, std::string text, RegexScratch& scratch) {
  if (const std::string* pattern = std::get_if<std::string>(&step.pattern))
    return replace_string(text, *pattern, step.content);
  std::vector<Span> matches;
  std::get<Regex>(step.pattern).find_all(text, scratch, matches);  // gave up: the rest stays as it is
  return replace_spans(text, matches, step.content);
}

}  // namespace moesaic
