// Statements, scopes and the loop variable.
#include <algorithm>

#include "text/jinja_filters.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_operators.h"

namespace moesaic::jinja {

bool Loop::advance() {
  std::optional<Value> next;
  if (!ahead.empty()) {
    next = std::move(ahead.front());
    ahead.pop_front();
  } else {
    next = pull();
  }
  if (!next) return false;
  previous = std::exchange(current, *std::move(next));
  return true;
}

const Value* Loop::peek() {
  if (ahead.empty() && pull)
    if (std::optional<Value> next = pull()) ahead.push_back(*std::move(next));
  return ahead.empty() ? nullptr : &ahead.front();
}

size_t Loop::length() {
  while (pull) {
    std::optional<Value> next = pull();
    if (!next) break;
    ahead.push_back(*std::move(next));
  }
  return index0 + 1 + ahead.size();
}

Value Interpreter::loop_attribute(Loop& loop, const std::string& name) {
  if (name == "index") return loop.index0 + 1;
  if (name == "index0") return loop.index0;
  if (name == "first") return loop.index0 == 0;
  if (name == "last") return loop.peek() == nullptr;
  if (name == "length") return loop.length();
  if (name == "revindex") return loop.length() - loop.index0;
  if (name == "revindex0") return loop.length() - loop.index0 - 1;
  if (name == "depth") return loop.depth;
  if (name == "depth0") return loop.depth - 1;
  if (name == "previtem") return loop.index0 == 0 ? make_undefined("there is no previous item") : loop.previous;
  if (name == "nextitem") {
    const Value* next = loop.peek();
    return next != nullptr ? *next : make_undefined("there is no next item");
  }
  return make_undefined(fmt::format("'loop' has no attribute '{}'", name));
}

void Interpreter::write(TextView text) {
  meter_.grow(out_->size(), text.size());
  out_->append(text);
}

void Interpreter::keep(const std::shared_ptr<Frame>& frame) {
  if (!std::exchange(frame->captured, true)) captured_frames_.push_back(frame);
}

Interpreter::Flow Interpreter::capture(const Body& body, Text& out) {
  auto frame = std::make_shared<Frame>();
  frame->parent = frame_;
  const std::shared_ptr<Frame> outer = std::exchange(frame_, frame);
  Text* const outer_out = std::exchange(out_, &out);
  const Flow flow = exec(body);
  frame_ = outer;
  out_ = outer_out;
  return flow;
}

Interpreter::Flow Interpreter::exec(const Body& body) {
  for (const Statement& s : body) {
    const Flow flow = exec(s);
    if (flow != Flow::normal) return flow;
  }
  return Flow::normal;
}

Interpreter::Flow Interpreter::exec(const Statement& s) try {
  const DepthGuard guard(meter_);
  meter_.step();
  switch (s.kind) {
    case StatementKind::text: write(s.text); break;
    case StatementKind::output: write(to_text(eval(*s.values[0]), meter_)); break;
    case StatementKind::branch: return exec_branch(s);
    case StatementKind::loop: return exec_loop(s);
    case StatementKind::set: assign(s.targets[0], eval(*s.values[0])); break;
    case StatementKind::set_block: exec_set_block(s); break;
    case StatementKind::macro: exec_macro(s); break;
    case StatementKind::call: exec_call(s); break;
    case StatementKind::filter: return exec_filter(s);
    case StatementKind::with: return exec_with(s);
    case StatementKind::leave: return Flow::leave;
    case StatementKind::next: return Flow::next;
    case StatementKind::generation: {
      Text text;
      capture(s.body, text);
      write(text);
      break;
    }
  }
  return Flow::normal;
} catch (RenderFailure& failure) {
  if (failure.line == 0) failure.line = s.line;
  throw;
}

Interpreter::Flow Interpreter::exec_branch(const Statement& s) {
  for (const Branch& branch : s.branches)
    if (branch.condition == nullptr || truth(eval(*branch.condition))) return exec(branch.body);
  return Flow::normal;
}

std::function<std::optional<Value>()> Interpreter::source_of(const Value& iterable) {
  if (const auto* it = iterable.get<std::shared_ptr<Iterator>>())
    return [it = *it]() -> std::optional<Value> {
      return it->next < it->items.size() ? std::optional(it->items[it->next++]) : std::nullopt;
    };
  if (const auto* loop = iterable.get<std::shared_ptr<Loop>>())
    return [loop = *loop]() -> std::optional<Value> {
      if (!loop->pull || !loop->advance()) return std::nullopt;
      ++loop->index0;
      return loop->current;
    };
  const std::optional<size_t> length = length_of(iterable);
  if (!length) fail_render("'{}' object is not iterable", type_name(iterable));
  return [iterable, size = *length, i = size_t{0}]() mutable -> std::optional<Value> {
    if (i == size) return std::nullopt;
    const size_t at = i++;
    if (const Text* text = iterable.text()) return make_text(Text(1, (*text)[at]));
    return iterable.dict() != nullptr ? iterable.dict()->entries[at].first : iterable.sequence()->items[at];
  };
}

// The next item for which the loop's condition holds; the condition sees the loop's target only.
std::optional<Value> Interpreter::next_matching(const Statement& s,
                                                const std::function<std::optional<Value>()>& source) {
  while (std::optional<Value> item = source()) {
    meter_.step();
    if (s.condition == nullptr) return item;
    auto frame = std::make_shared<Frame>();
    frame->parent = frame_;
    const std::shared_ptr<Frame> outer = std::exchange(frame_, frame);
    assign(s.targets[0], *item);
    const bool matches = truth(eval(*s.condition));
    frame_ = outer;
    if (matches) return item;
  }
  return std::nullopt;
}

Interpreter::Flow Interpreter::exec_loop(const Statement& s) {
  const std::shared_ptr<Frame> outer = frame_;
  auto loop = std::make_shared<Loop>();
  loop->pull = [this, &s, outer, source = source_of(eval(*s.values[0]))]() -> std::optional<Value> {
    const std::shared_ptr<Frame> here = std::exchange(frame_, outer);
    std::optional<Value> item = next_matching(s, source);
    frame_ = here;
    return item;
  };
  size_t count = 0;
  Flow flow = Flow::normal;
  while (flow != Flow::leave && loop->advance()) {
    loop->index0 = count++;
    frame_ = std::make_shared<Frame>();
    frame_->parent = outer;
    frame_->variables["loop"] = loop;
    assign(s.targets[0], loop->current);
    flow = exec(s.body);
    frame_ = outer;
  }
  loop->pull = nullptr;
  if (count > 0 || s.other.empty()) return Flow::normal;
  frame_ = std::make_shared<Frame>();
  frame_->parent = outer;
  flow = exec(s.other);
  frame_ = outer;
  return flow;
}

void Interpreter::assign(const Target& target, const Value& value) {
  if (target.unpacks) {
    const std::vector<Value> items = list_of(value);
    if (items.size() != target.items.size())
      fail_render("{} values to unpack, expected {}", items.size(), target.items.size());
    for (size_t i = 0; i < items.size(); ++i) assign(target.items[i], items[i]);
  } else if (target.attribute.empty()) {
    frame_->variables[target.name] = value;
  } else {
    Expression variable;
    variable.name = target.name;
    const Value object = eval_variable(variable);
    const auto* ns = object.get<Namespace*>();
    if (ns == nullptr) fail_render("cannot assign attribute on non-namespace object");
    (*ns)->attributes[target.attribute] = value;
  }
}

void Interpreter::exec_set_block(const Statement& s) {
  Text text;
  capture(s.body, text);
  Value value = make_text(std::move(text));
  if (s.values[0] != nullptr) {
    const Value outer = std::exchange(captured_, value);
    value = eval(*s.values[0]);
    captured_ = outer;
  }
  assign(s.targets[0], value);
}

void Interpreter::exec_macro(const Statement& s) {
  Callable macro;
  macro.kind = Callable::Kind::macro;
  macro.name = s.name;
  macro.macro = &s;
  macro.frame = frame_;
  keep(frame_);
  frame_->variables[s.name] = std::make_shared<const Callable>(std::move(macro));
}

void Interpreter::exec_call(const Statement& s) {
  Callable caller;
  caller.kind = Callable::Kind::caller;
  caller.name = "caller";
  caller.macro = &s;
  caller.frame = frame_;
  keep(frame_);
  const Value value = std::make_shared<const Callable>(std::move(caller));
  write(to_text(eval_call(*s.values[0], &value), meter_));
}

Interpreter::Flow Interpreter::exec_filter(const Statement& s) {
  Text text;
  const Flow flow = capture(s.body, text);
  if (flow != Flow::normal) return flow;
  const Value outer = std::exchange(captured_, make_text(std::move(text)));
  const Text filtered = to_text(eval(*s.values[0]), meter_);
  captured_ = outer;
  write(filtered);
  return Flow::normal;
}

Interpreter::Flow Interpreter::exec_with(const Statement& s) {
  auto frame = std::make_shared<Frame>();
  frame->parent = frame_;
  for (size_t i = 0; i < s.targets.size(); ++i) frame->variables[s.targets[i].name] = eval(*s.values[i]);
  const std::shared_ptr<Frame> outer = std::exchange(frame_, frame);
  const Flow flow = exec(s.body);
  frame_ = outer;
  return flow;
}

}  // namespace moesaic::jinja
