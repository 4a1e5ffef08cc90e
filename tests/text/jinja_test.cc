// The template engine against Python's jinja2: recorded renderings, fresh ones where Python is at hand, and limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/fresh_rng.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "text/chat_template.h"

namespace moesaic {
namespace {

using ::testing::HasSubstr;

const std::string kFolder = std::string(MOESAIC_SOURCE_DIR) + "/tests/text/templates";
const std::string kScript = std::string(MOESAIC_SOURCE_DIR) + "/tools/golden/render_templates.py";

Result<std::string> render_case(const JsonObject& c) {
  const Json* file = json_find(c, "file");
  const std::string source = file != nullptr ? read_text_file(kFolder + "/" + std::string(file->get_string()))
                                             : json_string(c, "template", "case");
  const Json* variables = json_find(c, "context");
  return render_template(source, variables != nullptr ? *variables : Json(JsonObject()), json_int(c, "now", "case", 0));
}

// `want` is {"text": ...} or {"error": ...}.
void expect_same(const JsonObject& c, const JsonObject& want) {
  const Result<std::string> got = render_case(c);
  const Json* text = json_find(want, "text");
  if (text == nullptr) {
    EXPECT_FALSE(got.ok()) << write_json(c) << "\nrendered " << *got << "\nbut Python fails: " << write_json(want);
  } else if (!got.ok()) {
    ADD_FAILURE() << write_json(c) << "\nfailed: " << got.status().message() << "\nPython: " << write_json(want);
  } else {
    EXPECT_EQ(*got, std::string_view(text->get_string())) << write_json(c);
  }
}

bool python_has_jinja2() {
  return std::system("/usr/bin/python3 -c 'import jinja2' 2>/dev/null") == 0;
}

struct CommandResult {
  std::string output;
  int status = -1;
};

CommandResult run_command(const std::string& command) {
  CommandResult result;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return result;
  std::array<char, 4096> buffer;
  for (size_t n = 0; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) result.output.append(buffer.data(), n);
  result.status = pclose(pipe);
  return result;
}

std::string render(std::string_view source, const std::string& variables = "{}", const jinja::Limits& limits = {}) {
  const Result<std::string> got = render_template(source, parse_json(variables, "variables"), 0, limits);
  return got.ok() ? *got : std::string("failed: ") + got.status().message();
}

TEST(Jinja, RecordedRenderingsOfPython) {
  const Json expected = read_json_file(kFolder + "/expected.json");
  size_t count = 0;
  for (const char* file : {"fragments.json", "errors.json", "families.json"}) {
    const Json cases = read_json_file(kFolder + "/" + file);
    for (const Json& c : cases.get_array()) {
      const std::string name = json_string(c.get_object(), "name", file);
      SCOPED_TRACE(name);
      ASSERT_TRUE(expected.get_object().contains(name)) << "run tools/golden/render_templates.py --write";
      expect_same(c.get_object(), expected.at(name).get_object());
      ++count;
    }
  }
  EXPECT_EQ(count, expected.get_object().size());
  EXPECT_GT(count, 200u);
}

TEST(Jinja, RecordedRenderingsAreStillWhatPythonGives) {
  if (!python_has_jinja2()) GTEST_SKIP() << "no /usr/bin/python3 with jinja2";
  const CommandResult check = run_command("/usr/bin/python3 '" + kScript + "' --check 2>&1");
  EXPECT_EQ(check.status, 0) << check.output;
}

// Random expressions and statements out of a small grammar.
class Sentences {
 public:
  explicit Sentences(Rng& rng) : rng_(rng) {}

  std::string expression(int depth) {
    if (depth <= 0) return pick(kAtoms);
    switch (rng_.below(12)) {
      case 0: return "(" + expression(depth - 1) + ")";
      case 1:
      case 2: return expression(depth - 1) + " " + pick(kOperators) + " " + expression(depth - 1);
      case 3:
      case 4: return "(" + expression(depth - 1) + ")|" + pick(kFilters);
      case 5: return "(" + expression(depth - 1) + ") is " + pick(kTests);
      case 6: return "(" + expression(depth - 1) + ")" + pick(kMethods);
      case 7:
        return rng_.below(2) == 0 ? pick(kVariables) + "[" + pick(kSlices) + "]"
                                  : "(" + expression(depth - 1) + ")[" + pick(kSubscripts) + "]";
      case 8: return expression(depth - 1) + " if " + expression(depth - 1) + " else " + expression(depth - 1);
      case 9: return "[" + expression(depth - 1) + ", " + expression(depth - 1) + "]";
      case 10: return "not " + expression(depth - 1);
      default: return "{'k': " + expression(depth - 1) + "}";
    }
  }

  std::string statement(int depth) {
    if (depth <= 0) return pick(kTexts) + "{{" + pick(kSigns) + " " + expression(1) + " " + pick(kSigns) + "}}";
    switch (rng_.below(7)) {
      case 0:
        return tag("if " + expression(1)) + statement(depth - 1) + tag("else") + statement(depth - 1) + tag("endif");
      case 1:
        return tag("for w in " + expression(1)) + statement(depth - 1) + "{{ loop.index }}" + tag("else") + "e" +
               tag("endfor");
      case 2: return tag("set w = " + expression(1)) + statement(depth - 1);
      case 3: return tag("set y") + statement(depth - 1) + tag("endset") + "{{ y }}";
      case 4:
        return tag("macro f(a, b=w)") + statement(depth - 1) + "{{ a }}{{ b }}" + tag("endmacro") + "{{ f(" +
               expression(1) + ") }}";
      case 5: return tag("generation") + statement(depth - 1) + tag("endgeneration") + pick(kTexts);
      default: return statement(depth - 1) + pick(kTexts) + statement(depth - 1);
    }
  }

 private:
  using Words = std::vector<std::string>;

  std::string pick(const Words& words) {
    return words[static_cast<size_t>(rng_.below(static_cast<int64_t>(words.size())))];
  }
  std::string tag(const std::string& inside) {
    return pick(kTexts) + "{%" + pick(kTagSigns) + " " + inside + " " + pick(kTagSigns) + "%}" + pick(kTexts);
  }

  const Words kAtoms = {"1",    "0",       "-2",     "2.5", "1e20", "'a b'", "''",       "'é😀-x'",
                        "none", "true",    "false",  "x",   "s",    "l",     "d",        "m",
                        "w",    "missing", "(1, 2)", "[]",  "{}",   "'A,b'", "range(4)", "10"};
  const Words kOperators = {
      "+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"};
  const Words kFilters = {"upper",
                          "lower",
                          "title",
                          "capitalize",
                          "trim",
                          "length",
                          "list",
                          "first",
                          "last",
                          "reverse|list",
                          "sort",
                          "join('-')",
                          "string",
                          "tojson",
                          "tojson(indent=1)",
                          "int",
                          "float",
                          "abs",
                          "round(1)",
                          "default('D')",
                          "default('D', true)",
                          "replace('a', 'bb')",
                          "sum",
                          "min",
                          "max",
                          "unique|list",
                          "map('string')|list",
                          "select|list",
                          "select('string')|list",
                          "reject('none')|list",
                          "map(attribute='k')|list",
                          "dictsort",
                          "items|list",
                          "batch(2)|list",
                          "slice(2)|list",
                          "indent(2)",
                          "safe",
                          "wordcount",
                          "truncate(5)",
                          "urlencode",
                          "groupby('k')",
                          "count",
                          "d(1)",
                          "list|tojson",
                          "center(7)",
                          "selectattr('k')|list"};
  const Words kTests = {"defined",       "undefined",
                        "none",          "string",
                        "number",        "integer",
                        "float",         "boolean",
                        "mapping",       "sequence",
                        "iterable",      "true",
                        "false",         "odd",
                        "even",          "divisibleby(3)",
                        "eq(1)",         "in([1, 'a b', none])",
                        "not string",    "lower",
                        "upper",         "callable",
                        "sameas(none)",  "gt(1)",
                        "divisibleby 3", "in [1, none]",
                        "upper(1)",      "eq",
                        "not eq 1",      "not in 'a b'"};
  const Words kMethods = {".upper()",
                          ".strip()",
                          ".split()",
                          ".split('a')",
                          ".rsplit(' ', 1)",
                          ".startswith('a')",
                          ".endswith(('b', 'x'))",
                          ".replace('a', '')",
                          ".find('b')",
                          ".count('a')",
                          ".items()|list",
                          ".keys()|list",
                          ".get('k')",
                          ".get('zz', 3)",
                          ".title()",
                          ".isdigit()",
                          ".splitlines()",
                          ".k",
                          ".missing",
                          ".index(1)",
                          ".partition(' ')",
                          ".zfill(6)",
                          ".join(['p', 'q'])",
                          ".lstrip('a')",
                          ".format(1)",
                          ".isupper()",
                          ".0",
                          ".append(1)",
                          ".pop('k')",
                          ".swapcase()"};
  const Words kSubscripts = {"0", "1", "-1", "7", "'k'", "none", "'zz'", "true"};
  // jinja2 computes constant expressions early, and then a slice that fails is merely undefined; so only variables.
  const Words kSlices = {"1:", ":-1", "::-1", "::2", "-2:", "5:1:-2", "1:none", "0:1", "-9:9:3", "2::-1"};
  const Words kVariables = {"x", "s", "l", "d", "m", "w", "r"};
  const Words kTexts = {"", "", " ", "\n", "  \n", "t", "\n  ", "<|x|>", "\t", " \n\n "};
  const Words kSigns = {"", "", "-"};
  const Words kTagSigns = {"", "", "-", "+"};

  Rng& rng_;
};

// An object printed with its address cannot be compared.
bool prints_an_address(std::string_view text) {
  return text.find("object at 0x") != std::string_view::npos || text.find("built-in method") != std::string_view::npos;
}

// Renders each case here and in Python. Returns how many Python renders.
size_t expect_all_as_in_python(const JsonArray& cases) {
  const std::string file = std::filesystem::temp_directory_path() / fmt::format("moesaic-templates-{}.json", getpid());
  std::ofstream(file) << write_json(cases);
  const CommandResult python = run_command("/usr/bin/python3 -W ignore '" + kScript + "' --render '" + file + "'");
  std::filesystem::remove(file);
  if (python.status != 0) return ADD_FAILURE() << "Python failed", 0;
  const Json expected = parse_json(python.output, "Python's answer");
  if (expected.get_array().size() != cases.size()) return ADD_FAILURE() << expected.get_array().size(), 0;
  size_t rendered = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const JsonObject& want = expected.get_array()[i].get_object();
    const Json* text = json_find(want, "text");
    rendered += text != nullptr;
    if (text == nullptr || !prints_an_address(text->get_string())) expect_same(cases[i].get_object(), want);
  }
  return rendered;
}

TEST(Jinja, FreshTemplatesRenderAsInPython) {
  if (!python_has_jinja2()) GTEST_SKIP() << "no /usr/bin/python3 with jinja2";
  Rng rng = fresh_rng();
  Sentences sentences(rng);
  const Json variables = parse_json(
      R"({"x": 3, "r": "é😀 x", "s": "a bA\n", "l": [1, "b", null, 2.5], "d": {"k": [1, "é"], "a b": {"k": 2}}, "m": [{"k": "q"}, {"k": "p", "z": 1}]})",
      "variables");
  JsonArray cases;
  for (int i = 0; i < 1500; ++i) {
    const std::string source = i % 3 == 0 ? sentences.statement(3) : "{{ " + sentences.expression(1 + i % 4) + " }}";
    cases.push_back(JsonObject{{"template", source}, {"context", variables}});
  }
  EXPECT_GT(expect_all_as_in_python(cases), cases.size() / 5) << "too few of the random templates are valid";
}

// Too many arguments, too few, or unknown ones are errors.
TEST(Jinja, TestsTakeTheArgumentsThatTheyTakeInPython) {
  if (!python_has_jinja2()) GTEST_SKIP() << "no /usr/bin/python3 with jinja2";
  JsonArray cases;
  for (const char* name :
       {"defined", "undefined", "none",        "boolean",  "true",        "false",   "integer", "float",   "number",
        "string",  "mapping",   "sequence",    "iterable", "callable",    "escaped", "eq",      "equalto", "ne",
        "lt",      "lessthan",  "le",          "gt",       "greaterthan", "ge",      "in",      "odd",     "even",
        "lower",   "upper",     "divisibleby", "sameas",   "filter",      "test"})
    for (const char* arguments :
         {"",         "()",         "(1)",    "([1])",       "('a')",        "(1, 2)", "(1, 2, 3)", "(other=1)",
          "(num=1)",  "(seq=[1])",  "(b=1)",  "(value=1)",   "(1, other=1)", "(x)",    " not",      " 1",
          " 'a'",     " [1]",       " x",     " not in [1]", " in [1]",      " or 1",  " else 1",   " is 1",
          " (1) + 1", " not and 1", " 1 [0]", " x.y",        " -1",          " none",  " true"})
      for (const char* operand : {"1", "'a'", "x"})
        cases.push_back(JsonObject{{"template", fmt::format("{{{{ {} is {}{} }}}}", operand, name, arguments)}});
  EXPECT_GT(expect_all_as_in_python(cases), cases.size() / 10);
}

TEST(Jinja, NotAfterATestIsItsArgument) {
  EXPECT_THAT(render("{{ ((none) is upper not in [1e20, 1]) }}"), HasSubstr("upper() takes at most 0 argument(s)"));
  EXPECT_EQ(render("{{ 1 is eq not in [1, 'a'] }} {{ 1 is eq not in [0] }}"), "False True");
  EXPECT_THAT(render("{{ 1 is not none not in [1e20, 1] }}"), HasSubstr("none() takes at most 0 argument(s)"));
}

TEST(Jinja, FC061_T2_TrimAndLstripBlocks) {
  EXPECT_EQ(
      render("{% for x in xs %}\n  {% if x > 1 %}\n{{ x }},\n  {% endif %}\n{% endfor %}\nend", R"({"xs": [1, 2, 3]})"),
      "2,\n3,\nend");
}

TEST(Jinja, ErrorsSayWhatAndWhere) {
  EXPECT_EQ(render("{{ raise_exception('no tools: ' ~ 1) }}"), "failed: no tools: 1");
  EXPECT_THAT(render("a\nb\n{{ user.name.first }}", R"({"user": {}})"),
              HasSubstr("line 3: 'dict object' has no attribute 'name'"));
  EXPECT_THAT(render("\n{% for x in y %}\n{{ x"), HasSubstr("line 3: this tag is not closed"));
  EXPECT_THAT(render("\n{% for x in y %}\n{{ x }}"), HasSubstr("line 2: this for block has no {% endfor %}"));
  EXPECT_THAT(render("{{ x | shout }}"), HasSubstr("line 1: unknown filter 'shout'"));
  EXPECT_THAT(render("{% include 'a' %}"), HasSubstr("'include' is not supported"));
  EXPECT_THAT(render("{{ [1].append(2) }}"), HasSubstr("access to attribute 'append' of 'list' object is unsafe"));
  EXPECT_THAT(render("{{ nobody() }}"), HasSubstr("'nobody' is undefined"));
  // A filter that is not there matters only when it is reached.
  EXPECT_EQ(render("{% if false %}{{ 1 | shout }}{% endif %}ok"), "ok");
  EXPECT_THAT(render("{% if true %}{{ 1 | shout }}{% endif %}"), HasSubstr("unknown filter 'shout'"));
}

// Nothing a template does may hang, exhaust memory or overflow the stack; each limit gives one clear error.
TEST(Jinja, LimitsStopRunawayTemplates) {
  jinja::Limits few;
  few.steps = 500'000;
  few.text = 1 << 20;
  few.created = 8 << 20;
  few.items = 100'000;
  const auto limited = [&](std::string_view source) { return render(source, "{}", few); };
  const std::string many_parentheses = "{{ " + std::string(100000, '(') + "1" + std::string(100000, ')') + " }}";
  EXPECT_THAT(limited(many_parentheses), HasSubstr("nested deeper than"));
  std::string sum = "{{ 1";
  for (int i = 0; i < 100000; ++i) sum += " + 1";
  EXPECT_THAT(limited(sum + " }}"), HasSubstr("expression deeper than"));
  std::string blocks;
  for (int i = 0; i < 100000; ++i) blocks += "{% if 1 %}";
  EXPECT_THAT(limited(blocks), HasSubstr("nested deeper than"));
  EXPECT_THAT(limited("{{ range(10**9) }}"), HasSubstr("too big"));
  EXPECT_THAT(limited("{{ 'a' * 10**9 }}"), HasSubstr("longer than"));
  EXPECT_THAT(limited("{{ [1] * 10**9 }}"), HasSubstr("more than"));
  EXPECT_THAT(limited("{{ 'a' * 10**30 }}"), HasSubstr("longer than"));
  EXPECT_THAT(limited("{{ 10 ** 10 ** 10 }}"), HasSubstr("larger than 127 bits"));
  EXPECT_THAT(limited("{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}"), HasSubstr("longer than"));
  EXPECT_THAT(limited("{{ ('a' * 1000000).replace('', 'b' * 1000000) }}"), HasSubstr("longer than"));
  EXPECT_THAT(limited("{{ ('b' * 10000).join('a' * 90000) }}"), HasSubstr("longer than"));
  EXPECT_THAT(limited("{{ '%999999999d' % 1 }}"), HasSubstr("width"));
  EXPECT_THAT(limited("{{ '{:999999999}'.format(1) }}"), HasSubstr("width"));
  EXPECT_THAT(limited("{{ 'a'.center(10**12) }}"), HasSubstr("longer than"));
  EXPECT_THAT(limited("{{ 'a'|center(10**12) }}"), HasSubstr("longer than"));
  EXPECT_THAT(limited("{{ [1]|batch(10**12, 0)|list }}"), HasSubstr("more than"));
  EXPECT_THAT(limited("{{ [1]|slice(10**12)|list }}"), HasSubstr("more than"));
  EXPECT_THAT(limited("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), HasSubstr("nests deeper"));
  EXPECT_THAT(limited("{% macro m(n) %}{% for a in range(100) %}{% if n %}{{ m(n - 1) }}{% endif %}{% endfor %}{% "
                      "endmacro %}{{ m(20) }}"),
              HasSubstr("steps"));
  EXPECT_THAT(limited("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
              HasSubstr("steps"));
  EXPECT_THAT(limited("{% for a in range(99999) %}{{ 'x' * 10000 }}{% endfor %}"), HasSubstr("longer than"));
  EXPECT_THAT(
      render("{% set ns = namespace(s='ab') %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}"),
      HasSubstr("longer than"));
  EXPECT_THAT(limited("{% set ns = namespace(s=[]) %}{% for a in range(999) %}{% set ns.s = [ns.s] %}{% endfor %}"),
              HasSubstr("deeper"));
  EXPECT_THAT(
      render("{% set ns = namespace(s='') %}{% for a in range(9999) %}{% set ns.s = ns.s + 'x' * 99999 %}{% endfor %}"),
      HasSubstr("more than"));
  const std::string twins =
      "{% set ns = namespace(s=[1]) %}{% for a in range(90) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}";
  EXPECT_THAT(limited(twins + "{{ ns.s }}"), HasSubstr("more than"));
  EXPECT_THAT(limited(twins + "{{ ns.s | tojson }}"), HasSubstr("more than"));
  EXPECT_THAT(
      render(twins + "{% set a = ns.s %}{% set ns.s = [1] %}" + twins.substr(twins.find("{% for")) + "{{ a == ns.s }}"),
      HasSubstr("steps"));
  EXPECT_THAT(limited("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}"), HasSubstr("deeper"));
  EXPECT_THAT(render("{{ ('a' * 9999999) in ('a' * 9999998 ~ 'b') }}"), HasSubstr("False"));
}

TEST(Jinja, LimitsAreSettable) {
  jinja::Limits limits;
  limits.steps = 100;
  EXPECT_THAT(render("{% for a in range(50) %}{{ a }}{% endfor %}", "{}", limits), HasSubstr("more than 100 steps"));
  limits = {};
  limits.text = 10;
  EXPECT_THAT(render("{% for a in range(11) %}x{% endfor %}", "{}", limits), HasSubstr("longer than 10 characters"));
  EXPECT_EQ(render("{% for a in range(10) %}x{% endfor %}", "{}", limits), "xxxxxxxxxx");
}

}  // namespace
}  // namespace moesaic
