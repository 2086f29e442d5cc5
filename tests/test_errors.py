"""The tree of errors: names, sentences, what they carry."""

from __future__ import annotations

import inspect
import re

import pytest

from taskapp_kit import errors
from taskapp_kit.errors import (
    DeclarationError,
    Failure,
    FieldProblem,
    InvalidAction,
    KitError,
    Problem,
    RequestError,
    RolloutFailed,
    Saturated,
)


def test_the_tree_at_the_top_is_the_tree_in_the_code() -> None:
    drawn = set(re.findall(r"[├└]── (\w+)", errors.__doc__ or ""))
    classes = [item for _, item in inspect.getmembers(errors, inspect.isclass) if item.__module__ == errors.__name__]
    assert {cls.__name__ for cls in classes if issubclass(cls, KitError) and cls is not KitError} == drawn


def test_every_error_has_a_message_and_a_hint() -> None:
    error = KitError("It broke.", hint="Mend it.")
    assert (error.message, error.hint, str(error)) == ("It broke.", "Mend it.", "It broke. Mend it.")
    assert str(KitError("It broke.")) == "It broke."


def test_a_declaration_error_lists_each_problem_with_place_expected_and_fix() -> None:
    problems = [Problem("a.py:3", "no x", "an x", "add x"), Problem("a.py:9", "no y", "a y", "add y")]
    error = DeclarationError("mine", problems)
    assert str(error).splitlines()[0] == "task app 'mine' has 2 problems:"
    for text in ("a.py:3: no x", "expected: an x", "do: add x", "a.py:9: no y"):
        assert text in str(error)
    assert "has 1 problem:" in str(DeclarationError("mine", problems[:1]))


def test_a_request_error_names_fields() -> None:
    error = RequestError(
        "Bad seed.", fields=(FieldProblem(("body", "env", "seed"), "negative", "range"),), code="bad_seed"
    )
    assert error.fields[0].loc == ("body", "env", "seed")
    assert (error.code, RequestError("x").code) == ("bad_seed", "invalid_request")


def test_saturated_response_has_retry_after() -> None:
    error = Saturated("Full.", retry_after_seconds=3)
    assert error.retry_after_seconds == 3
    assert str(error) == "Full. Try again in 3 s."


@pytest.mark.parametrize("boundary", ["environment", "policy", "scoring", "timeout", "cancelled"])
def test_a_failed_rollout_has_one_boundary(boundary: errors.Boundary) -> None:
    error = RolloutFailed(Failure(boundary, "code", "It broke.", "Mend it."), rollout_id="7")
    assert error.boundary == boundary
    assert (error.rollout_id, str(error)) == ("7", "It broke. Mend it.")


def test_an_invalid_action_is_no_failure() -> None:
    assert not issubclass(InvalidAction, KitError)
    assert str(InvalidAction("not in the word list")) == "not in the word list"
