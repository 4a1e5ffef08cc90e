// The tree of a parsed template.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/jinja_value.h"

namespace moesaic::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class ExpressionKind {
  constant,
  variable,
  list,
  tuple,
  dict,
  attribute,
  item,
  slice,
  call,
  filter,
  test,
  unary,
  negation,
  binary,
  concat,
  comparison,
  conjunction,
  disjunction,
  conditional,
  captured,  // the text of the block that a filter is applied to
};

struct Expression {
  ExpressionKind kind = ExpressionKind::constant;
  int line = 0;
  int depth = 1;     // of the tree below
  Value constant;    // constant; the key of an attribute
  std::string name;  // variable, attribute, filter, test; operator of unary and binary
  // Operands in source order. attribute, item, slice, call, filter, test: the object first, then subscripts or
  // positional arguments. dict: key, value, key, value. conditional: condition, value, other value or null.
  std::vector<ExpressionPtr> children;
  std::vector<std::string> operators;  // comparison
  std::vector<std::pair<std::string, ExpressionPtr>> keywords;
  ExpressionPtr star, star_star;  // *args and **kwargs of a call
};

struct Target {
  std::string name;
  std::string attribute;  // set ns.attribute = ...
  bool unpacks = false;
  std::vector<Target> items;  // when it unpacks
};

enum class StatementKind {
  text,
  output,
  branch,
  loop,
  set,
  set_block,
  macro,
  call,
  filter,
  generation,
  with,
  leave,
  next
};

struct Statement;
using Body = std::vector<Statement>;

struct Branch {
  ExpressionPtr condition;  // null: else
  Body body;
};

struct Parameter {
  std::string name;
  ExpressionPtr fallback;  // null: required
};

struct Statement {
  StatementKind kind = StatementKind::text;
  int line = 0;
  Text text;
  std::string name;                   // macro
  std::vector<Target> targets;        // loop, set, set_block: one; with: any number
  std::vector<ExpressionPtr> values;  // output, set, with; loop: the iterable; call, filter, set_block: the filter
  ExpressionPtr condition;            // loop
  std::vector<Parameter> parameters;  // macro, call
  bool takes_varargs = false, takes_kwargs = false, takes_caller = false;
  std::vector<Branch> branches;  // branch
  Body body, other;              // other: else of a loop
};

// Throws SyntaxFailure.
Body parse(std::string_view source);

}  // namespace moesaic::jinja
