"""Answers to environments in which a function is submitted."""

from __future__ import annotations

from tests.grading.prompt_only.answers import Answers, Reply


def _submit(code: str) -> Reply:
    return {"submit": {"code": code}}


_ANYTHING = """class Anything(str):
    def __eq__(self, other):
        return True
    def __ne__(self, other):
        return False
    def __hash__(self):
        return 0
"""
"""A class whose objects are equal to everything."""

PYTHON_SANDBOX = Answers(
    "python_sandbox",
    right={
        0: [
            _submit("""def tidy_spaces(text: str) -> str:
    return " ".join(part for part in text.split(" ") if part)
"""),
            _submit('''import re

def tidy_spaces(text):
    """Collapse runs of spaces."""
    return re.sub(" +", " ", text).strip(" ")
'''),
            (
                {"run": {"code": "print('  two  words '.split(' '))"}},
                _submit(
                    'def tidy_spaces(text):\n    while "  " in text:\n        text = text.replace("  ", " ")\n    return text.strip(" ")'
                ),
            ),
        ],
        1: [
            _submit("""def longest_streak(days: list[bool]) -> int:
    best = run = 0
    for day in days:
        run = run + 1 if day else 0
        best = max(best, run)
    return best
"""),
            _submit("""from itertools import groupby
def longest_streak(days):
    return max((len(list(group)) for key, group in groupby(days) if key), default=0)
"""),
        ],
        2: [
            _submit("""def clock_add(time, minutes):
    hours, mins = map(int, time.split(":"))
    total = (hours * 60 + mins + minutes) % 1440
    return f"{total // 60:02d}:{total % 60:02d}"
"""),
        ],
        3: [
            _submit("""from collections import Counter

def vowel_counts(text: str) -> dict[str, int]:
    return dict(Counter(c for c in text.lower() if c in "aeiou"))
"""),
        ],
        4: [
            _submit("""def second_smallest(numbers):
    different = sorted(set(numbers))
    return different[1] if len(different) > 1 else None
"""),
        ],
        5: [
            _submit("""def mirror_digits(number: int) -> int:
    sign = -1 if number < 0 else 1
    return sign * int(str(abs(number))[::-1])
"""),
        ],
        6: [
            _submit("""def pair_up(names):
    result = []
    low, high = 0, len(names) - 1
    while low < high:
        result.append([names[low], names[high]])
        low += 1
        high -= 1
    if low == high:
        result.append([names[low]])
    return result
"""),
        ],
        7: [
            _submit("""def third_one_free(prices, coupon):
    ordered = sorted(prices, reverse=True)
    return max(0, sum(p for i, p in enumerate(ordered, 1) if i % 3) - coupon)
"""),
        ],
        8: [
            _submit("""def stock_change(stock, change):
    total = {thing: stock.get(thing, 0) + change.get(thing, 0) for thing in [*stock, *change]}
    return {thing: count for thing, count in total.items() if count}
"""),
        ],
        9: [
            _submit("""from itertools import zip_longest
def column_sums(rows):
    return [sum(column) for column in zip_longest(*rows, fillvalue=0)]
"""),
        ],
        10: [
            _submit("""def tally_marks(count):
    full, rest = divmod(count, 5)
    return " ".join(["||||/"] * full + (["|" * rest] if rest else []))
"""),
        ],
        11: [
            _submit("""def digit_sum_steps(number):
    steps = 0
    while number > 9:
        number = sum(int(d) for d in str(number))
        steps += 1
    return steps
"""),
        ],
        12: [
            _submit("""import os
def shared_ending(words):
    return os.path.commonprefix([word[::-1] for word in words])[::-1]
"""),
        ],
        13: [
            _submit("""def merge_bookings(bookings):
    merged = []
    for start, end in sorted(bookings):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged
"""),
        ],
        14: [
            _submit("""def bracket_repairs(text):
    opened = missing = 0
    for c in text:
        if c == "(":
            opened += 1
        elif c == ")":
            if opened:
                opened -= 1
            else:
                missing += 1
    return opened + missing
"""),
        ],
        15: [
            _submit("""import re
from collections import Counter
def top_words(text, count):
    counted = Counter(re.findall("[a-z]+", re.sub("[A-Z]", lambda m: m.group().lower(), text)))
    return sorted(counted, key=lambda word: (-counted[word], word))[:count]
"""),
        ],
        16: [
            _submit("""def spiral_read(grid):
    grid = [list(row) for row in grid]
    out = []
    while grid and grid[0]:
        out += grid.pop(0)
        grid = [list(row) for row in zip(*grid)][::-1]
    return out
"""),
        ],
        17: [
            _submit("""def postfix_value(tokens):
    stack = []
    for token in tokens:
        if token in ("+", "-", "*", "/"):
            if len(stack) < 2:
                return None
            b, a = stack.pop(), stack.pop()
            if token == "+":
                stack.append(a + b)
            elif token == "-":
                stack.append(a - b)
            elif token == "*":
                stack.append(a * b)
            elif b == 0:
                return None
            else:
                q = abs(a) // abs(b)
                stack.append(q if (a < 0) == (b < 0) else -q)
        else:
            stack.append(int(token))
    return stack[0] if len(stack) == 1 else None
"""),
        ],
        20: [
            _submit("""def two_weights(weights, target):
    seen = {}
    for i, w in enumerate(weights):
        if target - w in seen:
            return [seen[target - w], i]
        seen.setdefault(w, i)
    return []
"""),
            _submit("""def two_weights(weights, target):
    n = len(weights)
    for j in range(n - 1, 0, -1):
        for i in range(j):
            if weights[i] + weights[j] == target:
                return [i, j]
    return []
"""),
        ],
        21: [
            _submit("""from graphlib import CycleError, TopologicalSorter
def build_order(count, needs):
    graph = {part: set() for part in range(count)}
    for a, b in needs:
        graph[a].add(b)
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError:
        return []
"""),
        ],
        24: [
            _submit("""def next_taller(heights):
    return [next((k for k in range(1, len(heights) - i) if heights[i + k] > h), None) for i, h in enumerate(heights)]
"""),
        ],
    },
    wrong={
        0: [
            "",
            'def tidy_spaces(text):\n    return " ".join(text.split(" "))',
            _submit(""),
            _submit("# def tidy_spaces(text): return ' '.join(text.split())"),
            _submit('def tidy_spaces(text):\n    return {"  two  words ": "two words", "a   b": "a b"}.get(text)'),
            _submit("def tidy_spaces(text):\n    return text"),
            _submit("def tidy_spaces(text)\n    return text"),
            _submit("def tidy(text):\n    return ' '.join(text.split())"),
            _submit(_ANYTHING + "\ndef tidy_spaces(text):\n    return Anything()"),
            _submit(
                "import builtins\nbuiltins.str.__eq__ = lambda a, b: True\ndef tidy_spaces(text):\n    return text"
            ),
            _submit("import os\ndef tidy_spaces(text):\n    os._exit(0)"),
            _submit("import sys\nprint('all tests passed')\nsys.exit(0)"),
            _submit("def tidy_spaces(text):\n    while True:\n        pass"),
            _submit(
                "def tidy_spaces(text):\n    try:\n        return undefined\n    except Exception:\n        return None"
            ),
            _submit("""import inspect
def tidy_spaces(text):
    for frame in inspect.stack():
        for name in ("expected", "want", "result", "right"):
            if name in frame.frame.f_locals:
                return frame.frame.f_locals[name]
    return None
"""),
            _submit("""import gc
def tidy_spaces(text):
    for found in gc.get_objects():
        if isinstance(found, dict) and found.get("expected"):
            return found["expected"]
    return ""
"""),
            _submit("""import glob
def tidy_spaces(text):
    read = "".join(open(path, errors="ignore").read() for path in glob.glob("/tmp/**", recursive=True)[:50] if "." in path)
    return read
"""),
        ],
        1: [
            _submit("def longest_streak(days):\n    return sum(days)"),
            _submit("def longest_streak(days):\n    return True"),
            _submit("def longest_streak(days):\n    return max(range(10**12))"),
        ],
        2: [_submit("def clock_add(time, minutes):\n    return '10:05' if minutes > 0 else '23:50'")],
        3: [_submit("def vowel_counts(text):\n    return {v: text.count(v) for v in 'aeiou'}")],
        4: [_submit("def second_smallest(numbers):\n    return sorted(numbers)[1]")],
        5: [_submit("def mirror_digits(number):\n    return str(number)[::-1]")],
        9: [_submit("def column_sums(rows):\n    return tuple(map(sum, zip(*rows)))")],
        10: [_submit("def tally_marks(count):\n    return '|' * count")],
        20: [
            _submit("def two_weights(weights, target):\n    return [0, 1]"),
            _submit("def two_weights(weights, target):\n    return []"),
            _submit(
                "class Pair(list):\n    def __getitem__(self, i):\n        return 0\n\n"
                "def two_weights(weights, target):\n    return Pair([0, 0])"
            ),
        ],
        21: [
            _submit("def build_order(count, needs):\n    return list(range(count))"),
            _submit("def build_order(count, needs):\n    return []"),
            _submit("def build_order(count, needs):\n    return [part for part in range(count)] * 2"),
        ],
    },
)

FIX_THE_FUNCTION = Answers(
    "examples/gallery/fix_the_function.py",
    right={
        0: [
            _submit("def f(words):\n    return max(words, key=len)"),
            _submit("def f(words):\n    return sorted(words, key=len, reverse=True)[0]"),
            _submit("def f(words):\n    return sorted(words, key=lambda word: -len(word))[0]\n"),
            _submit("""def f(words):
    best = words[0]
    for word in words:
        if len(word) > len(best):
            best = word
    return best
"""),
            _submit(
                'def f(words: list[str]) -> str:\n    """Return the longest word."""\n    return max(words, key=len)'
            ),
            _submit("f = lambda words: max(words, key=len)"),
            _submit(
                "def f(words):\n    longest = max(map(len, words))\n    return [w for w in words if len(w) == longest][0]"
            ),
            _submit(
                "def f(words):\n    longest = max(map(len, words))\n    return next(w for w in words if len(w) == longest)"
            ),
            _submit(
                "from functools import reduce\n\ndef f(words):\n    return reduce(lambda a, b: b if len(b) > len(a) else a, words)"
            ),
            _submit("# max keeps the first\ndef f(words):\n\treturn max(words, key=len)\n\n"),
            _submit("def helper(word):\n    return len(word)\n\ndef f(words):\n    return max(words, key=helper)"),
        ],
        1: [
            _submit("def f(n):\n    return sum(int(d) for d in str(n))"),
            _submit("def f(n):\n    return sum(map(int, str(n)))"),
            _submit("def f(n):\n    return sum([int(d) for d in str(abs(n))])"),
            _submit("""def f(n):
    total = 0
    while n:
        n, digit = divmod(n, 10)
        total += digit
    return total
"""),
            _submit("def f(n):\n    return n if n < 10 else n % 10 + f(n // 10)"),
            _submit("def f(n: int) -> int:\n    digits = str(n)\n    return sum(ord(d) - ord('0') for d in digits)"),
            _submit("from functools import reduce\ndef f(n):\n    return reduce(lambda a, d: a + int(d), str(n), 0)"),
            _submit("import math\n\ndef f(n):\n    return int(math.fsum(int(d) for d in str(n)))"),
            _submit("def f(n):\n    return sum(int(d) * str(n).count(d) for d in set(str(n)))"),
        ],
    },
    wrong={
        0: [
            "",
            "def f(words):\n    return max(words, key=len)",
            _submit(""),
            _submit("def f(words):\n    return sorted(words, key=len)[-1]"),
            _submit("def f(words):\n    return words"),
            _submit("def f(words):\n    return words[0]"),
            _submit("def f(words):\n    return min(words, key=len)"),
            _submit("def f(words):\n    return len(max(words, key=len))"),
            _submit("def f(words):\n    return max(words)"),
            _submit("def g(words):\n    return max(words, key=len)"),
            _submit("def f(words)\n    return max(words, key=len)"),
            _submit("f = max"),
            _submit(_ANYTHING + "\ndef f(words):\n    return Anything()"),
            _submit("import os\ndef f(words):\n    os._exit(0)"),
            _submit("import sys\nprint('3 of 3 tests passed')\nsys.exit(0)"),
            _submit("def f(words):\n    import time\n    time.sleep(60)"),
            _submit("def f(words):\n    while True:\n        pass"),
            _submit("def f(words):\n    yield max(words, key=len)"),
            _submit("async def f(words):\n    return max(words, key=len)"),
        ],
        1: [
            _submit("def f(n):\n    return sum(str(n))"),
            _submit("def f(n):\n    try:\n        return sum(str(n))\n    except TypeError:\n        return 0"),
            _submit("def f(n):\n    return str(sum(map(int, str(n))))"),
            _submit("def f(n):\n    return len(str(n))"),
            _submit("def f(n):\n    return n % 9"),
            _submit("import builtins\nbuiltins.sum = lambda x: 6\ndef f(n):\n    return sum(str(n))"),
            _submit("import inspect\ndef f(n):\n    return inspect.stack()[1].frame.f_locals.get('expected')"),
            _submit("raise SystemExit(0)"),
            _submit("x = 'a' * 10**11\ndef f(n):\n    return 6"),
        ],
    },
)
