// The values a template works with, following Python's types, and the limits that keep a template harmless.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "text/jinja_text.h"

namespace moesaic::jinja {

// How a template fails while it renders. Caught at the engine's border and turned into a Status.
class RenderFailure : public std::runtime_error {
 public:
  explicit RenderFailure(const std::string& message, bool raised_by_template = false)
      : std::runtime_error(message), raised(raised_by_template) {}

  bool raised;   // by raise_exception: the message is the template's own
  int line = 0;  // of the innermost statement
};

template <typename... Args>
[[noreturn]] void fail_render(fmt::format_string<Args...> format, Args&&... args) {
  throw RenderFailure(fmt::format(format, std::forward<Args>(args)...));
}

// 32 Mi code points hold a prompt of 8 million tokens; the other limits leave an honest template 100 times its needs.
struct Limits {
  int64_t steps = 20'000'000;      // expressions and statements evaluated, plus work on long texts and lists
  int depth = 600;                 // nested evaluations, macro calls included
  size_t text = size_t{32} << 20;  // code points in one string, the output included
  int64_t created = 128ll << 20;   // code points in all strings together
  size_t items = 1'000'000;        // in one list or dict
};

constexpr int kMaxNesting = 150;  // lists in lists

// Counts what a rendering has used and fails when a limit is passed.
class Meter {
 public:
  explicit Meter(const Limits& limits) : limits_(limits) {}

  void step(int64_t n = 1) {
    if ((steps_ += n) > limits_.steps) fail_render("the template ran more than {} steps", limits_.steps);
  }
  void text(size_t n);   // before a string of n code points is made
  void items(size_t n);  // before a list or dict of n items is made
  // before `added` code points are appended to a string of `size`
  void grow(size_t size, size_t added);
  void enter() {
    if (++depth_ > limits_.depth) fail_render("the template nests deeper than {} levels", limits_.depth);
  }
  void leave() { --depth_; }

 private:
  const Limits limits_;
  int64_t steps_ = 0, created_ = 0;
  int depth_ = 0;
};

class DepthGuard {
 public:
  explicit DepthGuard(Meter& meter) : meter_(meter) { meter_.enter(); }
  ~DepthGuard() { meter_.leave(); }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  Meter& meter_;
};

using Int = __int128;  // wide enough for every JSON integer; anything larger is an error

struct Undefined {
  std::shared_ptr<const std::string> message;  // what a use of it reports
};
struct None {};
struct Str {
  std::shared_ptr<const Text> text;
  bool markup = false;  // markupsafe's Markup: + and % escape the other side
};
struct Sequence;
struct Dict;
struct Iterator;
struct Namespace;
struct Loop;
struct Callable;
using SequencePtr = std::shared_ptr<const Sequence>;
using DictPtr = std::shared_ptr<const Dict>;

class Value {
 public:
  using Data = std::variant<Undefined, None, bool, Int, double, Str, SequencePtr, DictPtr, std::shared_ptr<Iterator>,
                            Namespace*, std::shared_ptr<Loop>, std::shared_ptr<const Callable>>;

  Value() : data_(None{}) {}
  template <typename T>
  requires std::is_constructible_v<Data, T> &&(!std::is_same_v<std::decay_t<T>, Value>)Value(T data)
      : data_(std::move(data)) {}
  Value(int n) : data_(Int{n}) {}
  Value(size_t n) : data_(static_cast<Int>(n)) {}

  template <typename T>
  const T* get() const {
    return std::get_if<T>(&data_);
  }
  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(data_);
  }
  const Text* text() const { return is<Str>() ? get<Str>()->text.get() : nullptr; }
  const Sequence* sequence() const { return is<SequencePtr>() ? get<SequencePtr>()->get() : nullptr; }
  const Dict* dict() const { return is<DictPtr>() ? get<DictPtr>()->get() : nullptr; }
  const Data& data() const { return data_; }

 private:
  Data data_;
};

enum class SequenceKind { list, tuple, group, range, keys, values, items };  // group: a (grouper, list) of groupby

struct Sequence {
  std::vector<Value> items;
  SequenceKind kind = SequenceKind::list;
  bool input = false;  // came from the caller: its punctuation is marked as input when printed
  int depth = 1;
  Int start = 0, stop = 0, step = 1;  // of a range
};
struct Dict {
  std::vector<std::pair<Value, Value>> entries;  // in insertion order, unique keys
  bool input = false;
  int depth = 1;
};
// What map, select and the like return: it can be walked once.
struct Iterator {
  std::vector<Value> items;
  size_t next = 0;
  int depth = 1;
};
struct Namespace {
  std::map<std::string, Value, std::less<>> attributes;
};

using Keywords = std::vector<std::pair<std::string, Value>>;
struct Arguments {
  std::vector<Value> positional;
  Keywords keywords;
};

struct Frame;
struct Statement;
struct Callable {
  enum class Kind { method, global, macro, caller };
  Kind kind = Kind::global;
  std::string name;
  Value self;                        // method
  const Statement* macro = nullptr;  // macro, caller
  std::shared_ptr<Frame> frame;      // where the macro was defined
};

Value make_undefined(std::string message);
Value make_text(Text text, bool markup = false);
Value make_sequence(std::vector<Value> items, SequenceKind kind = SequenceKind::list, bool input = false);
Value make_iterator(std::vector<Value> items);
Value make_range(Int start, Int stop, Int step, Meter& meter);
// Later entries win over earlier ones with the same key, which keep their place.
Value make_dict(std::vector<std::pair<Value, Value>> entries, Meter& meter, bool input = false);
int depth_of(const Value& value);

const Value* dict_find(const Dict& dict, const Value& key, Meter& meter);
const Value* dict_find(const Dict& dict, TextView key, Meter& meter);

const char* type_name(const Value& value);      // int, str, dict, ...
std::string describe_type(const Value& value);  // "dict object", "None"
bool truth(const Value& value);
bool is_number(const Value& value);
bool is_hashable(const Value& value);
std::optional<Int> as_integer(const Value& value);  // int or bool
std::optional<double> as_double(const Value& value);
bool equal(const Value& a, const Value& b, Meter& meter);
// Negative, 0 or positive; fails as Python does for unordered types. `op` is for the message.
int order(const Value& a, const Value& b, Meter& meter, const char* op = "<");
std::optional<size_t> length_of(const Value& value);

std::string int_to_string(Int value);
std::string float_to_string(double value);       // Python's repr
Text to_text(const Value& value, Meter& meter);  // Python's str()
Text repr(const Value& value, Meter& meter);     // Python's repr()

struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  std::optional<Text> indent;
  Text item_separator = U", ", key_separator = U": ";
};
Text to_json(const Value& value, const JsonStyle& style, Meter& meter);

// `mark` tells whether the strings come from user input.
Value from_json(const Json& json, bool input, Meter& meter);

}  // namespace moesaic::jinja
