// What the caller wants the text of an answer to be: response_format, structured_outputs and their older spellings.
#pragma once

#include <optional>

#include "moesaic/engine.h"
#include "server/fields.h"

namespace moesaic {

struct StructuredOutput {
  GrammarSource source;
  std::string param;  // the field to blame when it does not compile
};

// At most one kind. Accepted besides response_format: structured_outputs {json, regex, choice, grammar, json_object}
// and guided_* (vLLM); regex, ebnf and json_schema (SGLang).
std::optional<StructuredOutput> read_structured_output(const Fields& body);

// `format` as response_format, or as text.format of /v1/responses, where name and schema lie flat.
std::optional<StructuredOutput> read_format(const Fields& format, bool flat);

// An expression that matches any of `choices` and nothing else.
std::string choice_regex(const std::vector<std::string>& choices);

}  // namespace moesaic
