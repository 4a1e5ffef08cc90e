#include "base/error.h"
#include "grammar/compiled.h"
#include "grammar/grammar_text.h"
#include "grammar/regex_parser.h"
#include "grammar/schema.h"
#include "text/unicode.h"

namespace moesaic {
namespace {

using grammar::Pool;

Json parse_schema(const std::string& text, const GrammarLimits& limits) {
  return parse_json(text, "the JSON schema", {.max_depth = static_cast<int>(limits.depth)});
}

void read_source(Pool& pool, const GrammarSource& source, const Tokenizer& tokenizer) {
  if (source.kind == GrammarSource::Kind::grammar) return read_grammar_text(pool, source.text, tokenizer);
  const auto root = static_cast<size_t>(pool.add_rule("root"));
  grammar::JsonText json(pool);
  grammar::ExprId body = pool.never();
  switch (source.kind) {
    case GrammarSource::Kind::json_object: body = json.object(); break;
    case GrammarSource::Kind::json_schema:
      body = schema_values(pool, json, parse_schema(source.text, pool.limits));
      break;
    default:
      body =
          parse_regex(pool, source.text, grammar::Spelling::utf8, grammar::Anchoring::full, "the regular expression");
  }
  pool.rules[root].body = body;
}

Status invalid(std::string message) {
  return {StatusCode::invalid_argument, std::move(message)};
}

}  // namespace

Result<std::shared_ptr<const Grammar>> compile_grammar(const GrammarSource& source, const Tokenizer& tokenizer,
                                                       const GrammarLimits& limits) {
  const auto size = static_cast<int64_t>(source.text.size());
  if (size > limits.source_bytes)
    return invalid(fmt::format("the grammar has {} bytes, more than the {} that are allowed; make it shorter", size,
                               limits.source_bytes));
  if (replace_invalid_utf8(source.text) != source.text)
    return invalid("the grammar is not valid UTF-8; send it as UTF-8");
  // What the parts throw is about the caller's text alone: it ends here, as a Status.
  try {
    Pool pool(limits);
    read_source(pool, source, tokenizer);
    return std::shared_ptr<const Grammar>(std::make_shared<Grammar>(build_automaton(pool)));
  } catch (const Error& error) {
    return invalid(error.what());
  }
}

}  // namespace moesaic
