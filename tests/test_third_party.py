"""Code that follows the work of others is listed in THIRD_PARTY.md, and says so itself.

Two texts are compared by their fingerprints: all runs of ten tokens, without punctuation and leading underscores. A file
that shares more than a few with a source follows it.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GUIDES = ROOT.parent / "shared" / "reference"
PAGE = (ROOT / "THIRD_PARTY.md").read_text()
RUN_TOKENS = 10
MOST_SHARED = 8
"""Runs that two texts share by chance or by use of the same interface."""

UNTOLD = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def listed() -> dict[str, str]:
    """The files of the tables of THIRD_PARTY.md, each with the heading above it."""
    heading, files = "", {}
    for line in PAGE.splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif row := re.match(r"\| `([^`]+)` \| .+ \| .+ \|$", line):
            files[row[1]] = heading
    return files


def fingerprints(source: str) -> set[tuple[str, ...]]:
    tokens = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type not in UNTOLD and token.string not in "(),:[]":
                tokens.append(token.string.strip("\"'").removeprefix("_"))
    except (tokenize.TokenError, SyntaxError):
        pass  # a block of a guide may end in the middle of a statement: what comes before counts
    return {tuple(tokens[start : start + RUN_TOKENS]) for start in range(len(tokens) - RUN_TOKENS + 1)}


@cache
def ours() -> dict[str, set[tuple[str, ...]]]:
    folders = ("taskapp_kit", "environments", "templates", "examples", "bench", "tests")
    files = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]
    return {file.relative_to(ROOT).as_posix(): fingerprints(file.read_text()) for file in files}


def followers(sources: Iterable[str]) -> set[str]:
    """Our files that share more than a few runs of tokens with one of the sources."""
    runs = [fingerprints(source) for source in sources]
    return {name for name, own in ours().items() if any(len(own & theirs) > MOST_SHARED for theirs in runs)}


def blocks(page: str) -> list[str]:
    return re.findall(r"```py(?:thon)?\n(.*?)```", page, re.DOTALL)


def test_every_listed_file_exists_and_names_its_source() -> None:
    files = listed()
    assert len(files) > 10
    for name in files:
        assert (ROOT / name).is_file()
        if name.endswith(".py"):
            assert "see THIRD_PARTY.md" in (ROOT / name).read_text().splitlines()[0]


def test_the_license_of_crafter_is_given_as_the_package_has_it() -> None:
    pytest.importorskip("crafter")
    package = metadata.distribution("crafter")
    license_text = package.read_text("licenses/LICENSE") or package.read_text("LICENSE")
    if license_text is None:
        pytest.skip("this installation of crafter came without its license")
    assert license_text.strip() in PAGE


@pytest.mark.ci
def test_every_file_that_follows_crafter_is_listed() -> None:
    crafter = pytest.importorskip("crafter")
    sources = [file.read_text() for file in sorted(Path(crafter.__file__).parent.glob("*.py"))]
    following = followers(sources)
    assert "environments/crafter/picture.py" in following
    assert following <= {name for name, heading in listed().items() if heading == "Crafter"}


@pytest.mark.skipif(not GUIDES.is_dir(), reason="the guides are not next to this checkout")
def test_every_file_that_has_blocks_of_a_guide_is_listed() -> None:
    following = followers(block for page in sorted(GUIDES.glob("*.md")) for block in blocks(page.read_text()))
    assert "examples/forge/synchronous_rl.py" in following
    assert following <= {name for name, heading in listed().items() if heading == "TorchForge"}


@pytest.mark.skipif(not GUIDES.is_dir(), reason="the guides are not next to this checkout")
def test_no_page_has_a_block_of_a_guide() -> None:
    pages = {
        file: file.read_text() for folder in ("docs", "tests", "examples") for file in (ROOT / folder).rglob("*.md")
    }
    copied = [
        block
        for guide in GUIDES.glob("*.md")
        for block in blocks(guide.read_text())
        if len(fingerprints(block)) > MOST_SHARED
    ]
    assert copied
    assert [file.name for file, text in pages.items() if any(block in text for block in copied)] == []
