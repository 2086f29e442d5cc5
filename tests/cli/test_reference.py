from __future__ import annotations

from taskapp_kit.cli.main import GROUPS
from taskapp_kit.cli.reference import reference

from .conftest import ROOT


def test_the_page_is_fresh() -> None:
    written = (ROOT / "docs" / "cli.md").read_text("utf-8")
    assert written == reference(), "run: python -m taskapp_kit.cli.reference > docs/cli.md"


def test_every_command_stands_in_it() -> None:
    page = reference()
    for group, names in GROUPS.items():
        assert f"\n## {group}\n" in page
        assert all(f"\n### taskapp {name}" in page for name in names)
