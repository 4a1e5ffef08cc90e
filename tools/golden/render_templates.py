#!/usr/bin/env python3
"""Renders the template cases of tests/text/templates with jinja2, set up as Hugging Face transformers sets it up.

  render_templates.py --write          writes expected.json beside the cases
  render_templates.py --check          fails when expected.json is not what jinja2 gives now
  render_templates.py --render FILE    renders the cases in FILE and prints the results as JSON
"""
import datetime
import json
import pathlib
import sys

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "text" / "templates"


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what the model wrote; the text inside is rendered in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_pass_through"), [], [], body).set_lineno(line)

    def _pass_through(self, caller):
        return caller()


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def make_environment(now):
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.filters["from_json"] = json.loads
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda pattern: datetime.datetime.fromtimestamp(now).strftime(pattern)
    return env


def render(case):
    source = case["template"] if "template" in case else (FOLDER / case["file"]).read_text(encoding="utf-8")
    try:
        text = make_environment(case.get("now", 0)).from_string(source).render(**case.get("context", {}))
        text.encode("utf-8")
    except Exception as error:  # whatever a template makes Python raise counts as a failure
        return {"error": type(error).__name__}
    return {"text": text}


def all_cases():
    cases = []
    for path in sorted(FOLDER.glob("*.json")):
        if path.name != "expected.json":
            cases += json.loads(path.read_text(encoding="utf-8"))
    names = [case["name"] for case in cases]
    assert len(names) == len(set(names)), "two cases have the same name"
    return cases


def main():
    if sys.argv[1] == "--render":
        cases = json.loads(pathlib.Path(sys.argv[2]).read_text(encoding="utf-8"))
        print(json.dumps([render(case) for case in cases]))
        return 0
    results = {case["name"]: render(case) for case in all_cases()}
    expected = FOLDER / "expected.json"
    if sys.argv[1] == "--write":
        expected.write_text(json.dumps(results, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        return 0
    written = json.loads(expected.read_text(encoding="utf-8"))
    stale = [n for n in sorted(set(results) | set(written)) if results.get(n) != written.get(n)]
    for name in stale:
        print(f"{name}: expected.json has {written.get(name)}, jinja2 gives {results.get(name)}")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
