"""The sections and keys of configs as tables, at the ends of docs/reference/rl-config.md and docs/train/fine-tuning.md.

Run with the paths of both pages, in this order, it writes them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from inspect import cleandoc
from pathlib import Path
from typing import Any

from taskapp_kit.jobs.client.config.schema import (
    SECTIONS,
    ConfigSection,
    RlDocument,
    example_of,
    expected,
    is_required,
    keys_of,
    sections_of,
)
from taskapp_kit.jobs.client.config.sft_config import SftDocument
from taskapp_kit.train.config_keys import LORA_SECTIONS, PPO_SECTION, limit_of, use_of

COLUMNS = ("key", "expected", "what it is", "written")


def table_of_keys() -> str:
    """Every section and key as Markdown: `docs/reference/rl-config.md` ends with this very text, and a test compares them."""
    parts = []
    for header, section in SECTIONS.items():
        path = tuple(header.split("."))
        in_full_form = header in RlDocument.model_fields and is_required(RlDocument.model_fields[header])
        needed = " Required in the full form." if in_full_form else ""
        if path in LORA_SECTIONS:
            needed += " The local trainer uses it with trainer_mode lora."
        if path == PPO_SECTION:
            needed += " The local trainer uses it with the variety ppo."
        rows = [
            [*_cells(name, key, expected(key).words), use_of((*path, name))] for name, key in keys_of(section).items()
        ]
        parts.append(_heading(header, section, needed))
        if rows:
            parts.append(_table([*COLUMNS, "local trainer"], rows))
        elif section.free:
            parts.append(f"Any keys. Local trainer: {use_of(path)}.")
    return "\n\n".join(parts) + "\n"


def table_of_sft_keys() -> str:
    """The same of an SFT config, of which every key is used: the end of `docs/train/fine-tuning.md`."""
    parts = []
    for header, section in sections_of(SftDocument):
        rows = [_cells(name, key, _sft_words(header, name, section)) for name, key in keys_of(section).items()]
        parts.append(_heading(header, section, " Required." if is_required(SftDocument.model_fields[header]) else ""))
        parts.append(_table(COLUMNS, rows) if rows else "Any keys.")
    return "\n\n".join(parts) + "\n"


def _heading(header: str, section: type[ConfigSection], needed: str) -> str:
    return f"### `[{header}]`\n\n{cleandoc(section.__doc__ or '')}{needed}"


def _cells(name: str, key: Any, words: str) -> list[str]:
    return [
        f"`{name}`{' *' if is_required(key) else ''}",
        words,
        key.description or "",
        f"`{name} = {example_of(key)}`",
    ]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head, *lines = (f"| {' | '.join(row)} |" for row in [columns, *rows])
    return "\n".join([head, "|---" * len(columns) + "|", *lines])


def _sft_words(header: str, name: str, section: type[ConfigSection]) -> str:
    limit = limit_of((header, name))
    return expected(section.model_fields[name]).words if limit is None else limit.words


if __name__ == "__main__":
    for path, table in zip(sys.argv[1:], (table_of_keys(), table_of_sft_keys()), strict=True):
        page = Path(path)
        text, before, _ = page.read_text(encoding="utf-8").partition("\n\n### `[")
        if not before:
            sys.exit(f"{page} has no table of a section to replace")
        page.write_text(f"{text}\n\n{table}", encoding="utf-8")
