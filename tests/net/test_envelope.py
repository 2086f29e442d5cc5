"""What a server says, read: bounded, clean, and without the key."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.errors import FieldProblem
from taskapp_kit.net.envelope import MAX_MESSAGE, ErrorMembers, error_members, sentence
from taskapp_kit.net.http import HttpResponse


@given(st.text())
def test_a_sentence_is_one_short_line(text: str) -> None:
    line = sentence(text * 50)
    assert len(line) <= MAX_MESSAGE
    assert line.isprintable()


def answer(body: Any) -> HttpResponse:
    return HttpResponse(422, body if isinstance(body, bytes) else orjson.dumps(body), {})


def test_an_envelope_is_read() -> None:
    error = {
        "code": "environment_raised", "message": "It broke", "hint": "Look.", "boundary": "environment",
        "rollout_id": "r1", "error_id": "e1", "fields": [{"loc": ["body", 3], "message": "odd"}],
    }  # fmt: skip
    assert error_members(answer({"detail": {"error": error}})) == ErrorMembers(
        "environment_raised",
        "It broke",
        "Look.",
        "environment",
        "r1",
        "e1",
        (FieldProblem(("body", 3), "odd"),),
        "\n  body.3: odd",
    )


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"{", {}, {"detail": "no"}, {"detail": {"error": "no"}}, {"detail": {"error": {"code": 7, "message": ""}}},
     {"detail": {"error": {"code": "c"}}}, {"detail": [{"error": {}}]}],
)  # fmt: skip
def test_other_bodies_are_not_an_envelope(body: Any) -> None:
    assert error_members(answer(body)) is None


@given(st.recursive(st.none() | st.booleans() | st.integers(0, 9) | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=6), st.sampled_from(["code", "message", "hint", "boundary", "rollout_id", "error_id", "fields"]))  # fmt: skip
def test_envelope_with_any_values_is_read(odd: Any, name: str) -> None:
    error = {"code": "c", "message": "m", name: odd}
    told = error_members(answer({"detail": {"error": error}}))
    assert told is None or told.boundary in (None, "environment", "policy", "scoring", "timeout", "cancelled")
