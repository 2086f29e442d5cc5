"""docs/reference/guides.md prints the list of substitutions between its markers. TASKAPP_WRITE_GUIDES_PAGE=1 writes it."""

from __future__ import annotations

import os

from tests.guides.guide import ROOT
from tests.guides.substitutions import MOST, SUBSTITUTIONS
from tests.guides.test_workflow_guide import ALL

PAGE = ROOT / "docs/reference/guides.md"
BEGIN, END = "<!-- substitutions: written by tests/guides/test_page.py -->", "<!-- end of substitutions -->"


def table() -> str:
    """Return one line for each substitution."""
    rows = ["| guide | block | text in the guide | text in the test | reason |", "|---|---|---|---|---|"]
    for each in SUBSTITUTIONS:
        where = f"{each.guide or 'all'} | {each.block or 'all'}"
        old = f"`{each.old}`" if each.old else "(after it)" if each.after else "(before it)"
        rows.append(f"| {where} | {old} | `{each.new}` | {each.reason} |")
    for script in ALL:
        where = f"torchforge-rl-workflows | {script.block + 1}"
        rows += [f"| {where} | `{line}` | (absent) | {reason} |" for line, reason in script.missing.items()]
        rows += [f"| {where} | (absent) | `{line}` | {reason} |" for line, reason in script.added.items()]
    return "\n".join(rows)


def written(page: str) -> str:
    """Return the page with its list written again."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def test_the_list_only_shrinks() -> None:
    assert len(SUBSTITUTIONS) == len(set(SUBSTITUTIONS)) == MOST, "lower MOST when it shrinks; never raise it"


def test_the_page_lists_every_substitution() -> None:
    page = PAGE.read_text("utf-8")
    if os.environ.get("TASKAPP_WRITE_GUIDES_PAGE"):
        PAGE.write_text(written(page), "utf-8")
        page = written(page)
    assert written(page) == page, "run: TASKAPP_WRITE_GUIDES_PAGE=1 pytest tests/guides/test_page.py"
