r"""The structure of answers: numbers, quantities, expressions, names, lists, sets, intervals, relations, matrices.

Names, order, multiplicity and brackets are part of an answer. README.md describes where they may differ.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from .formula import MAX_DEPTH, Formula, formula
from .literals import Unreadable, number

MAX_PARTS = 50


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number as a literal, with its unit (as written) or without one."""

    number: Fraction
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Several parts: a list, tuple, set, interval, union or both signs of a plus-or-minus.

    brackets: how they are written: `()`, `(]`, …; `{}` a set, `U` a union, `±` both signs, empty for a plain list.
    ordered: whether the order counts. names: of each part, where they differ.
    """

    brackets: str
    parts: tuple[Part, ...]
    ordered: bool = True
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Named:
    """`x = …` or `x \\in …`."""

    name: str
    part: Part


@dataclass(frozen=True, slots=True)
class Relation:
    """Expressions with relations between them: `a < b \\le c`. signs: one fewer than parts."""

    signs: tuple[str, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of parts."""

    rows: tuple[tuple[Part, ...], ...]


Part = Quantity | Formula | Group | Named | Relation | Matrix

INFINITY = formula(r"\infty")
MINUS_INFINITY = formula(r"-\infty")

_NAME = re.compile(
    r"(?:[A-Za-z]|[A-Z]{2,3}|[A-Za-z]{4,20}|\\(?:alpha|beta|gamma|theta|lambda|mu|phi|omega|Delta))"
    r"(?:_(?:\{[A-Za-z0-9]+\}|[A-Za-z0-9]))?'*(?:\([a-z](?:,\s*[a-z])*\))?"
)
_SIGN = re.compile(r"\\(?:le|ge|ne|in)(?![A-Za-z])|[<>=]")
MIRRORED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
_CUP = re.compile(r"\\cup(?![A-Za-z])")
_COMMA = re.compile(r"[,;]")
_BOTH_SIGNS = re.compile(r"\\(pm|mp)(?![A-Za-z])")
_UNIT_POWER = r"(?:\^(?:-?[0-9]|\{-?[0-9]\})|[²³])?"
_UNIT = re.compile(
    rf"%|°\s*[CFK]?|[A-Za-zμΩ€£¥]+{_UNIT_POWER}(?:(?:\s*[/*·]\s*|\s*\\cdot\s*|\s+)[A-Za-zμΩ]+{_UNIT_POWER}){{0,4}}"
)
_UNIT_WORDS = {"percent": "%", "degrees": "°", "degree": "°", "deg": "°"}
_MATRIX = re.compile(r"\\begin\{([pbvBV]?matrix)\}(.*)\\end\{\1\}", re.DOTALL)
_THOUSANDS = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9,])")
_AND = re.compile(r"\s(?:and|\\land|\\wedge)\s")
_OR = re.compile(r"\s(?:or|\\lor|\\vee)\s")


def parsed(text: str) -> Part:
    """Parse an answer. Raises Unreadable. text: in one spelling (`literals.cleaned`)."""
    depth = _depth(text)
    if depth is None or depth > MAX_DEPTH:
        raise Unreadable("its brackets do not match, or are nested too deeply")
    if re.search(r",\s", text):  # a comma before a space separates parts, so a comma between digits marks thousands
        text = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), text)
    for between in (_AND, _OR):
        words = between.split(text)
        if len(words) > 1 and all("=" in word for word in words):
            part = _list(", ".join(words))
            if between is _OR and not isinstance(part, Named):
                raise Unreadable("it leaves open which name has which value")
            return part
    return _list(text.strip())


def _list(text: str) -> Part:
    if (amount := _quantity(text)) is not None:
        return amount
    parts = _split(text, _COMMA)[0]
    return _one(text) if len(parts) == 1 else _named(Group("", tuple(_one(part) for part in parts)))


def _one(text: str) -> Part:
    if (amount := _quantity(text)) is not None:
        return amount
    sides, signs = _split(text, _SIGN)
    if signs:
        return _relation(sides, signs)
    unions = _split(text, _CUP)[0]
    if len(unions) > 1:
        return Group("U", tuple(_one(part) for part in unions), ordered=False)
    if text.strip() == r"\emptyset":
        return Group("{}", (), ordered=False)
    if text.strip() == r"\mathbb{R}":
        return Group("()", (MINUS_INFINITY, INFINITY))
    if matrix := _MATRIX.fullmatch(text):
        rows = [row.split("&") for row in matrix[2].strip().removesuffix("\\\\").split("\\\\")]
        if matrix[1] in ("vmatrix", "Vmatrix") or "\\begin" in matrix[2] or sum(map(len, rows)) > MAX_PARTS:
            raise Unreadable("it is a determinant, or a large matrix")
        return Matrix(tuple(tuple(_one(part.strip()) for part in row) for row in rows))
    if (group := _brackets(text)) is not None:
        return group
    if _BOTH_SIGNS.search(text):
        return Group("±", (_one(_with_sign(text, "pm")), _one(_with_sign(text, "mp"))), ordered=False)
    return formula(text)


def _with_sign(text: str, plus: str) -> str:
    """Return the text with one of the two signs: `pm` or `mp` is the command that becomes a plus."""
    text = _BOTH_SIGNS.sub(lambda found: " + " if found[1] == plus else " - ", text)
    return text.strip().removeprefix("+ ")


def _brackets(text: str) -> Group | None:
    """Return a tuple, interval, list or set in brackets around the whole text; None for anything else, `(x + 1)` included."""
    text = text.strip()
    opens, closes = ("\\{", "\\}") if text.startswith("\\{") else (text[:1], text[-1:])
    if opens not in ("\\{", "(", "[") or not text.endswith(closes) or closes not in ("\\}", ")", "]"):
        return None
    inner = text[len(opens) : -len(closes)]
    if _depth(inner) is None:
        return None
    parts = _split(inner, _COMMA)[0]
    if opens == "\\{":
        return Group("{}", tuple(_one(part) for part in parts), ordered=False)
    if len(parts) == 1 and opens == "(":
        return None
    return Group(opens + closes, tuple(_one(part) for part in parts))


def _named(group: Group) -> Part:
    """Return the names of a group's parts: one name for all is the name of the group, whose order then does not count."""
    names = [part.name if isinstance(part, Named) else None for part in group.parts]
    bare = tuple(part.part if isinstance(part, Named) else part for part in group.parts)
    written = {name for name in names if name is not None}
    if not written:
        return group
    if len(written) == 1:
        every = None not in names and len(names) > 1
        return Named(written.pop(), replace(group, parts=bare, ordered=group.ordered and not every))
    if None in names or len(written) < len(names):
        raise Unreadable("some parts have names of their own and others have not")
    return replace(group, parts=bare, names=tuple(str(name) for name in names))


def _relation(sides: Sequence[str], signs: Sequence[str]) -> Part:
    left, right = sides[0], sides[-1]
    if len(signs) == 1 and signs[0] in ("=", r"\in"):
        if not _is_name(left) and _is_name(right) and signs[0] == "=":
            left, right = right, left
        if _is_name(left):
            return Named(_name(left), _one(right))
        names, value = _brackets(left), _brackets(right)
        if names is not None and value is not None and len(names.parts) == len(value.parts):
            written = [part.strip() for part in _split(left.strip()[1:-1], _COMMA)[0]]
            if names.brackets == value.brackets == "()" and all(map(_is_name, written)):
                return replace(value, brackets="", names=tuple(map(_name, written)))
    if r"\in" in signs or len(signs) > 3:
        raise Unreadable("it is a relation of another kind")
    interval = _interval(sides, signs)
    return interval or Relation(tuple(signs), tuple(_one(side) for side in sides))


def _interval(sides: Sequence[str], signs: Sequence[str]) -> Named | None:
    """`x > 2` or `1 < x \\le 3` as the interval of x; None for any other relation."""
    if len(signs) == 1 and _is_name(sides[1]) and not _is_name(sides[0]) and signs[0] in MIRRORED:
        sides, signs = sides[::-1], [MIRRORED[signs[0]]]
    if len(signs) == 2 and (signs[0] == signs[1] or set(signs) in ({"<", r"\le"}, {">", r"\ge"})):
        if signs[0] in (">", r"\ge"):
            sides, signs = sides[::-1], [MIRRORED[sign] for sign in signs[::-1]]
        low, name, high = sides
        opens, closes = "[" if signs[0] == r"\le" else "(", "]" if signs[1] == r"\le" else ")"
    elif len(signs) == 1 and signs[0] in MIRRORED:
        name, less, closed = sides[0], signs[0] in ("<", r"\le"), "\\" in signs[0]
        low, high = (r"-\infty", sides[1]) if less else (sides[1], r"\infty")
        opens, closes = "[" if closed and not less else "(", "]" if closed and less else ")"
    else:
        return None
    if not _is_name(name):
        return None
    ends = (_one(low), _one(high))
    if any(not isinstance(end, Quantity | Formula) or (isinstance(end, Formula) and end.symbols) for end in ends):
        return None
    return Named(_name(name), Group(opens + closes, ends))


def _quantity(text: str) -> Quantity | None:
    """Return a number with or without a unit; None for anything else, and for what is an expression without a unit."""
    text = text.strip()
    try:
        return Quantity(number(text))
    except Unreadable:
        pass
    if text[:1] in ("€", "£", "¥"):
        text = f"{text[1:]} {text[0]}"
    for start in re.finditer(r"(?<=[0-9.})])\s*(?=[%°A-Za-zμΩ€£¥])", text):
        unit = text[start.end() :]
        if not _UNIT.fullmatch(unit):
            continue
        try:
            value = number(text[: start.start()])
        except Unreadable:
            continue
        try:
            formula(text)
        except Unreadable:
            return Quantity(value, _unit(unit))
        return Quantity(value, "°") if unit == "°" else None
    return None


def _unit(text: str) -> str:
    text = re.sub(r"\s*(?:\\cdot|·|\*)\s*", "*", text).replace("²", "^2").replace("³", "^3")
    text = re.sub(r"[{}]", "", " ".join(re.sub(r"\s*([/*])\s*", r"\1", text).split()))
    text = _UNIT_WORDS.get(text.casefold(), text).replace("° ", "°")
    return text.casefold() if text.isalpha() and len(text) > 3 else text  # in short units, case matters: mW is not MW


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text.strip()) is not None


def _name(text: str) -> str:
    return re.sub(r"[{}\s]", "", text)


def _split(text: str, at: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """Split the text at matches of the pattern outside brackets. Return the parts and the matches. Raises Unreadable."""
    parts, between, depth, start, begun = [], [], 0, 0, 0
    for found in re.finditer(rf"(?P<at>{at.pattern})|\\begin\{{|\\end\{{|\\[A-Za-z]+|\\.|[()\[\]{{}}]", text):
        word = found[0]
        if word == r"\begin{":
            begun, depth = begun + 1, depth + 1
        elif word == r"\end{":
            begun, depth = begun - 1, depth + 1
        elif found["at"] is not None:
            if depth == 0 and begun == 0:
                parts.append(text[start : found.start()].strip())
                between.append(word)
                start = found.end()
        elif word in ("(", "[", "{", r"\{"):
            depth += 1
        elif word in (")", "]", "}", r"\}"):
            depth -= 1
    parts.append(text[start:].strip())
    if depth or begun or len(parts) > MAX_PARTS or (len(parts) > 1 and not all(parts)):
        raise Unreadable("a bracket is missing, or a part is empty, or there are too many")
    return parts, between


def _depth(text: str) -> int | None:
    """Return how deeply brackets are nested; None when one is closed that the text itself has not opened."""
    deepest = depth = 0
    for word in re.findall(r"[()\[\]{}]", text):
        depth += 1 if word in "([{" else -1
        if depth < 0:
            return None
        deepest = max(deepest, depth)
    return deepest if depth == 0 else None
