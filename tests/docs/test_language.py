"""The prose of the project is plain English: few phrases that make a text read like a translation.

The rate of eight admired projects (starlette, httpx, datasette, pluggy, inspect_ai, verifiers, trl, OpenEnv) is 7 per
10,000 words. A low rate is necessary, and not enough: read what you write aloud.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_PER_10_000_WORDS = 20
PHRASES = {
    "also X, not: X, too": r", too\b",
    "in progress, running": r"\bunder way\b",
    "repeat the noun": r"\b(?:those|that) of\b|\bone that\b",
    "continue": r"\bgo(?:es)? on\b|\bgoing on\b",
    "while, in the meantime": r"\bmeanwhile\b",
    "next to, with, besides": r"\bbeside\b",
    "has ended": r"\b(?:is|are|was) over\b",
    "strings": r"\btexts\b",
    "integer": r"\bwhole numbers?\b",
    "image": r"\bpictures?\b",
    "for that long, that many": r"\bso (?:long|many)\b",
    "its X, a separate X": r"\bof (?:its|their|his|one's|our|your) own\b",
    "None if X is not set": r"\bthere (?:is|are|was) none\b|\bhas none\b",
    "directory": r"\bfolders?\b",
    "is, appears": r"\bstands?\b",
    "prints, reports, specifies": r"\b(?:says|said)\b",
    "is not a X": r"\b(?:is|are) no \w+",
    "again": r"\banew\b",
    "protocol": r"\bdoors?\b",
    "as text": r"\bin words\b",
    "the result of": r"\bwhat (?:came|comes|became|becomes) of\b",
    "is had": r"\b(?:is|are|be) had\b",
    "prints, reports": r"\b(?:told|tells?)\b",
    "anyone who, no one, someone": r"\b(?:whoever|nobody|somebody|anybody)\b",
    "repair, fix": r"\bmend(?:s|ed|ing)?\b",
    "expensive": r"\bdear(?:er|est)\b",
    "characters": r"\bletters?\b",
    "stays, is stored": r"\b(?:is|are) kept\b",
    "so does the X": r"\bso (?:is|are|does|do|has|have) (?:the|a|an|its?|they|what)\b",
    "only": r"\bnothing but\b|\bno other than\b",
    "where, what": r"\b(?:wherever|whatever)\b",
    "belong in": r"\bbelongs? into\b",
    "X does not include, is not in any Y": r"\b(?:is|are|was|were) in no\b",
    "name the thing: the app's URL, not the app's": r"\b(?:the|an?|its|their|another) \w+'s(?=[.,;:)]|$)",
    "an X other than, a different X": r"\b(?:another|other) \w+ than\b",
    "repeat the noun: agents that": r"\bthose (?:with|without|in|from|which|who|that)\b",
    "trailing, ends with": r"\bat (?:its|their) end\b",
    "local, on this machine": r"\bof this machine\b",
    "does not X any Y": r"\b(?:updates?|imports?|knows?|plays?|grants?|gets?|reads?|sees?|writes?|changes?|checks?|creates?) no\b",
    "by default": r"\b(?:when|if|where) left out\b",
    "instead of": r"\bin place of\b",
    "your X, our X": r"\bof (?:yours|ours|theirs)\b",
    "repeat the noun: the URL of": r"\bthe one (?:of|in|from|at|with)\b",
    "is rejected with 422, causes a warning": r"\bis an? (?:\d{3}|warning)\b",
    "reasoning": r"\bthoughts\b",
    "even after, including": r", also (?:on|for|if|when|where|after|at|with|in)\b",
    "requested": r"\basked for\b",
    "on a backend": r"\bat a (?:backend|server)\b(?! that)",
    "the support level, the largest difference": r"\bhow far\b",
    "with an X, that contains it": r"\b(?:which|that) (?:has|have|had) (?:it|one|none|them)\b",
    "repeat the noun: earlier jobs": r"\b(?:further|earlier|later|older|newer|larger|longer|running) ones?\b",
    "remove": r"\btakes? (?:it|them) out\b",
    "if any, or None": r"\bif there is one\b",
    "is abandoned": r"\b(?:is|are|was|were|been) given up\b",
    "third-party": r"\bof others\b",
    "without an X, or None if": r"\bwith none\b|\bNone of an?\b",
    "the normalized, the expected form": r"\bin the form (?:that|in which)\b",
    "additional, other": r"\bfurther (?:members?|keywords?|names?|keys?|headers?|files?|arguments?|options?)\b",
    "is omitted": r"\b(?:is|are|was|were) left out\b",
    "lists, defines": r"\bhas the (?:words|order|reasons|names|rules)\b",
    "privileges": r"\brights of (?:root|a user)\b",
}
"""What to write instead, and the phrase."""
FOR_MODELS = Path(__file__).with_name("strings_that_models_see.txt")
"""Files whose strings a model or a stored row sees: changing them would change rollouts."""


def prose_of_python(source: str) -> Iterator[str]:
    """Yield docstrings, comments, and other strings of three words or more."""
    tree = ast.parse(source)
    docstrings = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            continue
        if id(node) in docstrings or (" " in node.value and len(re.findall(r"[A-Za-z]{2,}", node.value)) >= 3):
            yield node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("# ")


def prose_of_page(text: str) -> Iterator[str]:
    """Yield the lines outside of code blocks, without code."""
    for part in re.sub(r"^[ \t]*```.*?^[ \t]*```$", "", text, flags=re.M | re.S).splitlines():
        yield re.sub(r"`[^`]*`", "X", part)


def prose() -> Iterator[tuple[str, str]]:
    """Yield each file's prose with its path."""
    skipped = set(FOR_MODELS.read_text("utf-8").split())
    directories = [ROOT / name for name in ("taskapp_kit", "environments", "templates", "examples", "docs")]
    files = [path for directory in directories for path in directory.rglob("*") if path.suffix in (".py", ".md")]
    for path in [*files, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "AGENTS.md"))]:
        name = str(path.relative_to(ROOT))
        if name not in skipped:
            text = path.read_text("utf-8")
            yield from ((name, part) for part in (prose_of_python if path.suffix == ".py" else prose_of_page)(text))


def test_prose_has_few_phrases_of_a_translation() -> None:
    words = 0
    places: list[str] = []
    for name, text in prose():
        words += len(text.split())
        for instead, phrase in PHRASES.items():
            places += [
                f"{name}: …{text[max(0, m.start() - 40) : m.end() + 40]!r}… write: {instead}"
                for m in re.finditer(phrase, text, re.I)
            ]
    assert words > 100_000
    assert len(places) / words * 10_000 <= MOST_PER_10_000_WORDS, "\n".join(places[-40:])


def test_files_for_models_exist() -> None:
    assert [name for name in FOR_MODELS.read_text("utf-8").split() if not (ROOT / name).is_file()] == []
