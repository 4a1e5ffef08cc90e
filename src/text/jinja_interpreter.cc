#include "text/jinja_interpreter.h"

#include <algorithm>

#include "text/jinja_filters.h"
#include "text/jinja_operators.h"

namespace moesaic::jinja {
namespace {

constexpr std::string_view kGlobals[] = {"range", "dict", "namespace", "raise_exception", "strftime_now"};

Value make_callable(Callable callable) {
  return std::make_shared<const Callable>(std::move(callable));
}

bool is_dunder(std::string_view name) {
  return name.size() > 4 && name.starts_with("__") && name.ends_with("__");
}

std::string quoted(const std::string& name) {
  return "'" + name + "'";
}

// Start and length-limited stop of a Python slice.
Int clamp_bound(const Value& bound, Int fallback, Int length, Int lowest, Int highest) {
  if (bound.is<None>()) return fallback;
  Int index = require_integer(bound, "a slice bound");
  if (index < 0) index = std::max<Int>(index, -length) + length - (index < -length ? 1 : 0);
  return std::clamp(index, lowest, highest);
}

struct SliceBounds {
  Int begin, end, stride;

  std::vector<size_t> indices() const {
    std::vector<size_t> out;
    for (Int i = begin; stride > 0 ? i < end : i > end; i += stride) out.push_back(static_cast<size_t>(i));
    return out;
  }
};

SliceBounds slice_bounds(size_t size, const Value& start, const Value& stop, const Value& step_value) {
  const Int length = static_cast<Int>(size),
            step = step_value.is<None>() ? 1 : require_integer(step_value, "a slice step");
  if (step == 0) fail_render("slice step cannot be zero");
  const Int lowest = step > 0 ? 0 : -1, highest = step > 0 ? length : length - 1;
  const Int begin = clamp_bound(start, step > 0 ? lowest : highest, length, lowest, highest);
  const Int end = clamp_bound(stop, step > 0 ? highest : lowest, length, lowest, highest);
  return {begin, end, std::clamp(step, -length - 1, length + 1)};
}

std::optional<size_t> element_index(const Value& key, size_t size) {
  const std::optional<Int> index = as_integer(key);
  if (!index) return std::nullopt;
  const Int length = static_cast<Int>(size), at = *index < 0 ? *index + length : *index;
  return at >= 0 && at < length ? std::optional(static_cast<size_t>(at)) : std::nullopt;
}

bool is_view(const Sequence& s) {
  return s.kind == SequenceKind::keys || s.kind == SequenceKind::values || s.kind == SequenceKind::items;
}

}  // namespace

Interpreter::~Interpreter() {
  for (const auto& frame : captured_frames_) frame->variables.clear();
  for (const auto& ns : namespaces_) ns->attributes.clear();
}

void Interpreter::define(const std::string& name, Value value) {
  frame_->variables[name] = std::move(value);
}

Text Interpreter::run(const Body& body) {
  // Globals of the caller stay in their own scope below the template's.
  auto top = std::make_shared<Frame>();
  top->parent = frame_;
  frame_ = top;
  Text text;
  out_ = &text;
  exec(body);
  out_ = nullptr;
  return text;
}

Value Interpreter::text_value(Text text, bool markup) {
  meter_.text(text.size());
  return make_text(std::move(text), markup);
}

Value Interpreter::list_value(std::vector<Value> items) {
  meter_.items(items.size());
  return make_sequence(std::move(items));
}

std::vector<Value> Interpreter::list_of(const Value& iterable) {
  std::vector<Value> items;
  const auto next = source_of(iterable);
  while (std::optional<Value> item = next()) items.push_back(*std::move(item));
  meter_.items(items.size());
  return items;
}

Value Interpreter::eval(const Expression& e) {
  const DepthGuard guard(meter_);
  meter_.step();
  switch (e.kind) {
    case ExpressionKind::constant: return e.constant;
    case ExpressionKind::captured: return captured_;
    case ExpressionKind::variable: return eval_variable(e);
    case ExpressionKind::list:
    case ExpressionKind::tuple:
    case ExpressionKind::dict: return eval_collection(e);
    case ExpressionKind::attribute: return get_attribute(eval(*e.children[0]), e.name, e.constant);
    case ExpressionKind::item: {
      const Value object = eval(*e.children[0]);
      return get_item(object, eval(*e.children[1]));
    }
    case ExpressionKind::slice: return eval_slice(e);
    case ExpressionKind::call: return eval_call(e);
    case ExpressionKind::filter: return eval_filter(e);
    case ExpressionKind::test: return eval_test(e);
    case ExpressionKind::unary: return negate(eval(*e.children[0]), e.name);
    case ExpressionKind::negation: return !truth(eval(*e.children[0]));
    case ExpressionKind::binary: {
      const Value left = eval(*e.children[0]);
      return binary(e.name, left, eval(*e.children[1]), meter_);
    }
    case ExpressionKind::concat: return eval_concat(e);
    case ExpressionKind::comparison: return eval_comparison(e);
    case ExpressionKind::conjunction:
    case ExpressionKind::disjunction: {
      Value left = eval(*e.children[0]);
      return truth(left) == (e.kind == ExpressionKind::conjunction) ? eval(*e.children[1]) : left;
    }
    case ExpressionKind::conditional:
      if (truth(eval(*e.children[0]))) return eval(*e.children[1]);
      if (e.children[2] != nullptr) return eval(*e.children[2]);
      return make_undefined(fmt::format("the inline if on line {} is false and has no else", e.line));
  }
  return None{};
}

Value Interpreter::eval_variable(const Expression& e) {
  for (const Frame* frame = frame_.get(); frame != nullptr; frame = frame->parent.get()) {
    const auto found = frame->variables.find(e.name);
    if (found != frame->variables.end()) return found->second;
    meter_.step();
  }
  if (std::find(std::begin(kGlobals), std::end(kGlobals), e.name) != std::end(kGlobals)) {
    Callable callable;
    callable.name = e.name;
    return make_callable(std::move(callable));
  }
  return make_undefined(quoted(e.name) + " is undefined");
}

Value Interpreter::eval_comparison(const Expression& e) {
  Value left = eval(*e.children[0]);
  for (size_t i = 0; i < e.operators.size(); ++i) {
    Value right = eval(*e.children[i + 1]);
    if (!compare_values(e.operators[i], left, right, meter_)) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::eval_concat(const Expression& e) {
  Text text;
  for (const ExpressionPtr& child : e.children) {
    const Text part = to_text(eval(*child), meter_);
    meter_.grow(text.size(), part.size());
    text += part;
  }
  return make_text(std::move(text));
}

Value Interpreter::eval_slice(const Expression& e) {
  const auto bound = [&](size_t i) { return e.children[i] != nullptr ? eval(*e.children[i]) : Value(None{}); };
  const Value object = eval(*e.children[0]), start = bound(1), stop = bound(2), step = bound(3);
  require_defined(object);
  const Text* text = object.text();
  const Sequence* sequence = object.sequence();
  if (text == nullptr && (sequence == nullptr || is_view(*sequence)))
    fail_render("'{}' object cannot be sliced", type_name(object));
  meter_.step(static_cast<int64_t>(*length_of(object) / 16));
  const SliceBounds bounds = slice_bounds(*length_of(object), start, stop, step);
  if (sequence != nullptr && sequence->kind == SequenceKind::range) {
    const Int first = sequence->start, each = sequence->step;
    return make_range(first + bounds.begin * each, first + bounds.end * each, each * bounds.stride, meter_);
  }
  const std::vector<size_t> indices = bounds.indices();
  if (text != nullptr) {
    Text part;
    for (const size_t i : indices) part += (*text)[i];
    return text_value(std::move(part), object.get<Str>()->markup);
  }
  std::vector<Value> items;
  for (const size_t i : indices) items.push_back(sequence->items[i]);
  meter_.items(items.size());
  return make_sequence(std::move(items),
                       sequence->kind == SequenceKind::list ? SequenceKind::list : SequenceKind::tuple,
                       sequence->input);
}

Value Interpreter::eval_collection(const Expression& e) {
  if (e.kind == ExpressionKind::dict) {
    std::vector<std::pair<Value, Value>> entries;
    for (size_t i = 0; i < e.children.size(); i += 2) {
      Value key = eval(*e.children[i]);
      entries.emplace_back(std::move(key), eval(*e.children[i + 1]));
    }
    return make_dict(std::move(entries), meter_);
  }
  std::vector<Value> items;
  for (const ExpressionPtr& child : e.children) items.push_back(eval(*child));
  return make_sequence(std::move(items), e.kind == ExpressionKind::tuple ? SequenceKind::tuple : SequenceKind::list);
}

Arguments Interpreter::eval_arguments(const Expression& e) {
  Arguments arguments;
  for (size_t i = 1; i < e.children.size(); ++i) arguments.positional.push_back(eval(*e.children[i]));
  for (const auto& [name, value] : e.keywords) arguments.keywords.emplace_back(name, eval(*value));
  if (e.star != nullptr)
    for (Value& item : list_of(eval(*e.star))) arguments.positional.push_back(std::move(item));
  if (e.star_star != nullptr) {
    const Value more = eval(*e.star_star);
    if (more.dict() == nullptr) fail_render("argument after ** must be a mapping, not {}", type_name(more));
    for (const auto& [key, value] : more.dict()->entries) {
      if (key.text() == nullptr) fail_render("keywords must be strings");
      arguments.keywords.emplace_back(encode_utf8(*key.text()), value);
    }
  }
  return arguments;
}

Value Interpreter::eval_call(const Expression& e, const Value* caller) {
  const Expression& callee = *e.children[0];
  const auto arguments = [&] {
    Arguments a = eval_arguments(e);
    if (caller != nullptr) a.keywords.emplace_back("caller", *caller);
    return a;
  };
  if (callee.kind == ExpressionKind::attribute) {
    const Value object = eval(*callee.children[0]);
    if (method_kind(object, callee.name) == MethodKind::allowed)
      return call_method(*this, object, callee.name, arguments());
    return call(get_attribute(object, callee.name, callee.constant), arguments());
  }
  const Value function = eval(callee);
  return call(function, arguments());
}

Value Interpreter::eval_filter(const Expression& e) {
  const Value operand = eval(*e.children[0]);
  return call_filter(*this, e.name, operand, eval_arguments(e));
}

Value Interpreter::eval_test(const Expression& e) {
  const Value operand = eval(*e.children[0]);
  return call_test(*this, e.name, operand, eval_arguments(e));
}

Value Interpreter::call(const Value& callee, Arguments arguments) {
  const DepthGuard guard(meter_);
  require_defined(callee);
  const auto* callable = callee.get<std::shared_ptr<const Callable>>();
  if (callable == nullptr) fail_render("'{}' object is not callable", type_name(callee));
  switch ((*callable)->kind) {
    case Callable::Kind::global: return call_global((*callable)->name, std::move(arguments));
    case Callable::Kind::method: return call_method(*this, (*callable)->self, (*callable)->name, arguments);
    default: return call_macro(**callable, std::move(arguments));
  }
}

Value Interpreter::call_global(const std::string& name, Arguments arguments) {
  if (name == "range") {
    const std::vector<const Value*> a = bind(arguments, "range", {"start", "stop", "step"}, 1);
    if (!arguments.keywords.empty()) fail_render("range() takes no keyword arguments");
    const Int first = require_integer(*a[0], "the argument of range()");
    if (a[1] == nullptr) return make_range(0, first, 1, meter_);
    return make_range(first, require_integer(*a[1], "the end of a range"), integer(a[2], 1, "the step of a range"),
                      meter_);
  }
  if (name == "raise_exception") {
    const std::vector<const Value*> a = bind(arguments, name, {"message"}, 1);
    throw RenderFailure(encode_utf8(to_text(*a[0], meter_)), true);
  }
  if (name == "strftime_now") return strftime_now(arguments);
  if (name == "namespace") return make_namespace(arguments);
  std::vector<std::pair<Value, Value>> entries;
  if (arguments.positional.size() > 1) fail_render("dict expected at most 1 argument");
  if (arguments.positional.size() == 1) {
    const Value& source = arguments.positional[0];
    if (source.dict() != nullptr) entries = source.dict()->entries;
    else
      for (const Value& pair : list_of(source)) {
        std::vector<Value> parts = list_of(pair);
        if (parts.size() != 2) fail_render("dict() needs pairs; found {} items", parts.size());
        entries.emplace_back(std::move(parts[0]), std::move(parts[1]));
      }
  }
  for (auto& [key, value] : arguments.keywords) entries.emplace_back(make_text(decode_utf8(key)), std::move(value));
  return make_dict(std::move(entries), meter_);
}

Value Interpreter::make_namespace(const Arguments& arguments) {
  auto ns = std::make_unique<Namespace>();
  const Value initial = call_global("dict", arguments);
  for (const auto& [key, value] : initial.dict()->entries)
    if (key.text() != nullptr) ns->attributes[encode_utf8(*key.text())] = value;
  namespaces_.push_back(std::move(ns));
  return namespaces_.back().get();
}

Value Interpreter::strftime_now(const Arguments& arguments) {
  const std::vector<const Value*> a = bind(arguments, "strftime_now", {"format"}, 1);
  const Text& format = text_argument(*a[0], "the format of strftime_now");
  std::tm local = {};
  localtime_r(&now_, &local);
  std::string buffer(4096, '\0');
  if (format.size() > 256) fail_render("the format of strftime_now is longer than 256 characters");
  buffer.resize(std::strftime(buffer.data(), buffer.size(), encode_utf8(format).c_str(), &local));
  return text_value(decode_utf8(buffer));
}

Value Interpreter::call_macro(const Callable& macro, Arguments arguments) {
  auto frame = std::make_shared<Frame>();
  frame->parent = macro.frame;
  const std::shared_ptr<Frame> outer = std::exchange(frame_, frame);
  Text text;
  Text* const outer_out = std::exchange(out_, &text);
  const Value outer_captured = captured_;
  bind_macro(*macro.macro, *frame, std::move(arguments), macro.kind == Callable::Kind::caller);
  exec(macro.macro->body);
  frame_ = outer;
  out_ = outer_out;
  captured_ = outer_captured;
  return make_text(std::move(text));
}

void Interpreter::bind_macro(const Statement& macro, Frame& frame, Arguments arguments, bool is_caller) {
  const std::string name = is_caller ? "caller" : macro.name;
  const size_t count = macro.parameters.size();
  Keywords& keywords = arguments.keywords;
  for (size_t i = 0; i < count; ++i) {
    const Parameter& parameter = macro.parameters[i];
    const auto keyword =
        std::find_if(keywords.begin(), keywords.end(), [&](auto& k) { return k.first == parameter.name; });
    Value& slot = frame.variables[parameter.name];
    if (i < arguments.positional.size()) {
      if (keyword != keywords.end()) fail_render("macro '{}' got two values for '{}'", name, parameter.name);
      slot = std::move(arguments.positional[i]);
    } else if (keyword != keywords.end()) {
      slot = std::move(keyword->second);
      keywords.erase(keyword);
    } else {
      slot = make_undefined(fmt::format("parameter '{}' was not provided", parameter.name));
      if (parameter.fallback != nullptr) slot = eval(*parameter.fallback);
    }
  }
  const auto caller = std::find_if(keywords.begin(), keywords.end(), [](auto& k) { return k.first == "caller"; });
  if (macro.takes_caller && !is_caller) {
    frame.variables["caller"] = caller != keywords.end() ? caller->second : make_undefined("No caller defined");
    if (caller != keywords.end()) keywords.erase(caller);
  }
  if (!keywords.empty() && !macro.takes_kwargs)
    fail_render("macro '{}' takes no keyword argument '{}'", name, keywords[0].first);
  if (macro.takes_kwargs) {
    std::vector<std::pair<Value, Value>> entries;
    for (auto& [key, value] : keywords) entries.emplace_back(make_text(decode_utf8(key)), std::move(value));
    frame.variables["kwargs"] = make_dict(std::move(entries), meter_);
  }
  std::vector<Value> rest;
  for (size_t i = count; i < arguments.positional.size(); ++i) rest.push_back(std::move(arguments.positional[i]));
  if (!rest.empty() && !macro.takes_varargs) fail_render("macro '{}' takes not more than {} argument(s)", name, count);
  if (macro.takes_varargs) frame.variables["varargs"] = make_sequence(std::move(rest), SequenceKind::tuple);
}

Value Interpreter::get_attribute(const Value& object, const std::string& name, const Value& key) {
  meter_.step();
  require_defined(object);
  if (const auto* ns = object.get<Namespace*>()) {
    const auto found = (*ns)->attributes.find(name);
    if (found != (*ns)->attributes.end()) return found->second;
  }
  if (const auto* loop = object.get<std::shared_ptr<Loop>>()) return loop_attribute(**loop, name);
  const MethodKind kind = method_kind(object, name);
  if (kind == MethodKind::forbidden || is_dunder(name))
    return make_undefined(
        fmt::format("access to attribute '{}' of '{}' object is unsafe: templates must not change values", name,
                    type_name(object)));
  if (kind == MethodKind::allowed) {
    Callable method;
    method.kind = Callable::Kind::method;
    method.name = name;
    method.self = object;
    return make_callable(std::move(method));
  }
  const Sequence* group = object.sequence();
  if (group != nullptr && group->kind == SequenceKind::group && (name == "grouper" || name == "list"))
    return group->items[name == "list"];
  const Value* value = object.dict() != nullptr ? dict_find(*object.dict(), key, meter_) : nullptr;
  return value != nullptr ? *value
                          : make_undefined(fmt::format("'{}' has no attribute '{}'", describe_type(object), name));
}

Value Interpreter::get_item(const Value& object, const Value& key) {
  require_defined(object);
  if (const Dict* dict = object.dict()) {
    const Value* value = is_hashable(key) ? dict_find(*dict, key, meter_) : nullptr;
    if (value != nullptr) return *value;
  }
  if (const Text* text = object.text())
    if (const auto i = element_index(key, text->size()))
      return make_text(Text(1, (*text)[*i]), object.get<Str>()->markup);
  if (const Sequence* s = object.sequence(); s != nullptr && !is_view(*s))
    if (const auto i = element_index(key, s->items.size())) return s->items[*i];
  if (const Text* name = key.text()) return get_attribute(object, encode_utf8(*name), key);
  return make_undefined(fmt::format("{} has no element {}", describe_type(object), encode_utf8(repr(key, meter_))));
}

}  // namespace moesaic::jinja
