// Normalizer: the "normalizer" of tokenizer.json, applied to each section of text between added tokens.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace moesaic {

class Normalizer {
 public:
  // value: null for none. Throws Error(data_loss) naming an unknown type.
  Normalizer(const Json* value, const std::string& where);

  // text is valid UTF-8.
  std::string run(std::string_view text, RegexScratch& scratch) const;
  bool empty() const { return steps_.empty(); }

 private:
  struct Lowercase {};
  struct StripAccents {};
  struct Strip {
    bool left = true, right = true;
  };
  struct Prepend {
    std::string text;
  };
  struct Replace {
    std::variant<Regex, std::string> pattern;
    std::string content;
  };
  using Step = std::variant<NormalForm, Lowercase, StripAccents, Strip, Prepend, Replace>;

  static std::string apply(NormalForm form, std::string text, RegexScratch& scratch);
  static std::string apply(Lowercase, std::string text, RegexScratch& scratch);
  static std::string apply(StripAccents, std::string text, RegexScratch& scratch);
  static std::string apply(const Strip& step, std::string text, RegexScratch& scratch);
  static std::string apply(const Prepend& step, std::string text, RegexScratch& scratch);
  static std::string apply(const Replace& step, std::string text, RegexScratch& scratch);
  void add(const Json& value, const std::string& where);
  void add_replace(const JsonObject& object, const std::string& where);

  std::vector<Step> steps_;
  double growth_ = 1;  // at most how many times longer the Replace steps make a text
};

}  // namespace moesaic
