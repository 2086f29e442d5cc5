"""The guides, read at test time from a directory next to the checkout. They are not shipped."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT.parent / "shared" / "reference"
IN_PROCESS, AGNOSTIC = "rl-in-process-task-apps", "rl-example-provider-agnostic"
OVERVIEW, FFT = "rl-overview-and-key-commands", "rl-workflow-fft-first"
TORCHFORGE = "torchforge-rl-workflows"
RL_GUIDES = (IN_PROCESS, AGNOSTIC, OVERVIEW, FFT)

THERE = pytest.mark.skipif(
    not all((REFERENCE / f"{guide}.md").is_file() for guide in (*RL_GUIDES, TORCHFORGE)),
    reason="the guides are not in shared/reference next to this checkout",
)

FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
TABLE_HEAD, TABLE_ROW = "ActionCommand\n", re.compile(r"(?<=\w)((?:uvx|curl) .*)$", re.MULTILINE)
"""A table of commands that lost its columns: the purpose and the command are joined without a space."""


@cache
def text_of(guide: str) -> str:
    return (REFERENCE / f"{guide}.md").read_text(encoding="utf-8")


@cache
def blocks(guide: str) -> list[tuple[str, str]]:
    """(language, text) of each block, then of each command in a table; a block without a language is shell."""
    text = text_of(guide)
    _, _, table = text.partition(TABLE_HEAD)
    found = [(language or "bash", block) for language, block in FENCED.findall(text)]
    return found + [("bash", f"{command}\n") for command in TABLE_ROW.findall(table)]


def prose(guide: str) -> str:
    """The guide without its blocks and its table of commands."""
    return TABLE_ROW.sub("", FENCED.sub("", text_of(guide)))
