r"""Replaces common variants of LaTeX notation by one, such as `\dfrac` by `\frac` and `\text{A}` by `A`.

Units, names, brackets and signs are never removed, because they change the meaning.
"""

from __future__ import annotations

import re

_SIGNS = {
    "\u2212": "-", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "×": r"\times ",
    "·": r"\cdot ", "÷": r"\div ", "±": r"\pm ", "∪": r"\cup ", "θ": r"\theta ", "∅": r"\emptyset ", "∈": r"\in ",
    "ℝ": r"\mathbb{R}", "√": r"\sqrt ", "µ": "μ",
    "Ω": r"\Omega ", "\u2126": r"\Omega ",
}  # fmt: skip
_SAME = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "leq": "le", "leqslant": "le", "geq": "ge", "geqslant": "ge",
    "neq": "ne", "varnothing": "emptyset", "lbrace": "{", "rbrace": "}", "lbrack": "[ ", "rbrack": "] ", "langle": "( ",
    "rangle": ") ", "lvert": "| ", "rvert": "| ", "vert": "| ", "mid": "| ", "lt": "< ", "gt": "> ", "colon": ": ",
    "ast": "* ", "R": "mathbb{R}", "degree": "° ", "infin": "infty", "displaystyle": " ", "textstyle": " ",
    "limits": " ", "quad": " ", "qquad": " ", "thinspace": " ",
}  # fmt: skip
"""Commands with the same meaning. A value that ends with a space is not a command."""

_ROW = "\x1e"
_DIGIT_GROUP = re.compile(r"(?<=[0-9])(?:\{,\}|\\[,;: ]|~|[\u00a0\u202f\u2009])(?=[0-9]{3}(?![0-9]))")
_DELIMITER = re.compile(r"\\(?:left|right|[bB]igg?[lrm]?)(?![A-Za-z])\s*(?:\.(?![0-9]))?")
_STYLE = re.compile(
    r"\\(?:text(?:bf|rm|it|sf|tt|normal|up)?|math(?:rm|bf|it|sf|tt|normal)|mbox|hbox|emph|operatorname\*?|boldsymbol|bm)"
    r"\s*\{([^{}]*)\}"
)
_OLD_STYLE = re.compile(r"\{\s*\\(?:rm|bf|it|sf|tt)(?![A-Za-z])\s*([^{}]*)\}")
_OVER = re.compile(r"\{([^{}]*)\\over(?![A-Za-z])([^{}]*)\}")
_DEGREES = re.compile(r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})")
_COMMAND = re.compile(r"\\([A-Za-z]+)")


def spelled(text: str) -> str:
    r"""Return the text in one spelling.

    Args:
        text: An answer. `\$` must be `$` already.
    """
    text = re.sub(r"√\s*([0-9]+)", r"\\sqrt{\1}", text)
    for sign, command in _SIGNS.items():
        text = text.replace(sign, command)
    text = text.replace("\\\\", _ROW).replace(r"\!", "").replace("<=", r"\le ").replace(">=", r"\ge ")
    text = re.sub(r"!=|\\not\s*=", r"\\ne ", text)
    text = _DELIMITER.sub("", _DIGIT_GROUP.sub("", text))
    for _ in range(4):  # styles can be nested
        before, text = text, _OLD_STYLE.sub(r"\1", _STYLE.sub(_styled, text))
        if text == before:
            break
    text = _OVER.sub(r"\\frac{\1}{\2}", text)
    text = _DEGREES.sub("°", text).replace(r"\%", "%")
    text = re.sub(r"\\(?:mathbb|Bbb)\s*\{?\s*([A-Z])\s*\}?", r"\\mathbb{\1}", text)
    text = re.sub(r"\\[,;:> ]|(?<=[0-9A-Za-z)}])\s*~|[\u00a0\u202f\u2009]", " ", text)  # a leading `~` means "about"
    text = _COMMAND.sub(_same, text)
    text = re.sub(r"\\\{\s*\\\}", r"\\emptyset ", text)
    return " ".join(text.replace(_ROW, "\\\\").split())


def _styled(found: re.Match[str]) -> str:
    """Return the content of a style, apart from a name before it: `\\pi\\text{cm}` is not the command `\\picm`."""
    return (" " if found.string[: found.start()][-1:].isalpha() else "") + found[1]


def _same(found: re.Match[str]) -> str:
    other = _SAME.get(found[1], found[1])
    return other if other.endswith(" ") else f"\\{other}"
