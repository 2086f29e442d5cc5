"""Every page that a string, a comment or a config names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"(?<![\w./-])docs/[\w/-]+\.(?:md|png|gif)")


def test_pages_that_the_code_names_exist() -> None:
    directories = ("taskapp_kit", "environments", "templates", "examples", "bench", "tests", "docs")
    files = [path for name in directories for suffix in ("py", "toml") for path in (ROOT / name).rglob(f"*.{suffix}")]
    broken = {}
    for path in [*files, ROOT / "Makefile", ROOT / "modal_app.py", ROOT / "pyproject.toml"]:
        if missing := [name for name in NAMED.findall(path.read_text("utf-8")) if not (ROOT / name).exists()]:
            broken[str(path.relative_to(ROOT))] = missing
    assert broken == {}
