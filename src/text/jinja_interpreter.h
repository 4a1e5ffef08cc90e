// Walks a template's tree and produces its text.
#pragma once

#include <ctime>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "text/jinja_syntax.h"
#include "text/jinja_value.h"

namespace moesaic::jinja {

// One scope. Assignments go to the innermost scope; look-ups walk outwards.
struct Frame {
  std::shared_ptr<Frame> parent;
  std::map<std::string, Value, std::less<>> variables;
  bool captured = false;  // a macro refers to it
};

// The `loop` variable.
struct Loop {
  std::function<std::optional<Value>()> pull;  // next item that passes the loop's condition; empty after the loop
  std::deque<Value> ahead;                     // pulled for nextitem, last or length, not yet visited
  Value previous = make_undefined("there is no previous item"), current;
  size_t index0 = 0;
  int depth = 1;
  std::vector<Value> last_changed;
  bool has_changed_before = false;

  bool advance();       // to the next item; false at the end
  const Value* peek();  // the item after the current one, or null
  size_t length();
};

class Interpreter {
 public:
  Interpreter(const Limits& limits, std::time_t now) : meter_(limits), now_(now) {}
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  Meter& meter() { return meter_; }
  void define(const std::string& name, Value value);
  // Throws RenderFailure.
  Text run(const Body& body);

  // For filters, tests and methods.
  Value get_attribute(const Value& object, const std::string& name, const Value& key);
  Value get_item(const Value& object, const Value& key);
  Value call(const Value& callee, Arguments arguments);
  std::vector<Value> list_of(const Value& iterable);  // uses up an iterator
  Value text_value(Text text, bool markup = false);   // counts the text
  Value list_value(std::vector<Value> items);         // counts the items

 private:
  enum class Flow { normal, leave, next };

  Value eval(const Expression& e);
  Value eval_variable(const Expression& e);
  Value eval_comparison(const Expression& e);
  Value eval_concat(const Expression& e);
  Value eval_slice(const Expression& e);
  Value eval_call(const Expression& e, const Value* caller = nullptr);
  Value eval_collection(const Expression& e);
  Value eval_filter(const Expression& e);
  Value eval_test(const Expression& e);
  Arguments eval_arguments(const Expression& e);
  Value call_global(const std::string& name, Arguments arguments);
  Value call_macro(const Callable& macro, Arguments arguments);
  void bind_macro(const Statement& macro, Frame& frame, Arguments arguments, bool is_caller);

  Flow exec(const Body& body);
  Flow exec(const Statement& s);
  Flow exec_branch(const Statement& s);
  Flow exec_loop(const Statement& s);
  void exec_set_block(const Statement& s);
  void exec_macro(const Statement& s);
  void exec_call(const Statement& s);
  Flow exec_filter(const Statement& s);
  Flow exec_with(const Statement& s);
  void assign(const Target& target, const Value& value);
  std::function<std::optional<Value>()> source_of(const Value& iterable);
  std::optional<Value> next_matching(const Statement& s, const std::function<std::optional<Value>()>& source);
  Value make_namespace(const Arguments& arguments);
  Value loop_attribute(Loop& loop, const std::string& name);
  Value strftime_now(const Arguments& arguments);
  void write(TextView text);
  // Runs `body` in a scope of its own with the output going to `out`.
  Flow capture(const Body& body, Text& out);
  void keep(const std::shared_ptr<Frame>& frame);

  Meter meter_;
  const std::time_t now_;
  std::shared_ptr<Frame> frame_ = std::make_shared<Frame>();
  Text* out_ = nullptr;
  Value captured_;  // what a filter block applies its filters to
  // Scopes and namespaces can refer to themselves, so they live until the interpreter ends, which empties them.
  std::vector<std::shared_ptr<Frame>> captured_frames_;
  std::vector<std::unique_ptr<Namespace>> namespaces_;
};

}  // namespace moesaic::jinja
