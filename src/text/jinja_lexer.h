// Splits a template into text and tokens as jinja2's lexer does with trim_blocks and lstrip_blocks on.
#pragma once

#include <string>
#include <vector>

#include "text/jinja_text.h"
#include "text/jinja_value.h"

namespace moesaic::jinja {

enum class TokenKind {
  data,
  block_begin,
  block_end,
  variable_begin,
  variable_end,
  name,
  string,
  integer,
  real,
  op,
  end
};

struct Token {
  TokenKind kind = TokenKind::end;
  int line = 0;
  Text text;         // data and string contents
  std::string name;  // name or operator
  Value number;      // integer and real
};

// A template that cannot be read: line and reason, without the template's name.
class SyntaxFailure : public std::runtime_error {
 public:
  SyntaxFailure(int line, const std::string& message) : std::runtime_error(fmt::format("line {}: {}", line, message)) {}
};

// Throws SyntaxFailure. The last token is `end`.
std::vector<Token> tokenize(std::string_view source);

}  // namespace moesaic::jinja
