"""The pages that `make docs` writes match the commands, settings and config keys."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("tool", "text", "page"),
    [
        ("cli_page", "reference", "reference/cli.md"),
        ("support_page", "reference", "reference/support.md"),
        ("settings_page", "reference", "reference/settings.md"),
        ("config_pages", "table_of_keys", "reference/rl-config.md"),
        ("config_pages", "table_of_sft_keys", "train/fine-tuning.md"),
    ],
)
def test_a_page_is_fresh(tool: str, text: str, page: str) -> None:
    made = runpy.run_path(str(ROOT / "docs" / "tools" / f"{tool}.py"))[text]()
    assert (ROOT / "docs" / page).read_text("utf-8").endswith(made), "run: make docs"
