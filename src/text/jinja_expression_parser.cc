#include <algorithm>

#include "text/jinja_filters.h"
#include "text/jinja_parser.h"

namespace moesaic::jinja {
namespace {

using enum ExpressionKind;

struct Level {
  std::initializer_list<std::string_view> operators;
};
// Weakest first. Concatenation sits between addition and multiplication; ** groups to the left, as in jinja2.
const Level kLevels[] = {{{"+", "-"}}, {{"~"}}, {{"*", "/", "//", "%"}}, {{"**"}}};
constexpr int kLevelCount = 4;

bool ends_tuple(const TokenStream& tokens, std::string_view stop) {
  return tokens.is(TokenKind::variable_end) || tokens.is(TokenKind::block_end) || tokens.is_op(")") ||
         (!stop.empty() && tokens.is_name(stop));
}

}  // namespace

void TokenStream::expect_op(std::string_view op) {
  if (!skip_op(op)) fail(fmt::format("expected '{}', found {}", op, describe()));
}

std::string TokenStream::expect_name() {
  if (!is(TokenKind::name)) fail(fmt::format("expected a name, found {}", describe()));
  return take().name;
}

void TokenStream::expect(TokenKind kind, std::string_view what) {
  if (!is(kind)) fail(fmt::format("expected {}, found {}", what, describe()));
  take();
}

std::string TokenStream::describe() const {
  switch (current().kind) {
    case TokenKind::end: return "the end of the template";
    case TokenKind::data: return "text";
    case TokenKind::string: return "a string";
    case TokenKind::integer:
    case TokenKind::real: return "a number";
    case TokenKind::block_end: return "'%}'";
    case TokenKind::variable_end: return "'}}'";
    default: return "'" + current().name + "'";
  }
}

ExpressionParser::Nesting::Nesting(ExpressionParser& parser) : parser_(parser) {
  if (++parser_.depth_ > kMaxTreeDepth) {
    --parser_.depth_;
    parser_.tokens_.fail(fmt::format("nested deeper than {} levels", kMaxTreeDepth));
  }
}

std::set<std::string> ExpressionParser::pop_names() {
  std::set<std::string> names = std::move(names_.back());
  names_.pop_back();
  return names;
}

ExpressionPtr ExpressionParser::make(ExpressionKind kind, int line, std::string name) {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = line;
  node->name = std::move(name);
  return node;
}

ExpressionPtr ExpressionParser::join(ExpressionPtr node, ExpressionPtr child) {
  if (child != nullptr) node->depth = std::max(node->depth, child->depth + 1);
  if (node->depth > kMaxTreeDepth) tokens_.fail(fmt::format("expression deeper than {} levels", kMaxTreeDepth));
  node->children.push_back(std::move(child));
  return node;
}

ExpressionPtr ExpressionParser::parse_expression(bool conditional) {
  const Nesting nesting(*this);
  const int line = tokens_.current().line;
  ExpressionPtr value = parse_binary(-2);
  while (conditional && tokens_.skip_name("if")) {
    ++optional_depth;
    ExpressionPtr node = make(ExpressionKind::conditional, line);
    node = join(std::move(node), parse_binary(-2));
    node = join(std::move(node), std::move(value));
    value = join(std::move(node), tokens_.skip_name("else") ? parse_expression() : nullptr);
    --optional_depth;
  }
  return value;
}

// Levels -2 and -1 are `or` and `and`; from 0 on kLevels.
ExpressionPtr ExpressionParser::parse_binary(int level) {
  if (level == kLevelCount) return parse_unary(true);
  const auto operand = [&] { return level == -1 ? parse_not() : parse_binary(level + 1); };
  ExpressionPtr left = operand();
  while (true) {
    const int line = tokens_.current().line;
    if (level < 0) {
      if (!tokens_.skip_name(level == -2 ? "or" : "and")) return left;
      left = join(make(level == -2 ? disjunction : conjunction, line), std::move(left));
    } else {
      const auto& operators = kLevels[level].operators;
      const bool here = tokens_.is(TokenKind::op) &&
                        std::find(operators.begin(), operators.end(), tokens_.current().name) != operators.end();
      if (!here) return left;
      const std::string op = tokens_.take().name;
      // a ~ b ~ c is one node, so that a long concatenation is not a deep tree.
      if (op != "~" || left->kind != concat || left->name != "~")
        left = join(make(op == "~" ? concat : binary, line, op), std::move(left));
    }
    left = join(std::move(left), operand());
  }
}

ExpressionPtr ExpressionParser::parse_not() {
  const Nesting nesting(*this);
  const int line = tokens_.current().line;
  if (tokens_.skip_name("not")) return join(make(negation, line), parse_not());
  return parse_comparison();
}

ExpressionPtr ExpressionParser::parse_comparison() {
  static constexpr std::string_view kOperators[] = {"==", "!=", "<", "<=", ">", ">="};
  const int line = tokens_.current().line;
  ExpressionPtr first = parse_binary(0);
  ExpressionPtr node = make(comparison, line);
  while (true) {
    const bool symbol = tokens_.is(TokenKind::op) && std::find(std::begin(kOperators), std::end(kOperators),
                                                               tokens_.current().name) != std::end(kOperators);
    const bool not_in =
        tokens_.is_name("not") && tokens_.ahead().kind == TokenKind::name && tokens_.ahead().name == "in";
    if (!symbol && !not_in && !tokens_.is_name("in")) break;
    std::string op = tokens_.take().name;
    if (not_in) tokens_.take(), op = "not in";
    if (node->children.empty()) node = join(std::move(node), std::move(first));
    node->operators.push_back(std::move(op));
    node = join(std::move(node), parse_binary(0));
  }
  return node->children.empty() ? std::move(first) : std::move(node);
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filters) {
  const Nesting nesting(*this);
  const int line = tokens_.current().line;
  ExpressionPtr node;
  if (tokens_.is_op("-") || tokens_.is_op("+")) {
    node = make(unary, line, tokens_.take().name);
    node = join(std::move(node), parse_unary(false));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filters ? parse_filter_chain(std::move(node)) : std::move(node);
}

ExpressionPtr ExpressionParser::parse_primary() {
  const Nesting nesting(*this);
  const int line = tokens_.current().line;
  ExpressionPtr node = make(constant, line);
  if (tokens_.is(TokenKind::name)) {
    const std::string name = tokens_.take().name;
    if (name == "true" || name == "True" || name == "false" || name == "False") {
      node->constant = name == "true" || name == "True";
    } else if (name != "none" && name != "None") {
      for (std::set<std::string>& names : names_) names.insert(name);
      node = make(variable, line, name);
    }
  } else if (tokens_.is(TokenKind::string)) {
    Text text;
    while (tokens_.is(TokenKind::string)) text += tokens_.take().text;
    node->constant = make_text(std::move(text));
  } else if (tokens_.is(TokenKind::integer) || tokens_.is(TokenKind::real)) {
    node->constant = tokens_.take().number;
  } else if (tokens_.skip_op("(")) {
    node = parse_tuple(true, {}, true);
    tokens_.expect_op(")");
  } else if (tokens_.is_op("[")) {
    node = parse_list();
  } else if (tokens_.is_op("{")) {
    node = parse_dict();
  } else {
    tokens_.fail("expected an expression, found " + tokens_.describe());
  }
  return node;
}

ExpressionPtr ExpressionParser::parse_tuple(bool conditional, std::string_view stop, bool parenthesised) {
  ExpressionPtr node = make(tuple, tokens_.current().line);
  bool comma = false;
  while (!ends_tuple(tokens_, stop)) {
    node = join(std::move(node), parse_expression(conditional));
    if (!tokens_.skip_op(",")) break;
    comma = true;
  }
  if (comma || (parenthesised && node->children.empty())) return node;
  if (node->children.empty()) tokens_.fail("expected an expression, found " + tokens_.describe());
  return std::move(node->children[0]);
}

ExpressionPtr ExpressionParser::parse_list() {
  ExpressionPtr node = make(list, tokens_.current().line);
  tokens_.expect_op("[");
  while (!tokens_.is_op("]")) {
    node = join(std::move(node), parse_expression());
    if (!tokens_.skip_op(",")) break;
  }
  tokens_.expect_op("]");
  return node;
}

ExpressionPtr ExpressionParser::parse_dict() {
  ExpressionPtr node = make(dict, tokens_.current().line);
  tokens_.expect_op("{");
  while (!tokens_.is_op("}")) {
    node = join(std::move(node), parse_expression());
    tokens_.expect_op(":");
    node = join(std::move(node), parse_expression());
    if (!tokens_.skip_op(",")) break;
  }
  tokens_.expect_op("}");
  return node;
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr node) {
  while (true) {
    if (tokens_.is_op(".") || tokens_.is_op("[")) node = parse_subscript(std::move(node));
    else if (tokens_.is_op("(")) node = parse_call(std::move(node));
    else return node;
  }
}

ExpressionPtr ExpressionParser::parse_filter_chain(ExpressionPtr node) {
  while (true) {
    if (tokens_.is_op("|")) node = parse_filters(std::move(node));
    else if (tokens_.is_name("is")) node = parse_test(std::move(node));
    else if (tokens_.is_op("(")) node = parse_call(std::move(node));
    else return node;
  }
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr object) {
  const int line = tokens_.current().line;
  if (tokens_.skip_op(".")) {
    if (tokens_.is(TokenKind::integer)) {
      ExpressionPtr index = make(constant, line);
      index->constant = tokens_.take().number;
      return join(join(make(item, line), std::move(object)), std::move(index));
    }
    ExpressionPtr node = make(attribute, line, tokens_.expect_name());
    node->constant = make_text(decode_utf8(node->name));
    return join(std::move(node), std::move(object));
  }
  tokens_.expect_op("[");
  ExpressionPtr first;
  if (tokens_.is_op("]")) first = make(tuple, line);  // jinja2 takes x[] for x[()]
  else if (!tokens_.is_op(":")) first = parse_expression();
  if (tokens_.is_op(":")) return parse_slice(std::move(object), std::move(first));
  if (tokens_.is_op(",")) {
    first = join(make(tuple, line), std::move(first));
    while (tokens_.skip_op(",")) first = join(std::move(first), parse_expression());
  }
  tokens_.expect_op("]");
  return join(join(make(item, line), std::move(object)), std::move(first));
}

ExpressionPtr ExpressionParser::parse_slice(ExpressionPtr object, ExpressionPtr first) {
  ExpressionPtr node = join(join(make(slice, tokens_.current().line), std::move(object)), std::move(first));
  for (int part = 0; part < 2; ++part) {
    const bool present = tokens_.skip_op(":");
    const bool empty = !present || tokens_.is_op(":") || tokens_.is_op("]");
    node = join(std::move(node), empty ? nullptr : parse_expression());
  }
  tokens_.expect_op("]");
  return node;
}

void ExpressionParser::parse_arguments(Expression& call) {
  const auto deepen = [&](const Expression& e) { call.depth = std::max(call.depth, e.depth + 1); };
  tokens_.expect_op("(");
  while (!tokens_.is_op(")")) {
    if (tokens_.skip_op("*")) {
      if (call.star || call.star_star) tokens_.fail("invalid arguments of a call");
      deepen(*(call.star = parse_expression()));
    } else if (tokens_.skip_op("**")) {
      if (call.star_star) tokens_.fail("invalid arguments of a call");
      deepen(*(call.star_star = parse_expression()));
    } else if (tokens_.is(TokenKind::name) && tokens_.ahead().kind == TokenKind::op && tokens_.ahead().name == "=") {
      std::string name = tokens_.take().name;
      tokens_.take();
      for (const auto& keyword : call.keywords)
        if (keyword.first == name) tokens_.fail("keyword argument '" + name + "' is repeated");
      call.keywords.emplace_back(std::move(name), parse_expression());
      deepen(*call.keywords.back().second);
    } else {
      if (call.star || call.star_star || !call.keywords.empty())
        tokens_.fail("positional argument after a keyword argument");
      call.children.push_back(parse_expression());
      deepen(*call.children.back());
    }
    if (!tokens_.skip_op(",")) break;
  }
  tokens_.expect_op(")");
  if (call.depth > kMaxTreeDepth) tokens_.fail(fmt::format("expression deeper than {} levels", kMaxTreeDepth));
}

ExpressionPtr ExpressionParser::parse_call(ExpressionPtr callee) {
  ExpressionPtr node = join(make(call, tokens_.current().line), std::move(callee));
  parse_arguments(*node);
  return node;
}

std::string ExpressionParser::parse_dotted_name() {
  std::string name = tokens_.expect_name();
  while (tokens_.skip_op(".")) name += "." + tokens_.expect_name();
  return name;
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr operand) {
  while (tokens_.skip_op("|")) operand = parse_one_filter(std::move(operand));
  return operand;
}

ExpressionPtr ExpressionParser::parse_one_filter(ExpressionPtr operand) {
  const int line = tokens_.current().line;
  ExpressionPtr node = make(filter, line, parse_dotted_name());
  if (operand == nullptr) operand = make(captured, line);
  node = join(std::move(node), std::move(operand));
  if (!has_filter(node->name) && optional_depth == 0) throw SyntaxFailure(line, "unknown filter '" + node->name + "'");
  if (tokens_.is_op("(")) parse_arguments(*node);
  return node;
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr operand) {
  const int line = tokens_.take().line;
  const bool negated = tokens_.skip_name("not");
  ExpressionPtr node = join(make(test, line, parse_dotted_name()), std::move(operand));
  if (!has_test(node->name) && optional_depth == 0) throw SyntaxFailure(line, "unknown test '" + node->name + "'");
  const bool name =
      tokens_.is(TokenKind::name) && !tokens_.is_name("else") && !tokens_.is_name("or") && !tokens_.is_name("and");
  if (tokens_.is_op("(")) {
    parse_arguments(*node);
  } else if (name || tokens_.is(TokenKind::string) || tokens_.is(TokenKind::integer) || tokens_.is(TokenKind::real) ||
             tokens_.is_op("[") || tokens_.is_op("{")) {
    if (tokens_.is_name("is")) tokens_.fail("tests cannot be chained with is");
    node = join(std::move(node), parse_postfix(parse_primary()));
  }
  return negated ? join(make(negation, line), std::move(node)) : std::move(node);
}

}  // namespace moesaic::jinja
