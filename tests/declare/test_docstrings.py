from __future__ import annotations

import pytest

from taskapp_kit.declare.docstrings import docstring, joined


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ""),
        ("One.", "One."),
        ("One\n    line `and`\n    `more`.\n\n    Another\n    one.\n    ", "One line `and` `more`.\n\nAnother one."),
        ("Rules:\n- a\n- b\n  more\n1. c", "Rules:\n- a\n- b\n  more\n1. c"),
        ("As:\n\n    code\n    more\nEnd.", "As:\n\n    code\n    more\nEnd."),
        ("| a |\n| b |\nEnd.", "| a |\n| b |\nEnd."),
        ("```\na\nb\n```\nOne\ntwo.", "```\na\nb\n```\nOne two."),
    ],
)
def test_paragraphs_become_lines_and_the_rest_stays(text: str | None, expected: str) -> None:
    assert docstring(text) == expected
    assert joined(expected) == expected
