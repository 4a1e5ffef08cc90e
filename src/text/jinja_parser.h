// Recursive descent over a template's tokens: expressions here, statements in jinja_parser.cc.
#pragma once

#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "text/jinja_lexer.h"
#include "text/jinja_syntax.h"

namespace moesaic::jinja {

constexpr int kMaxTreeDepth = 150;

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[pos_]; }
  const Token& ahead() const { return tokens_[std::min(pos_ + 1, tokens_.size() - 1)]; }
  const Token& take() { return tokens_[pos_ + 1 < tokens_.size() ? pos_++ : pos_]; }
  bool is(TokenKind kind) const { return current().kind == kind; }
  bool is_op(std::string_view op) const { return is(TokenKind::op) && current().name == op; }
  bool is_name(std::string_view name) const { return is(TokenKind::name) && current().name == name; }
  bool skip_op(std::string_view op) { return is_op(op) && (take(), true); }
  bool skip_name(std::string_view name) { return is_name(name) && (take(), true); }
  void expect_op(std::string_view op);
  std::string expect_name();
  void expect(TokenKind kind, std::string_view what);
  [[noreturn]] void fail(const std::string& message) const { throw SyntaxFailure(current().line, message); }
  std::string describe() const;

 private:
  std::vector<Token> tokens_;
  size_t pos_ = 0;
};

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  ExpressionPtr parse_expression(bool conditional = true);
  // Expressions up to the end of the tag or the name `stop`; a comma makes them a tuple.
  ExpressionPtr parse_tuple(bool conditional = true, std::string_view stop = {}, bool parenthesised = false);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_filters(ExpressionPtr operand);     // | a | b(1)
  ExpressionPtr parse_one_filter(ExpressionPtr operand);  // a(1), without the bar

  // Names read since the matching push; tells which special names a macro uses.
  void push_names() { names_.emplace_back(); }
  std::set<std::string> pop_names();

  // Unknown filters and tests inside an if are an error only when they are reached, as in jinja2.
  int optional_depth = 0;

  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser);
    ~Nesting() { --parser_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionParser& parser_;
  };

 private:
  ExpressionPtr make(ExpressionKind kind, int line, std::string name = {});
  ExpressionPtr join(ExpressionPtr node, ExpressionPtr child);  // appends a child
  ExpressionPtr parse_binary(int level);
  ExpressionPtr parse_comparison();
  ExpressionPtr parse_not();
  ExpressionPtr parse_unary(bool with_filters);
  ExpressionPtr parse_postfix(ExpressionPtr node);
  ExpressionPtr parse_filter_chain(ExpressionPtr node);
  ExpressionPtr parse_subscript(ExpressionPtr node);
  ExpressionPtr parse_slice(ExpressionPtr object, ExpressionPtr first);
  ExpressionPtr parse_call(ExpressionPtr callee);
  ExpressionPtr parse_test(ExpressionPtr operand);
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  std::string parse_dotted_name();
  void parse_arguments(Expression& call);

  TokenStream& tokens_;
  int depth_ = 0;
  std::vector<std::set<std::string>> names_;
};

}  // namespace moesaic::jinja
