"""`ops`, read once."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit import RequestError
from taskapp_kit.rollout.episode.plan import EpisodePlan, Scripted, read_ops
from taskapp_kit.rollout.request import NoPolicy
from tests.rollouts import a_request


@pytest.mark.parametrize(
    ("ops", "program"),
    [
        ([], None),
        (["agent", "env", "agent", "env"], ("agent", "agent")),
        (["policy", "model", "environment", "step"], ("agent", "agent")),
        ([{"type": "agent"}, {"type": "env"}], ("agent",)),
        (["env"], ()),
        ([{"type": "env", "tool": "add", "args": {"n": 1}}], (Scripted("add", {"n": 1}),)),
        ([{"type": "step", "tool": "add"}, "agent"], (Scripted("add", {}), "agent")),
    ],
)
def test_ops_are_read(ops: list[Any], program: Any) -> None:
    assert read_ops(ops) == program


@pytest.mark.parametrize(
    "op",
    [
        "walk",
        "",
        {"type": "walk"},
        {},
        {"tool": "add"},
        {"type": "env", "tool": 3},
        {"type": 3},
        3,
        None,
        {"type": "env", "tool": "add", "args": {"n": math.nan}},
        {"type": "env", "tool": "add", "args": {"n": 2**70}},
    ],
    ids=repr,
)
def test_a_wrong_op_is_named_by_its_place(op: Any) -> None:
    with pytest.raises(RequestError) as caught:
        read_ops(["agent", op])
    assert caught.value.fields[0].loc == ("body", "ops", 1)
    assert caught.value.message.startswith("ops[1] ")


def test_instructions_without_a_program_never_end() -> None:
    plan = EpisodePlan(a_request("noop"), NoPolicy(), None, "s", 0, {}, {}, Path())  # type: ignore[arg-type]
    assert list(itertools.islice(plan.instructions(), 5)) == ["agent"] * 5
    plan.program = ("agent", Scripted("a", {}))
    assert list(plan.instructions()) == ["agent", Scripted("a", {})]
