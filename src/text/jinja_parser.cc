#include "text/jinja_parser.h"

#include <algorithm>

namespace moesaic::jinja {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)), expressions_(tokens_) {}

  Body run() { return parse_body({}, "", 1); }

 private:
  using Names = std::initializer_list<std::string_view>;

  // Statements up to one of `ends` (left as the current token), or to the end of the template when there are none.
  Body parse_body(Names ends, std::string_view opener, int line) {
    const ExpressionParser::Nesting nesting(expressions_);
    Body body;
    while (!tokens_.is(TokenKind::end)) {
      if (tokens_.is(TokenKind::data)) {
        Statement& text = add(body, StatementKind::text);
        text.text = tokens_.take().text;
      } else if (tokens_.is(TokenKind::variable_begin)) {
        tokens_.take();
        add(body, StatementKind::output).values.push_back(expressions_.parse_tuple());
        tokens_.expect(TokenKind::variable_end, "'}}'");
      } else {
        tokens_.expect(TokenKind::block_begin, "'{%'");
        if (!tokens_.is(TokenKind::name)) tokens_.fail("expected the name of a tag, found " + tokens_.describe());
        if (std::find(ends.begin(), ends.end(), tokens_.current().name) != ends.end()) return body;
        parse_statement(body);
        tokens_.expect(TokenKind::block_end, "'%}'");
      }
    }
    if (ends.size() > 0)
      throw SyntaxFailure(line, fmt::format("this {} block has no {{% {} %}}", opener, *(ends.end() - 1)));
    return body;
  }

  // The rest of an opening tag and the body; the closing tag's name is taken when it is the only one possible.
  Body parse_block(Names ends, std::string_view opener) {
    tokens_.skip_op(":");
    const int line = tokens_.current().line;
    tokens_.expect(TokenKind::block_end, "'%}'");
    Body body = parse_body(ends, opener, line);
    if (ends.size() == 1) tokens_.take();
    return body;
  }

  Statement& add(Body& body, StatementKind kind) {
    body.emplace_back();
    body.back().kind = kind;
    body.back().line = tokens_.current().line;
    return body.back();
  }

  void parse_statement(Body& body) {
    const std::string tag = tokens_.current().name;
    if (tag == "for") return parse_for(add(body, StatementKind::loop));
    if (tag == "if") return parse_if(add(body, StatementKind::branch));
    if (tag == "set") return parse_set(add(body, StatementKind::set));
    if (tag == "macro") return parse_macro(add(body, StatementKind::macro));
    if (tag == "call") return parse_call(add(body, StatementKind::call));
    if (tag == "filter") return parse_filter(add(body, StatementKind::filter));
    if (tag == "with") return parse_with(add(body, StatementKind::with));
    if (tag == "generation") return parse_generation(add(body, StatementKind::generation));
    if (tag == "print") return parse_print(body);
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) tokens_.fail("'" + tag + "' outside of a loop");
      add(body, tag == "break" ? StatementKind::leave : StatementKind::next);
      tokens_.take();
      return;
    }
    static constexpr std::string_view kKnown[] = {"block", "extends", "include", "import", "from", "autoescape", "do"};
    if (std::find(std::begin(kKnown), std::end(kKnown), tag) != std::end(kKnown))
      tokens_.fail("the tag '" + tag + "' is not supported in chat templates");
    tokens_.fail("unknown or misplaced tag '" + tag + "'");
  }

  Target parse_target(std::string_view stop, bool with_attribute) {
    const Token& token = tokens_.current();
    if (with_attribute && token.kind == TokenKind::name && tokens_.ahead().kind == TokenKind::op &&
        tokens_.ahead().name == ".") {
      Target target;
      target.name = tokens_.take().name;
      tokens_.take();
      target.attribute = tokens_.expect_name();
      return target;
    }
    const int line = token.line;
    std::vector<ExpressionPtr> items;
    bool unpacks = false;
    while (!tokens_.is(TokenKind::block_end) && !tokens_.is_op("=") && !(!stop.empty() && tokens_.is_name(stop))) {
      items.push_back(expressions_.parse_primary());
      if (!tokens_.skip_op(",")) break;
      unpacks = true;
    }
    if (items.empty()) tokens_.fail("expected a name to assign to, found " + tokens_.describe());
    if (!unpacks) return to_target(*items[0]);
    Target target;
    target.unpacks = true;
    for (const ExpressionPtr& item : items) target.items.push_back(to_target(*item));
    if (target.items.empty()) throw SyntaxFailure(line, "expected names to assign to");
    return target;
  }

  static Target to_target(const Expression& e) {
    Target target;
    target.name = e.name;
    target.unpacks = e.kind == ExpressionKind::tuple || e.kind == ExpressionKind::list;
    if (!target.unpacks && e.kind != ExpressionKind::variable)
      throw SyntaxFailure(e.line, "cannot assign to this expression");
    for (const ExpressionPtr& item : e.children) target.items.push_back(to_target(*item));
    return target;
  }

  void parse_for(Statement& loop) {
    tokens_.take();
    loop.targets.push_back(parse_target("in", false));
    if (!tokens_.skip_name("in")) tokens_.fail("expected 'in', found " + tokens_.describe());
    loop.values.push_back(expressions_.parse_tuple(false, "recursive"));
    if (tokens_.skip_name("if")) loop.condition = expressions_.parse_expression();
    if (tokens_.is_name("recursive")) tokens_.fail("recursive loops are not supported; use a macro that calls itself");
    ++loops_;
    loop.body = parse_block({"else", "endfor"}, "for");
    --loops_;
    if (tokens_.take().name == "else") loop.other = parse_block({"endfor"}, "for");
  }

  void parse_if(Statement& statement) {
    ++expressions_.optional_depth;
    while (true) {
      const std::string tag = tokens_.take().name;
      Branch branch;
      if (tag == "endif") break;
      if (tag != "else") branch.condition = expressions_.parse_tuple(false);
      if (tag == "else") branch.body = parse_block({"endif"}, "if");
      else branch.body = parse_block({"elif", "else", "endif"}, "if");
      statement.branches.push_back(std::move(branch));
      if (tag == "else") break;
    }
    --expressions_.optional_depth;
  }

  void parse_set(Statement& set) {
    tokens_.take();
    set.targets.push_back(parse_target({}, true));
    if (tokens_.skip_op("=")) {
      set.values.push_back(expressions_.parse_tuple());
      return;
    }
    set.kind = StatementKind::set_block;
    set.values.push_back(tokens_.skip_op("|") ? expressions_.parse_filters(expressions_.parse_one_filter(nullptr))
                                              : nullptr);
    set.body = parse_block({"endset"}, "set");
  }

  void parse_parameters(Statement& macro) {
    tokens_.expect_op("(");
    while (!tokens_.is_op(")")) {
      Parameter parameter;
      parameter.name = tokens_.expect_name();
      if (tokens_.skip_op("=")) parameter.fallback = expressions_.parse_expression();
      else if (!macro.parameters.empty() && macro.parameters.back().fallback)
        tokens_.fail("a parameter without a default follows one with a default");
      for (const Parameter& p : macro.parameters)
        if (p.name == parameter.name) tokens_.fail("parameter '" + p.name + "' is repeated");
      macro.parameters.push_back(std::move(parameter));
      if (!tokens_.is_op(")")) tokens_.expect_op(",");
    }
    tokens_.expect_op(")");
  }

  // A body that becomes a function: break and continue do not reach through it.
  Body parse_function_body(Names ends, std::string_view opener, Statement& function) {
    const int outer = std::exchange(loops_, 0);
    expressions_.push_names();
    Body body = parse_block(ends, opener);
    const std::set<std::string> names = expressions_.pop_names();
    function.takes_varargs = names.contains("varargs");
    function.takes_kwargs = names.contains("kwargs");
    function.takes_caller = names.contains("caller");
    loops_ = outer;
    return body;
  }

  void parse_macro(Statement& macro) {
    tokens_.take();
    macro.name = tokens_.expect_name();
    parse_parameters(macro);
    macro.body = parse_function_body({"endmacro"}, "macro", macro);
  }

  void parse_call(Statement& call) {
    tokens_.take();
    if (tokens_.is_op("(")) parse_parameters(call);
    call.values.push_back(expressions_.parse_expression());
    if (call.values[0]->kind != ExpressionKind::call) throw SyntaxFailure(call.line, "expected the call of a macro");
    call.body = parse_function_body({"endcall"}, "call", call);
  }

  void parse_generation(Statement& generation) {
    tokens_.take();
    generation.body = parse_function_body({"endgeneration"}, "generation", generation);
  }

  void parse_filter(Statement& filter) {
    tokens_.take();
    filter.values.push_back(expressions_.parse_filters(expressions_.parse_one_filter(nullptr)));
    filter.body = parse_block({"endfilter"}, "filter");
  }

  void parse_with(Statement& with) {
    tokens_.take();
    while (!tokens_.is(TokenKind::block_end)) {
      if (!with.targets.empty()) tokens_.expect_op(",");
      Target target;
      target.name = tokens_.expect_name();
      with.targets.push_back(std::move(target));
      tokens_.expect_op("=");
      with.values.push_back(expressions_.parse_expression());
    }
    with.body = parse_block({"endwith"}, "with");
  }

  void parse_print(Body& body) {
    tokens_.take();
    while (!tokens_.is(TokenKind::block_end)) {
      add(body, StatementKind::output).values.push_back(expressions_.parse_expression());
      if (!tokens_.is(TokenKind::block_end)) tokens_.expect_op(",");
    }
  }

  TokenStream tokens_;
  ExpressionParser expressions_;
  int loops_ = 0;
};

}  // namespace

Body parse(std::string_view source) {
  return Parser(source).run();
}

}  // namespace moesaic::jinja
