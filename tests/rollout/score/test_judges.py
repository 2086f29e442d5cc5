"""Judges on the scorecard: a score with its reason, spread and price; or a failure that says why, and never a 0."""

from __future__ import annotations

import json
import logging
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit import DeclarationError, Image, TaskApp
from taskapp_kit.errors import Failure
from taskapp_kit.records.content import Json
from taskapp_kit.records.scorecard import JudgeRecord, Scorecard
from taskapp_kit.rollout.score.judge_calls import combined
from taskapp_kit.rollout.score.judges import check_judges, needed_roles
from taskapp_kit.rollout.score.scoring import ScoringFailed, score
from taskapp_kit.wire.chat.conversation import ChatReply, ModelFailed
from tests.rollout.score.bench import Models, Row, card_of, judged_app, said, verdict, words
from tests.rollout.score.test_verdict import GARBAGE
from tests.rollouts import app_from


def test_a_verdict_is_a_score_with_its_reason_and_price() -> None:
    models = Models([verdict(0.75, "Short and clear.")])
    card = card_of(judged_app(), "Clouds get heavy.", models)
    item = card.criteria[0]
    assert (item.name, item.of, item.score, item.weight) == ("quality", "judge", 0.75, 1.0)
    assert (item.reason, item.cost, item.error, item.spread) == ("Short and clear.", 0.001, None, None)
    assert card.reward == card.outcome_score == 0.75
    assert card.formula == "reward = 1 · outcome_score"
    told = card.to_json()
    assert told["criteria"][0]["spread"] is None
    assert "judging" not in told
    assert Scorecard.from_json(told).criteria == card.criteria


def test_question_is_outside_and_answer_inside_the_material() -> None:
    models = Models([verdict(0.75)])
    card_of(judged_app(scale=(-1, 3)), "Clouds get heavy.", models)
    role, body = models.asked[0]
    assert role == "judge"
    assert "Question:\nWould a child of ten understand this explanation?" in words(body)
    assert ">\nClouds get heavy.\n</material-" in words(body)
    assert "NUMBER lies from -1, the worst, to 3, the best" in words(body)
    assert body["response_format"]["json_schema"]["strict"] is True
    assert "temperature" not in body


def test_without_structured_output_and_with_a_temperature() -> None:
    models = Models([verdict(0.75)])
    card_of(judged_app(form="text", temperature=0), "Clouds.", models)
    assert models.asked[0][1].keys() == {"messages", "temperature"}


@pytest.mark.parametrize("name", ["prose", "None", "content without text", "one megabyte"])
def test_garbage_fails_scoring_and_is_never_a_zero(name: str) -> None:
    """Which contents are no verdict: test_verdict.py."""
    models = Models([{"role": "assistant", "content": GARBAGE[name]}])
    with pytest.raises(ScoringFailed) as caught:
        card_of(judged_app(weight=0.01), "Clouds.", models)
    failure = caught.value.failure
    assert (failure.boundary, failure.code) == ("scoring", "judge_unreadable")
    assert len(models.asked) == 3
    calls = caught.value.judging.calls
    assert [(call.ask, call.verdict, call.problem is None) for call in calls] == [(n, None, False) for n in (1, 2, 3)]
    assert all(len(call.text) < 4_100 for call in calls)
    json.dumps(caught.value.judging.to_json(), allow_nan=False)


def test_with_weight_0_it_is_an_error_and_no_score(caplog: pytest.LogCaptureFixture) -> None:
    app = judged_app(weight=0)
    app.rubric(name="fine")(lambda answer_text: 0.25)
    with caplog.at_level(logging.WARNING):
        card = card_of(app, "Clouds.", Models(["no verdict"]))
    assert card.reward == 0.25
    item = card.criteria[1]
    assert (item.score, item.reason) == (None, None)
    assert item.error
    assert item.cost == pytest.approx(0.003)
    assert len(card.judging.calls) == 3
    assert "quality" in caplog.text


def test_retry_describes_the_problem_without_the_rejected_answer() -> None:
    models = Models(["I say: sentinel!", verdict(7), verdict(0.5)])
    card = card_of(judged_app(), "Clouds.", models)
    assert card.reward == 0.5
    assert "could not be used" not in models.text(0)
    assert "An earlier answer could not be used: it was not JSON alone." in models.text(1)
    assert "An earlier answer could not be used: its score lay outside the scale." in models.text(2)
    assert "sentinel" not in models.text(1)
    assert card.criteria[0].cost == pytest.approx(0.003)
    assert [(call.ask, call.verdict is None) for call in card.judging.calls] == [(1, True), (2, True), (3, False)]


def test_several_samples_are_combined_and_their_spread_is_kept() -> None:
    scores = [0.2, 0.9, 0.1, 0.2, 0.2]
    for how, expected in (("mean", 0.32), ("median", 0.2), ("majority", 0.2)):
        models = Models([verdict(score, f"said {score}") for score in scores])
        item = card_of(judged_app(samples=5, combine=how), "Clouds.", models).criteria[0]
        assert item.score == pytest.approx(expected)
        assert item.spread == pytest.approx(0.8)
        assert item.reason == "said 0.2"
        assert item.cost == pytest.approx(0.005)


def test_missing_sample_is_not_replaced_by_others() -> None:
    models = Models([verdict(1), "no", "no", "no", verdict(1)])
    with pytest.raises(ScoringFailed):
        card_of(judged_app(samples=3), "Clouds.", models)


def test_several_models() -> None:
    def answer(body: dict[str, Json]) -> str:
        return verdict(1 if models.asked[-1][0] == "kind" else 0)

    models = Models(answer, roles=("strict", "kind"))
    card = card_of(judged_app(model=["strict", "kind"], samples=2), "Clouds.", models)
    assert (card.reward, card.criteria[0].spread) == (0.5, 1.0)
    assert [(c.role, c.sample, c.model) for c in card.judging.calls] == [
        ("strict", 0, "strict-1"), ("strict", 1, "strict-1"), ("kind", 2, "kind-1"), ("kind", 3, "kind-1"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("scores", "expected"), [([1, 1, 0], 1), ([0, 1], 0), ([0.1, 0.5, 0.9], 0.5), ([0, 0, 1, 1, 0.9], 1), ([0.5], 0.5)]
)
def test_the_majority_of_a_tie_is_nearest_to_the_median(scores: list[float], expected: float) -> None:
    assert combined(scores, "majority") == expected


def test_an_unknown_price_is_no_price() -> None:
    assert card_of(judged_app(), "Clouds.", Models([verdict(1)], cost=None)).criteria[0].cost is None
    mixed = [ChatReply({"content": verdict(1)}, cost=cost) for cost in (0.5, None, 0.5)]
    assert card_of(judged_app(samples=3), "Clouds.", Models(mixed)).criteria[0].cost is None


def test_not_configured() -> None:
    for models in (None, Models([verdict(1)], roles=())):
        card = card_of(judged_app(weight=0), "Clouds.", models)
        item = card.criteria[0]
        assert (item.score, item.reason, item.error, item.cost) == (None, "not_configured", None, None)
        assert card.reward == 0.0, "the return: nothing that weighs something scores the outcome"
        assert not card.judging
        with pytest.raises(ScoringFailed) as caught:
            card_of(judged_app(), "Clouds.", models)
        assert caught.value.failure.code == "judge_not_configured"
        assert "TASKAPP_JUDGE_URL" in caught.value.failure.hint


def test_needed_roles_of_an_app() -> None:
    app = judged_app(weight=0, model=("judge", "strict"))

    @app.judge(group=True)
    def best(trajectories: Any) -> Any:
        """Which is best?"""

    needs = needed_roles(app.freeze())
    assert [(need.role, need.judges, need.must, need.judge) for need in needs] == [
        ("judge", ("quality", "best"), True, "best"),
        ("strict", ("quality",), False, "quality"),
    ]
    assert needs[0].place.startswith("test_judges.py:")
    assert [need.environments for need in needs] == [(), ()]


def test_unconfigured_environment_role_is_a_warning() -> None:
    app = judged_app(weight=0)
    for name, roles in (("talk", ("member", "judge")), ("listen", "member")):
        app.tasks(name, prompt="{q}", train=[{"q": "?"}], models=roles)
    spec = app.freeze()
    assert [(need.role, need.judges, need.environments, need.must) for need in needed_roles(spec)] == [
        ("judge", ("quality",), ("talk",), False),
        ("member", (), ("talk", "listen"), False),
    ]
    assert [len(check_judges(spec, lambda role, known=known: role in known)) for known in ((), ("judge",))] == [3, 1]


def test_unreachable_judge_model_fails_scoring() -> None:
    broken = ModelFailed(Failure("policy", "endpoint_refused", "the model at host:1 answered 401", "Check the key."))
    with pytest.raises(ScoringFailed) as caught:
        card_of(judged_app(), "Clouds.", Models([broken]))
    failure = caught.value.failure
    assert (failure.boundary, failure.code, failure.hint) == ("scoring", "judge_failed", "Check the key.")
    assert caught.value.judging.calls[0].problem == "the model at host:1 answered 401"
    item = card_of(judged_app(weight=0), "Clouds.", Models([broken])).criteria[0]
    assert (item.score, item.error) == (None, failure.message)


@pytest.mark.parametrize("boundary", ["timeout", "cancelled"])
@pytest.mark.parametrize("weight", [0, 1])
def test_deadline_during_a_judge_call_fails_for_any_weight(boundary: Any, weight: float) -> None:
    late = ModelFailed(Failure(boundary, "deadline", "the time was up"))
    with pytest.raises(ScoringFailed) as caught:
        card_of(judged_app(weight=weight), "Clouds.", Models([late]))
    assert caught.value.failure.boundary == boundary


def test_other_exceptions_of_a_model_port_propagate() -> None:
    with pytest.raises(KeyError):
        card_of(judged_app(weight=0), "Clouds.", Models([KeyError("a bug of ours")]))


BROKEN: dict[str, Any] = {
    "raises": lambda answer_text: 1 / 0,
    "exits": lambda answer_text: sys.exit(1),
    "number": lambda answer_text: 3,
    "not JSON": lambda answer_text: {"x": object()},
    "NaN": lambda answer_text: {"x": math.nan},
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_judge_function_that_breaks(name: str) -> None:
    models = Models([verdict(1)])
    with pytest.raises(ScoringFailed, match=r"judge 'quality' \(test_judges\.py:\d+\)") as caught:
        card_of(judged_app(BROKEN[name]), "Clouds.", models)
    assert caught.value.failure.code == "criterion_failed"
    item = card_of(judged_app(BROKEN[name], weight=0), "Clouds.", models).criteria[0]
    assert item.score is None and item.error
    assert models.asked == []


def test_none_means_not_applicable_without_a_model_call() -> None:
    models = Models([verdict(1)])
    item = card_of(judged_app(lambda answer_text: None), "Clouds.", models).criteria[0]
    assert (item.score, item.reason, item.cost, models.asked) == (None, "not_applicable", None, [])


def test_an_async_judge_and_a_picture() -> None:
    png = bytes.fromhex("89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de")

    async def read(answer_text: str) -> Any:
        return ["Seen:", Image(png), answer_text]

    models = Models([verdict(1)])
    card = card_of(judged_app(read), "Clouds.", models)
    content = models.asked[0][1]["messages"][1]["content"]
    assert [part["type"] for part in content] == ["text", "image_url", "text"]
    assert content[0]["text"].endswith("\nSeen:")
    assert content[2]["text"].startswith("Clouds.\n</material-")
    (kept,) = card.judging.prompts.values()
    assert kept[1]["content"][1] == {"image": Image(png).hash}


def test_choices() -> None:
    models = Models([json.dumps({"reason": "x", "choice": "ok"})])
    card = card_of(judged_app(choices=["bad", "ok", "good"], scale=(0, 4)), "Clouds.", models)
    assert (card.criteria[0].score, card.reward) == (2.0, 0.5)
    assert "WORD is one of 'bad', 'ok', 'good', from worst to best" in models.text()


def test_judges_run_after_code_criteria() -> None:
    app = judged_app()
    app.rubric(name="broken")(lambda answer_text: 1 / 0)
    models = Models([verdict(1)])
    with pytest.raises(ScoringFailed, match="criterion 'broken'"):
        card_of(app, "Clouds.", models)
    assert models.asked == []


def test_every_call_is_kept_and_its_prompt_once() -> None:
    models = Models(["no", verdict(0.5, "r"), verdict(0.75, "r")])
    record = card_of(judged_app(samples=2), "Wind.", models).judging
    assert len(record.prompts) == 1
    (digest,) = record.prompts
    kept = json.dumps(record.prompts[digest])
    assert "<material-00000000000000000000000000000000>" in kept
    assert "Wind." in kept
    assert [call.prompt for call in record.calls] == [digest] * 3
    assert [(c.judges, c.text, c.usage["prompt_tokens"], c.seconds, c.cost, c.attempts) for c in record.calls] == [
        (["quality"], text, 7, 0.5, 0.001, 1) for text in ("no", verdict(0.5, "r"), verdict(0.75, "r"))
    ]
    assert [c.verdict for c in record.calls] == [None, {"quality": {"reason": "r", "score": 0.5}},
                                                 {"quality": {"reason": "r", "score": 0.75}}]  # fmt: skip
    assert JudgeRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_private_fields_are_replaced_in_what_is_kept_and_shown() -> None:
    app = judged_app(lambda answer_text, task: {"reference": task.answer, "answer": answer_text})
    models = Models([verdict(0.5, "It does not say Cumulus Nimbus.\x1b\ud800")])
    card = card_of(app, "Fog.", models, task=Row(question="Why?", answer="cumulus nimbus"))
    assert "cumulus nimbus" in models.text(), "the judge reads it"
    kept = json.dumps(card.judging.to_json())
    assert "nimbus" not in kept.lower()
    assert kept.count("[private: answer]") == 3
    assert card.criteria[0].reason == "It does not say [private: answer].\ufffd\ufffd"
    assert "nimbus" not in json.dumps(card.to_json()).lower()


def test_a_long_reason_is_cut() -> None:
    item = card_of(judged_app(), "Fog.", Models([verdict(0.5, "x" * 10_000)])).criteria[0]
    assert len(str(item.reason)) < 2_100


RUBRIC = """
[[criteria]]
id = "style"
judge = true
description = "Is it well written?"
weight = 2
choices = ["bad", "good"]
call = "text"
[[criteria]]
id = "true"
description = "Is it true?"
weight = 1
scale = [0, 10]
call = "text"
required = true
[[criteria]]
id = "kind"
judge = true
description = "Is it kind?"
weight = 0
[judge]
model = "strict"
samples = 2
combine = "median"
"""
APP = """
app = TaskApp("judged")
app.tasks("judged", prompt="{q}", train=[{"q": "Why?"}])
"""


def from_file(folder: Path, text: str = RUBRIC, *, more: str = "") -> TaskApp:
    (folder / "r.toml").write_text(text)
    return app_from(folder, APP + more + 'app.load_rubric("r.toml")\n')


def test_criteria_of_a_file_share_a_call(tmp_path: Path) -> None:
    def answer(body: dict[str, Json]) -> str:
        if "response_format" in body and "style" in body["response_format"]["json_schema"]["schema"]["properties"]:
            return json.dumps({"style": {"reason": "s", "choice": "good"}, "true": {"reason": "t", "score": 5}})
        return verdict(0.5)

    models = Models(answer, roles=("strict",))
    card = score(from_file(tmp_path).freeze(), said("Clouds."), task={"q": "Why?"}, models=models)
    assert {item.name: (item.score, item.weight, item.required) for item in card.criteria} == {
        "style": (1.0, 2.0, False), "true": (5.0, 1.0, True), "kind": (0.5, 0.0, False),
    }  # fmt: skip
    assert [item.reason for item in card.criteria] == ["s", "t", "Because."]
    assert [call.judges for call in card.judging.calls] == [["style", "true"]] * 2 + [["kind"]] * 2
    assert card.criteria[0].cost == card.criteria[1].cost == pytest.approx(0.001), "2 calls, shared by two"
    assert "[start] Why does it rain?" in models.text(0), "they read the transcript"
    assert 'Question "style":\nIs it well written?' in models.text(0)
    assert card.outcome_score == pytest.approx((2 * 1 + 1 * 0.5) / 3), "5 is the middle of 0 to 10"


def test_a_shared_call_fails_as_a_whole(tmp_path: Path) -> None:
    half = json.dumps({"style": {"reason": "s", "choice": "good"}})
    with pytest.raises(ScoringFailed, match="'style', 'true'"):
        score(from_file(tmp_path).freeze(), said("x"), task={"q": ""}, models=Models([half], roles=("strict",)))


def test_a_required_judge_of_a_file_that_scores_0_makes_the_outcome_0(tmp_path: Path) -> None:
    def answer(body: dict[str, Json]) -> str:
        both = {"style": {"reason": "s", "choice": "good"}, "true": {"reason": "t", "score": 0}}
        return json.dumps(both) if "style" in words(body) else verdict(1)

    spec = from_file(tmp_path).freeze()
    assert score(spec, said("x"), task={"q": ""}, models=Models(answer, roles=("strict",))).outcome_score == 0.0


def test_a_file_gives_a_declared_judge_its_weight(tmp_path: Path) -> None:
    more = """
@app.judge(samples=3)
def style(answer_text):
    '''Is it good?'''
    return answer_text
"""
    spec = from_file(tmp_path, RUBRIC.replace('call = "text"\n', ""), more=more).freeze()
    style = next(judge for judge in spec.judges if judge.name == "style")
    assert (style.weight, style.description, style.choices) == (2.0, "Is it well written?", ("bad", "good"))
    assert (style.samples, style.models, style.function is None) == (3, ("judge",), False)
    assert [judge.name for judge in spec.judges] == ["style", "true", "kind"]


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("judge = true\n", "judge = 1\n", "judge 1"),
        ("judge = true\n", "judge = false\n", "@app.rubric"),
        ('choices = ["bad", "good"]', 'choices = ["bad"]', "choices ['bad']"),
        ('choices = ["bad", "good"]', 'choices = ["bad", "bad"]', "choices"),
        ("scale = [0, 10]", "scale = [10, 0]", "scale [10, 0]"),
        ("scale = [0, 10]", 'scale = "0-10"', "scale '0-10'"),
        ('call = "text"', "call = 3", "call 3"),
        ('model = "strict"', 'model = "Strict Judge"', "model 'Strict Judge'"),
        ('model = "strict"', 'model = "policy"', "model 'policy'"),
        ("samples = 2", "samples = 0", "samples 0"),
        ('combine = "median"', 'combine = "max"', "combine 'max'"),
        ('combine = "median"', 'combin = "max"', "'combin'"),
        ("[judge]\n", "[[judge]]\n", "table"),
    ],
)
def test_what_is_wrong_in_a_file_is_told(tmp_path: Path, old: str, new: str, word: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        from_file(tmp_path, RUBRIC.replace(old, new, 1)).freeze()
    assert word in str(caught.value)


@pytest.mark.parametrize(
    ("declared", "word"),
    [
        ("@app.rubric\ndef style(answer_text): return 1.0\n", "@app.rubric"),
        ("@app.judge\ndef style(answer_text):\n  '''?'''\n  return 'x'\n", "call"),
    ],
)
def test_what_does_not_fit_what_is_declared_is_told(tmp_path: Path, declared: str, word: str) -> None:
    with pytest.raises(DeclarationError, match=word):
        from_file(tmp_path, more=declared).freeze()


@pytest.mark.parametrize(
    "options",
    [
        {"samples": 0},
        {"model": ""},
        {"model": ["a", "a"]},
        {"model": "policy"},
        {"combine": "best"},
        {"kind": "reward"},
        {"form": "json"},
        {"choices": "ab"},
        {"temperature": -1},
    ],
    ids=repr,
)
def test_an_option_with_a_wrong_value_is_told(options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(DeclarationError) as caught:
        judged_app(**options).freeze()
    assert f"{name}={value!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "word"),
    [({"group": True}, "'trajectories'"), ({"kind": "reward_model", "choices": ["a", "b"]}, "choices=")],
)
def test_options_that_do_not_go_together_are_told(options: dict[str, Any], word: str) -> None:
    with pytest.raises(DeclarationError, match=word):
        judged_app(**options).freeze()


def test_the_declarations_of_judges_are_in_the_spec_hash() -> None:
    hashes = {
        judged_app(**options).freeze().hash
        for options in ({}, {"samples": 2}, {"model": "strict"}, {"combine": "median"}, {"choices": ["a", "b"]})
    }
    assert len(hashes) == 5
