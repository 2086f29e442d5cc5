"""A judge with a known fault is found out: it prefers length, or a place, or changes its mind."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from taskapp_kit import TaskApp
from taskapp_kit.records.content import Json
from taskapp_kit.rollout.score.calibration import Case, CaseResult, ask_about, report
from tests.rollout.score.bench import Models, Row, judged_app, said, verdict
from tests.rollout.score.test_groups import group_app, shown

ANSWERS = {"no": 0.0, "nearly": 0.5, "yes": 1.0, "yes, and more": 1.0}
ROW = Row(question="?", answer="")


def asked(app: TaskApp, models: Models, repeats: int = 1) -> list[CaseResult]:
    spec = app.freeze()
    judge = spec.judges[0]
    cases = [Case(judge, (said(text),), (label,), ROW, {}, f"l:{n}") for n, (text, label) in enumerate(ANSWERS.items())]
    return [ask_about(spec, case, models, repeats=repeats) for case in cases]


def answer_in(body: dict[str, Json]) -> str:
    text: str = body["messages"][1]["content"]
    return text.split(">\n", 1)[1].split("\n</material", maxsplit=1)[0]


def test_a_judge_that_agrees() -> None:
    models = Models(lambda body: verdict(ANSWERS[answer_in(body)]))
    told = report(asked(judged_app(weight=0), models, repeats=3))
    assert (told["judge"], told["labels"], told["failed"]) == ("quality", 4, [])
    assert (told["accuracy"], told["kappa"], told["spearman"], told["mean_difference"]) == (1.0, 1.0, 1.0, 0.0)
    assert (told["repeat_spread"], told["position_bias"], told["pairs"], told["length_bias"]) == (0.0, None, None, None)
    assert (told["calls"], told["unusable_answers"], told["tokens"]) == (12, 0, 120)
    assert told["cost"] == pytest.approx(0.012)
    assert told["seconds"] == 6.0
    assert told["threshold"] == 0.5
    json.dumps(told, allow_nan=False)


def test_a_judge_that_prefers_length() -> None:
    spec = judged_app().freeze()
    models = Models(lambda body: verdict(len(answer_in(body)) / 10))
    cases = [Case(spec.judges[0], (said("x" * n),), (0.5,), ROW) for n in (1, 4, 7, 10)]
    told = report([ask_about(spec, case, models) for case in cases], threshold=0.9)
    assert told["length_bias"] == 1.0
    assert told["accuracy"] == 0.75, "one was called good, and none is"


def test_a_judge_that_changes_its_mind() -> None:
    turn = itertools.count()
    told = report(asked(judged_app(), Models(lambda _: verdict(next(turn) % 2)), repeats=2))
    assert told["repeat_spread"] == 1.0
    assert told["spearman"] is None, "it always comes to one half"


def test_two_models_that_disagree_are_no_spread_between_repeats() -> None:
    models = Models(lambda _: verdict(float(models.asked[-1][0] == "a")), roles=("a", "b"))
    told = report(asked(judged_app(model=["a", "b"]), models, repeats=2))
    assert told["repeat_spread"] == 0.0


def test_choices_are_the_classes() -> None:
    app = judged_app(choices=["bad", "ok", "good"])
    models = Models(lambda body: json.dumps({"reason": "x", "choice": {"no": "bad", "nearly": "good"}.get(answer_in(body), "good")}))  # fmt: skip
    told = report(asked(app, models))
    assert (told["accuracy"], told["threshold"]) == (0.75, None)


def test_what_failed_is_listed_and_in_no_number() -> None:
    models = Models(lambda body: "no idea" if answer_in(body) == "no" else verdict(1))
    told = report(asked(judged_app(), models))
    assert told["labels"] == 3
    assert [item["place"] for item in told["failed"]] == ["l:0"]
    assert "gave no verdict" in told["failed"][0]["error"]
    assert (told["calls"], told["unusable_answers"]) == (6, 3)
    none = report(asked(judged_app(lambda answer_text: None), models))
    assert (none["labels"], none["accuracy"], none["cost"]) == (0, None, None)
    assert none["failed"][0]["error"] == "the judge does not apply to this case"


def group_case(app: TaskApp, texts: list[str], labels: tuple[float, ...]) -> tuple[Any, Case]:
    spec = app.freeze()
    return spec, Case(spec.judges[0], tuple(said(text) for text in texts), labels, ROW, {}, "l:1")


def test_a_group_judge_that_prefers_the_first_place() -> None:
    def first(body: dict[str, Json]) -> str:
        return json.dumps({label: {"reason": "x", "score": float(label == "answer_1")} for label in shown(body)})

    spec, case = group_case(group_app(), ["a", "b", "c"], (0.0, 0.5, 1.0))
    result = ask_about(spec, case, Models(first), repeats=2)
    told = report([result])
    assert told["position_bias"] == 1.0
    assert told["repeat_spread"] == 1.0
    assert told["pairs"] == 0.0
    assert told["calls"] == 6, "each answer stands in each place, twice"


def test_a_group_judge_that_is_fair() -> None:
    worth = {"a": 0.0, "b": 0.5, "c": 1.0}

    def fair(body: dict[str, Json]) -> str:
        return json.dumps({label: {"reason": "x", "score": worth[text]} for label, text in shown(body).items()})

    spec, case = group_case(group_app(weight=0), ["a", "c", "b"], (0.0, 1.0, 0.5))
    told = report([ask_about(spec, case, Models(fair))])
    assert (told["position_bias"], told["pairs"], told["spearman"], told["repeat_spread"]) == (0.0, 1.0, 1.0, 0.0)
