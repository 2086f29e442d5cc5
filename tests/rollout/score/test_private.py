"""Private values, replaced wherever they stand in a text."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.rollout.score.private import masker


class Part(BaseModel):
    shown: str = "public"
    hidden: Private[str] = "inner-secret"


class Deep(BaseModel):
    question: str = "What?"
    answer: Private[Any] = None
    parts: list[Part] = []
    whole: Private[dict[str, Any]] = {}


def spec_of(row: type) -> AppSpec:
    app = TaskApp("a")
    app.tasks("t", row=row, prompt=lambda task: "?", train=[row()])
    return app.freeze()


SPEC = spec_of(Deep)


def mask(text: str, **values: Any) -> str:
    return masker(SPEC, "t", Deep(**values))(text)


@pytest.mark.parametrize(
    ("answer", "text", "expected"),
    [
        (
            "Paris",
            "Is it Paris, PARIS or Parisian?",
            "Is it [private: answer], [private: answer] or [private: answer]ian?",
        ),
        (7, "7 of 17, 7.5, 7. And x7", "[private: answer] of 17, 7.5, [private: answer]. And x7"),
        (0.5, "0.5 and 10.5", "[private: answer] and 10.5"),
        ("a", "a cat", "[private: answer] cat"),
        ("x\ny", 'said "x\\ny" and x y', 'said "[private: answer]" and [private: answer]'),
        ("first long line\nsecond long line", "second long line!", "[private: answer]!"),
        ("é", json.dumps("é"), '"[private: answer]"'),
        (["one-of-them", "two-of-them"], "two-of-them", "[private: answer]"),
        (True, "true and True", "true and True"),
        (None, "None", "None"),
        ("", "nothing", "nothing"),
        ("  ", "a  b", "a  b"),
        (".*+", "x .*+ y", "x [private: answer] y"),
    ],
)
def test_a_value_in_each_way_of_writing_it(answer: Any, text: str, expected: str) -> None:
    assert mask(text, answer=answer) == expected


def test_values_inside_models_and_objects() -> None:
    told = mask("public inner-secret deep-secret 12345", parts=[Part()], whole={"a": {"b": ["deep-secret", 12345]}})
    assert told == "public [private: hidden] [private: whole] [private: whole]"


def test_thousands_of_values_take_no_time() -> None:
    rows = {f"key{n}": f"hidden value number {n} of many" for n in range(5_000)}
    hide = masker(SPEC, "t", Deep(whole=rows))
    text = "nothing of it " * 4_000 + "Hidden value number 4321 of many"
    began = time.process_time()
    assert hide(text).endswith("nothing of it [private: whole]")
    assert time.process_time() - began < 2.0


def test_without_rows_or_private_fields_nothing_changes() -> None:
    assert masker(SPEC, "t", None)("x") == "x"
    assert masker(SPEC, "other", Deep())("x") == "x"

    class Open(BaseModel):
        question: str = "What?"

    assert masker(spec_of(Open), "t", Open())("What?") == "What?"


@given(st.from_regex(r"[a-z]{6,20}( [a-z]{1,9}){0,3}", fullmatch=True), st.text(), st.text())
def test_a_text_does_not_survive_wherever_it_stands(secret: str, before: str, after: str) -> None:
    told = mask(before + secret.upper() + after, answer=secret)
    assert secret not in told.replace("[private: answer]", "").lower()
    assert "[private: answer]" in told
