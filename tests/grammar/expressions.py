#!/usr/bin/env python3
"""expressions.py SEED COUNT: random regular expressions with texts and what Python's fullmatch says of them, as JSON lines."""
import json
import random
import re
import signal
import sys

PATIENCE = 0.05  # seconds for one text: Python backtracks

ATOMS = ["a", "b", "c", "é", "日", ".", "[ab]", "[^a]", "[a-cé]", "\\d", "\\w", "\\s", "\\.", "0", "\\n", "[^\\d\\s]", "[\\w-]",
         "\\u00e9", "\\x61", "-", " "]
LETTERS = ["a", "b", "c", "é", "日", "0", "7", " ", "\n", ".", "-", "_", "😀"]


def expression(r, depth):
    kind = r.randrange(6 if depth else 1)
    if kind == 0: return r.choice(ATOMS)
    if kind in (1, 2): return "".join(expression(r, depth - 1) for _ in range(r.randint(1, 3)))
    if kind == 3: return "(" + "|".join(expression(r, depth - 1) for _ in range(r.randint(1, 3))) + ")"
    part = "(?:" + expression(r, depth - 1) + ")"
    return part + r.choice(["*", "+", "?", "{2}", "{1,3}", "{2,}", "{0,1}", "*?", "+?", "{300}", "{1,400}"][:r.choice([9, 11])])


def texts(r, source):
    """Random ones, and ones near to the letters of the expression."""
    near = [c for c in source if c in LETTERS] or ["a"]
    for _ in range(12):
        pool = r.choice([LETTERS, near, near[:2]])
        yield "".join(r.choice(pool) for _ in range(r.choice([0, 1, 2, 3, 4, 6])))
    yield r.choice(near) * r.choice([299, 300, 301, 400, 401])


def verdict(compiled, text):
    """Whether the text matches, or None when Python takes too long."""
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        return compiled.fullmatch(text) is not None
    except TimeoutError:
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def give_up(signum, frame):
    raise TimeoutError


def main(seed, count):
    signal.signal(signal.SIGALRM, give_up)
    r = random.Random(seed)
    for _ in range(count):
        source = expression(r, r.randint(0, 3))
        compiled = re.compile(source, re.ASCII)
        known = {}
        for text in texts(r, source):
            fits = verdict(compiled, text)
            if fits is None: break  # nor will it manage the next
            known[text] = fits
        print(json.dumps({"expression": source, "texts": known}))


main(int(sys.argv[1]), int(sys.argv[2]))
