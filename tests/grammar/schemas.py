#!/usr/bin/env python3
"""Random JSON schemas with values that fit them, and jsonschema as the judge of what the grammar engine writes.

  schemas.py generate SEED COUNT   one JSON line each: {"schema", "valid": [texts], "invalid": [texts]}
  schemas.py check                 reads lines {"schema", "texts"}; every text must be JSON that fits the schema
"""
import json
import random
import sys

from jsonschema import Draft202012Validator, draft202012_format_checker

WORDS = ["a", "b", "name", "age", "x-y", "é", "日本", "id", "ab", "abc", "q\"uote", "back\\slash", "tab\t", "", "emoji😀"]
PATTERNS = [  # and texts that fit them
    ("^[a-z]{2,5}$", lambda r: "".join(r.choice("abcxyz") for _ in range(r.randint(2, 5)))),
    ("^(foo|bar)+$", lambda r: "".join(r.choice(["foo", "bar"]) for _ in range(r.randint(1, 4)))),
    ("[0-9]{3}", lambda r: r.choice(["", "x\"", "é"]) + "%03d" % r.randint(0, 999) + r.choice(["", "\n", "z"])),
    ("^\\d+-[^a-c]$", lambda r: "%d-%s" % (r.randint(0, 99), r.choice(["d", "é", "\"", "\\", "😀"]))),
    ("^a|b$", lambda r: r.choice(["a", "axyz", "zzb", "b"])),
    ("^.{1,4}$", lambda r: "".join(r.choice(["é", "a", "\"", "\t"]) for _ in range(r.randint(1, 4)))),
    ("^[\\w.]*@x$", lambda r: r.choice(["", "a.b", "Z_9"]) + "@x"),
]
FORMATS = {
    "date": ["2024-02-29", "1999-12-31", "2023-04-30"],
    "time": ["12:30:00Z", "23:59:59.123+05:30"],
    "date-time": ["2024-02-29T12:30:00Z", "1999-12-31T00:00:00-08:00"],
    "email": ["a@b.co", "first.last@example.org"],
    "ipv4": ["127.0.0.1", "255.255.255.255"],
    "ipv6": ["::1", "fe80::1:2", "1:2:3:4:5:6:7:8", "::"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
    "hostname": ["example.org", "a-b.c"],
    "uri": ["https://example.org/a?b=c#d", "http://localhost:8080"],
    "duration": ["P1D", "PT2H3M", "P3W"],
}


def text(r, low=0, high=8):
    pool = ["a", "B", " ", "0", "é", "日", "😀", "\"", "\\", "\n", "\u2028", "/", "\x7f", "\x01"]
    return "".join(r.choice(pool) for _ in range(r.randint(low, high)))


def anything(r, depth=2):
    kind = r.randrange(6 if depth > 0 else 4)
    if kind == 0: return r.choice([None, True, False])
    if kind == 1: return r.randint(-10**6, 10**6)
    if kind == 2: return r.choice([0.5, -2.25, 1e-05, 1e16, 3.0])
    if kind == 3: return text(r)
    if kind == 4: return [anything(r, depth - 1) for _ in range(r.randrange(3))]
    return {text(r): anything(r, depth - 1) for _ in range(r.randrange(3))}


class Maker:
    """Makes (schema, sampler) pairs; a sampler gives a random value that fits, in the order that the grammar has."""

    def __init__(self, r):
        self.r = r
        self.defs = {}

    def any_schema(self, depth):
        leaf = [self.integer, self.number, self.string, self.pattern, self.format, self.enum, self.const, self.simple,
                self.multiple]
        deep = [self.array, self.object, self.object, self.object, self.any_of, self.one_of, self.all_of, self.ref,
                self.tuple, self.types, self.map, self.pattern_map, self.counted]
        return self.r.choice(leaf + (deep * 2 if depth > 0 else []))(depth)

    def simple(self, depth):
        return self.r.choice([
            ({"type": "null"}, lambda r: None), ({"type": "boolean"}, lambda r: r.random() < 0.5),
            ({}, anything), (True, anything), ({"description": "free", "x-note": 1}, anything)])

    def integer(self, depth):
        r = self.r
        low = r.choice([0, 1, -1, -5, 7, 99, -1000, 12345, r.randint(-10**9, 10**9)])
        high = low + r.choice([0, 1, 3, 10, 90, 12345, r.randint(0, 10**10)])
        kind = r.randrange(5)
        if kind == 0: return {"type": "integer"}, lambda r: r.randint(-10**17, 10**17)
        if kind == 1: return {"type": "integer", "minimum": low}, lambda r: r.randint(low, low + 10**6)
        if kind == 2: return {"type": "integer", "maximum": high}, lambda r: r.randint(high - 10**6, high)
        if kind == 3:
            return ({"type": "integer", "exclusiveMinimum": low - 1, "exclusiveMaximum": high + 1},
                    lambda r: r.randint(low, high))
        return {"type": "integer", "minimum": low - 0.5, "maximum": high + 0.25}, lambda r: r.randint(low, high)

    def multiple(self, depth):
        step = self.r.choice([2, 3, 7, 10, 25, 100])
        low = self.r.choice([0, -1000, 17])
        return ({"type": "integer", "multipleOf": step, "minimum": low, "maximum": low + 5000},
                lambda r: -(-low // step) * step + step * r.randint(0, 4000 // step))

    def number(self, depth):
        r = self.r
        low = round(r.choice([0, -1.5, 0.001, 2.25, -1000, r.uniform(-1e4, 1e4)]), 4)
        high = round(low + r.choice([0.5, 1, 0.001, 10, 12345.678]), 4)
        kind = r.randrange(5)
        if kind == 0: return {"type": "number"}, lambda r: r.choice([r.randint(-9, 9), round(r.uniform(-9, 9), 6), 1e-7, 2.5e10])
        if kind == 1: return {"type": "number", "minimum": low}, lambda r: round(low + r.choice([0, r.random() * 100]), 4)
        if kind == 2: return {"type": "number", "exclusiveMaximum": high}, lambda r: round(high - 0.5 - r.random() * 100, 4)
        if kind == 3:
            return ({"type": "number", "minimum": low, "maximum": high},
                    lambda r: min(high, max(low, round(r.uniform(low, high), 4))))
        middle = round((low + high) / 2, 5)
        return {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}, lambda r: middle

    def string(self, depth):
        low = self.r.choice([0, 0, 1, 3])
        high = low + self.r.choice([0, 1, 5, 40])
        schema = {"type": "string"}
        if low or self.r.random() < 0.3: schema["minLength"] = low
        if self.r.random() < 0.6: schema["maxLength"] = high
        return schema, lambda r: text(r, low, min(high, low + 8))

    def pattern(self, depth):
        pattern, sample = self.r.choice(PATTERNS)
        schema = {"type": "string", "pattern": pattern}
        if self.r.random() < 0.4:
            low, high = self.r.choice([(0, 6), (1, 12), (3, 5)])
            schema.update(minLength=low, maxLength=high)
            fits = [s for s in (sample(self.r) for _ in range(40)) if low <= len(s) <= high]
            if not fits: return self.string(depth)
            return schema, lambda r: r.choice(fits)
        return schema, sample

    def format(self, depth):
        name = self.r.choice(sorted(FORMATS))
        return {"type": "string", "format": name}, lambda r: r.choice(FORMATS[name])

    def enum(self, depth):
        values = [self.r.choice([None, True, "a", "ab", "a\"b", "é", 1, -2.5, [1, "x"], {"k": [None]}, text(self.r)])
                  for _ in range(self.r.randint(1, 6))]
        return {"enum": values}, lambda r: r.choice(values)

    def const(self, depth):
        value = anything(self.r)
        return {"const": value}, lambda r: value

    def types(self, depth):
        return ({"type": ["string", "null", "integer"], "maxLength": 3, "minimum": 5},
                lambda r: r.choice([None, text(r, 0, 3), r.randint(5, 500)]))

    def array(self, depth):
        items, sample = self.any_schema(depth - 1)
        low = self.r.choice([0, 0, 1, 2])
        high = low + self.r.choice([0, 1, 3])
        schema = {"type": "array", "items": items}
        if low: schema["minItems"] = low
        if self.r.random() < 0.5: schema["maxItems"] = high
        return schema, lambda r: [sample(r) for _ in range(r.randint(low, high))]

    def tuple(self, depth):
        parts = [self.any_schema(depth - 1) for _ in range(self.r.randint(1, 3))]
        schema = {"type": "array", "prefixItems": [s for s, _ in parts], "items": False}
        rest = None
        if self.r.random() < 0.5:
            schema["items"], rest = self.any_schema(0)
        low = self.r.randint(0, len(parts))
        if low: schema["minItems"] = low

        def sample(r):
            out = [f(r) for _, f in parts][:r.randint(low, len(parts))]
            if rest and len(out) == len(parts): out += [rest(r) for _ in range(r.randrange(3))]
            return out
        return schema, sample

    def properties(self, depth, names):
        parts = {name: self.any_schema(depth - 1) for name in names}
        required = [name for name in parts if self.r.random() < 0.6]
        return parts, required

    def object(self, depth):
        names = self.r.sample(WORDS, self.r.randint(0, 5))
        parts, required = self.properties(depth, names)
        schema = {"type": "object", "properties": {k: s for k, (s, _) in parts.items()}}
        if required: schema["required"] = self.r.sample(required, len(required))
        more = None
        kind = self.r.randrange(3)
        if kind == 0: schema["additionalProperties"] = False
        if kind == 1: schema["additionalProperties"], more = self.any_schema(0)

        def sample(r):
            out = {k: f(r) for k, (_, f) in parts.items() if k in required or r.random() < 0.5}
            for key in r.sample(["zz", "other", "nam", "names", "é2", "k"], r.randrange(3)) if more else []:
                out[key] = more(r)
            return out
        return schema, sample

    def counted(self, depth):
        names = self.r.sample([w for w in WORDS], self.r.randint(2, 5))
        parts, required = self.properties(0, names)
        low = self.r.randint(0, len(names))
        high = self.r.randint(max(low, len(required)), len(names))
        schema = {"type": "object", "properties": {k: s for k, (s, _) in parts.items()}, "required": required,
                  "additionalProperties": False, "minProperties": low, "maxProperties": high}

        def sample(r):
            free = [n for n in names if n not in required]
            want = r.randint(max(low, len(required)), high) - len(required)
            chosen = set(required) | set(r.sample(free, want))
            return {k: f(r) for k, (_, f) in parts.items() if k in chosen}
        return schema, sample

    def map(self, depth):
        value, sample = self.any_schema(depth - 1)
        low = self.r.choice([0, 0, 1])
        schema = {"type": "object", "additionalProperties": value}
        if low: schema["minProperties"] = low
        return schema, lambda r: {k: sample(r) for k in r.sample(["a", "bb", "é", "k 1"], r.randint(low, 3))}

    def pattern_map(self, depth):
        first, sample = self.any_schema(0)
        second, other = self.any_schema(0)
        schema = {"type": "object", "patternProperties": {"^n_": first}, "additionalProperties": second}
        return schema, lambda r: {k: (sample if k.startswith("n_") else other)(r)
                                  for k in r.sample(["n_", "n_a", "n", "m_", "n_é"], r.randrange(4))}

    def any_of(self, depth):
        parts = [self.any_schema(depth - 1) for _ in range(self.r.randint(2, 3))]
        return {"anyOf": [s for s, _ in parts]}, lambda r: r.choice(parts)[1](r)

    def one_of(self, depth):
        if self.r.random() < 0.5:
            parts = [self.integer(0), self.string(0), self.array(depth)]
            return {"oneOf": [s for s, _ in parts]}, lambda r: r.choice(parts)[1](r)
        kinds = {k: self.any_schema(depth - 1) for k in ("cat", "dog")}
        schema = {"oneOf": [{"type": "object", "properties": {"kind": {"const": k}, "value": s},
                             "required": ["kind", "value"], "additionalProperties": False} for k, (s, _) in kinds.items()]}

        def sample(r):
            kind = r.choice(list(kinds))
            return {"kind": kind, "value": kinds[kind][1](r)}
        return schema, sample

    def all_of(self, depth):
        a, fa = self.any_schema(depth - 1)
        b, fb = self.any_schema(depth - 1)
        schema = {"allOf": [{"type": "object", "properties": {"a": a}, "required": ["a"]},
                            {"properties": {"b": b, "n": {"minimum": 3}}},
                            {"properties": {"n": {"type": "integer", "maximum": 9}}}]}

        def sample(r):
            out = {"a": fa(r)}
            if r.random() < 0.5: out["b"] = fb(r)
            if r.random() < 0.5: out["n"] = r.randint(3, 9)
            return out
        return schema, sample

    def ref(self, depth):
        kind = self.r.choice(["tree", "list"])
        if kind not in self.defs:
            self.defs[kind] = {
                "tree": {"type": "object", "properties": {
                    "value": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
                    "required": ["value"], "additionalProperties": False},
                "list": {"anyOf": [{"type": "null"}, {
                    "type": "object", "properties": {"head": {"type": "string"}, "tail": {"$ref": "#/$defs/list"}},
                    "required": ["head", "tail"]}]}}[kind]

        def tree(r, depth=3):
            out = {"value": r.randint(-5, 5)}
            if r.random() < 0.6: out["children"] = [tree(r, depth - 1) for _ in range(r.randrange(3))] if depth else []
            return out

        def chain(r, depth=3):
            return {"head": text(r), "tail": chain(r, depth - 1)} if depth and r.random() < 0.7 else None
        return {"$ref": "#/$defs/" + kind}, tree if kind == "tree" else chain


def spell(r, value):
    return json.dumps(value, separators=(r.choice([",", ", "]), r.choice([":", ": "])), ensure_ascii=False)


def spoil(r, value):
    """A value near to the given one."""
    if isinstance(value, dict) and value and r.random() < 0.8:
        key = r.choice(list(value))
        out = dict(value)
        if r.random() < 0.3: out.pop(key)
        else: out[key] = spoil(r, value[key])
        return out
    if isinstance(value, list) and value and r.random() < 0.8:
        i = r.randrange(len(value))
        return r.choice([value[:i] + value[i + 1:], value[:i] + [spoil(r, value[i])] + value[i + 1:], value + [value[i]]])
    if isinstance(value, str) and r.random() < 0.7:
        return r.choice([value + r.choice("azé9\""), value[:-1], value[1:], value.upper()])
    if isinstance(value, (int, float)) and not isinstance(value, bool) and r.random() < 0.7:
        return r.choice([value + 1, value - 1, value * 10, -value, value + 0.5, value + 0.0001])
    return anything(r)


def generate(seed, count):
    r = random.Random(seed)
    for _ in range(count):
        maker = Maker(r)
        schema, sample = maker.any_schema(r.randint(0, 3))
        if maker.defs and isinstance(schema, dict): schema = {**schema, "$defs": maker.defs}
        judge = Draft202012Validator(schema, format_checker=draft202012_format_checker)
        valid, invalid = [], []
        for _ in range(6):
            value = sample(r)
            errors = [e.message for e in judge.iter_errors(value)]
            assert not errors, (schema, value, errors)
            valid.append(spell(r, value))
            for _ in range(6):
                near = spoil(r, value)
                if not judge.is_valid(near): invalid.append(spell(r, near))
        print(json.dumps({"schema": schema, "valid": valid, "invalid": invalid}))


def check(lines):
    checked = bad = 0
    for line in lines:
        case = json.loads(line)
        judge = Draft202012Validator(case["schema"], format_checker=draft202012_format_checker)
        for answer in case["texts"]:
            checked += 1
            try:
                errors = [e.message for e in judge.iter_errors(json.loads(answer))]
            except ValueError as error:
                errors = [str(error)]
            if errors:
                bad += 1
                print("WRONG %s\n  schema %s\n  %s" % (answer, json.dumps(case["schema"]), errors[:2]))
    print("%d texts, %d wrong" % (checked, bad))
    return 1 if bad or not checked else 0


if __name__ == "__main__":
    if sys.argv[1] == "generate": generate(int(sys.argv[2]), int(sys.argv[3]))
    else: sys.exit(check(sys.stdin))
