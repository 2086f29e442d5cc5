"""What of Modal's printed lines is the address of the served app: a key is sent there."""

from __future__ import annotations

import pytest

from taskapp_kit.deploy.modal.run import address_in

PRINTED = """✓ Initialized. View run at https://modal.com/apps/ap-1
Building image im-1
=> Step 1: RUN uv pip install mine
Looking in indexes: https://index.example/simple
Created Function website at https://docs.example
  https://news.example/this-package-moved
✓ Created objects.
├── ✓ Uploaded /home/me/https://odd.example/modal_app.py
└── ✓ Created Function web
    └── https://me--mine-web-dev.modal.run (unauthenticated)
⚡️ Serving... hit Ctrl-C to stop!
https://later.example/said-by-the-app
"""


def found(printed: str) -> list[str]:
    lines = printed.splitlines(keepends=True)
    return [url for line, before in zip(lines, ["", *lines], strict=False) if (url := address_in(line, before))]


@pytest.mark.parametrize("edge", ["    └── ", "│   └── ", "    - ", "  "])
def test_the_address_is_what_stands_below_the_function_and_nothing_else(edge: str) -> None:
    assert found(PRINTED.replace("    └── ", edge)) == ["https://me--mine-web-dev.modal.run"]


def test_what_no_function_was_made_for_has_no_address() -> None:
    assert found(PRINTED.replace("Created Function web\n", "Created Function other\n")) == []
