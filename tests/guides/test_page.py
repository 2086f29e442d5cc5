"""docs/guides.md prints the substitutions of the tests. TASKAPP_WRITE_GUIDES_PAGE=1 writes them."""

from __future__ import annotations

import os

from tests.guides.page import PAGE, written
from tests.guides.substitutions import MOST, SUBSTITUTIONS


def test_the_list_only_shrinks() -> None:
    assert len(SUBSTITUTIONS) == len(set(SUBSTITUTIONS)) == MOST, "lower MOST when it shrinks; never raise it"


def test_the_page_lists_every_substitution() -> None:
    page = PAGE.read_text("utf-8")
    if os.environ.get("TASKAPP_WRITE_GUIDES_PAGE"):
        PAGE.write_text(written(page), "utf-8")
        page = written(page)
    assert written(page) == page, "run: TASKAPP_WRITE_GUIDES_PAGE=1 pytest tests/guides/test_page.py"
