"""`taskapp judge calibrate`, against a real model server."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from taskapp_kit.cli.author.judge import command
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.records.events import encode
from taskapp_kit.records.protocols import Annotation, SystemClock
from taskapp_kit.rollout.play_and_score import RolloutPlayer
from taskapp_kit.rollout.request import RequestPlanner
from taskapp_kit.rollout.response import stored_rollout
from taskapp_kit.store import open_store
from taskapp_kit.testing import ChatRequest, MockModel, Reply
from tests.rollouts import a_request, a_service

pytestmark = pytest.mark.server

APP = '''
from taskapp_kit import TaskApp
app = TaskApp("explain")
app.tasks("explain", prompt="{q}", train=[{"q": "Why does it rain?"}, {"q": "Why is it dark?"}])
@app.judge
def clear(answer_text):
    """Is it clear?"""
    return answer_text
@app.judge(group=True, model="strict")
def best(trajectories):
    """Which is best?"""
    return [trajectory.answer_text for trajectory in trajectories]
'''


def by_length(request: ChatRequest) -> Reply:
    """Longer is better; a text with `silent` gets no verdict."""
    schema = request.body["response_format"]["json_schema"]["schema"]["properties"]
    parts = [found[1] for found in re.findall(r"<material-(\w+)>\n(.*?)\n</material-\1>", request.text, re.DOTALL)]
    if "silent" in request.text:
        return Reply("I would rather not say.")
    if "score" in schema:
        return Reply(json.dumps({"reason": "x", "score": min(1.0, len(parts[0]) / 10)}))
    texts = dict(part.removeprefix("[").split("]\n", 1) for part in parts)
    return Reply(json.dumps({name: {"reason": "x", "score": min(1.0, len(text) / 10)} for name, text in texts.items()}))


@pytest.fixture
def model() -> Iterator[MockModel]:
    with MockModel(by_length) as running:
        yield running


def calibrate(folder: Path, model: MockModel | None, lines: list[Any], *options: str) -> Result:
    (folder / "app.py").write_text(APP)
    (folder / "labels.jsonl").write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    )
    env = dict.fromkeys(("TASKAPP_JUDGE_URL", "TASKAPP_STRICT_URL")) | (
        {} if model is None else {f"TASKAPP_{role}_{part}": value for role in ("JUDGE", "STRICT")
                                  for part, value in (("URL", model.url), ("MODEL", "m"))}
    )  # fmt: skip
    args = ["calibrate", str(folder / "app.py"), "--labels", str(folder / "labels.jsonl"), *options]
    return CliRunner().invoke(command, args, env={**env, "COLUMNS": "100"})


LINES: list[Any] = [
    {"judge": "clear", "seed": 0, "answer": "1234567890", "label": 1},
    {"judge": "clear", "seed": 1, "answer": "12345", "label": 0.5},
    "",
    {"judge": "clear", "seed": 1, "answer": "1", "label": 0.1},
    {"judge": "best", "seed": 0, "answers": ["1", "12345"], "labels": [0, 1]},
]


def test_a_table_and_json(tmp_path: Path, model: MockModel) -> None:
    shown = calibrate(tmp_path, model, LINES, "--repeats", "2")
    assert shown.exit_code == 0, shown.output + str(shown.exception)
    assert "Cohen's κ" in shown.output
    assert "clear: accuracy and κ count a score of 0.5 or more as good." in shown.output
    told = json.loads(calibrate(tmp_path, model, LINES, "--json").stdout)
    clear, best = told["judges"]
    assert (clear["labels"], clear["accuracy"], clear["spearman"], clear["mean_difference"]) == (3, 1.0, 1.0, 0.0)
    assert (best["labels"], best["pairs"], best["position_bias"]) == (2, 1.0, 0.0)
    assert [case["place"] for case in told["cases"]] == [f"labels.jsonl:{n}" for n in (1, 2, 4, 5)]
    assert told["cases"][3]["scores"] == [0.1, 0.5]


def test_no_verdict_is_listed_and_the_exit_status_says_so(tmp_path: Path, model: MockModel) -> None:
    shown = calibrate(tmp_path, model, [*LINES, {"judge": "clear", "answer": "silent", "label": 0}])
    assert shown.exit_code == 1
    assert "clear, labels.jsonl:6: judge 'clear'" in shown.stderr


def test_stored_rollouts(tmp_path: Path, model: MockModel) -> None:
    (tmp_path / "app.py").write_text(APP)

    async def keep() -> None:
        app = find_app(str(tmp_path / "app.py"))
        spec = app.freeze()
        plan = RequestPlanner(spec, tmp_path).plan(a_request("constant", action="12345", seed=1))
        from dataclasses import replace

        played = RolloutPlayer(replace(spec, judges=()), plan, SystemClock()).play()
        store = open_store(f"sqlite:///{tmp_path}/r.db")
        played.rollout_id, played.created_at, played.timing = "a" * 32, 1.0, {"total": 0.1}
        await store.save(stored_rollout(spec, plan, played, encode(played.events), key_label=None))
        await store.close()

    asyncio.run(keep())
    lines = [{"judge": "clear", "rollout_id": "a" * 32, "label": 0.5}]
    shown = calibrate(tmp_path, model, lines, "--json", "--store", f"sqlite:///{tmp_path}/r.db")
    assert shown.exit_code == 0, shown.output + str(shown.exception)
    assert json.loads(shown.stdout)["cases"][0]["scores"] == [0.5]
    assert "no store is set" in str(calibrate(tmp_path, model, lines, "--store", "none").exception)
    missing = [{"judge": "clear", "rollout_id": "b" * 32, "label": 0.5}]
    told = calibrate(tmp_path, model, missing, "--store", f"sqlite:///{tmp_path}/r.db")
    assert "is not in the store" in str(told.exception)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "labels.jsonl:1 is not JSON"),
        ("[1]", "is not a JSON object"),
        ({"judge": "cler", "answer": "x", "label": 1}, "has judge 'cler'; the judges are clear, best"),
        ({"answer": "x", "label": 1}, "names no judge, but the app has several"),
        ({"judge": "clear", "answer": "x", "label": 2}, "has label '2'; expected a number from 0 to 1"),
        ({"judge": "clear", "answer": "x", "label": True}, "has label 'True'"),
        ({"judge": "clear", "answer": "x"}, "must have `label`, and either `answer` or `rollout_id`"),
        ({"judge": "clear", "label": 1}, "must have `label`, and either `answer` or `rollout_id`"),
        ({"judge": "best", "answer": "x", "label": 1}, "must have `labels`, and either `answers` or `rollout_ids`"),
        ({"judge": "best", "answers": ["x"], "labels": [1]}, "at least two answers"),
        ({"judge": "best", "answers": ["x", "y"], "labels": [1]}, "one label for each answer or rollout_id"),
        ({"judge": "clear", "answer": "x", "label": 1, "score": 1}, "has the unknown field 'score'"),
        ({"judge": "clear", "answer": "x", "label": 1, "seed": 99}, "Seed 99"),
        ("", "has no labels"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, model: MockModel, line: Any, told: str) -> None:
    shown = calibrate(tmp_path, model, [line])
    assert told in str(shown.exception)
    assert model.requests == []


def test_without_a_model_it_says_what_to_set(tmp_path: Path) -> None:
    assert "Set TASKAPP_JUDGE_URL." in str(calibrate(tmp_path, None, LINES[:1]).exception)


def test_scores_that_people_gave_in_the_viewer_are_labels(tmp_path: Path, model: MockModel) -> None:
    (tmp_path / "app.py").write_text(APP)
    app, address = find_app(str(tmp_path / "app.py")), str(tmp_path / "rollouts.db")

    async def annotated() -> None:
        store = open_store(address)
        service = a_service(app, store=store, skip_judges=True)
        try:
            played = await service.rollout(a_request("constant", action="1234567890"))
            given = (("clear", 0.5), ("no judge", 1.0))
            await store.annotate([Annotation(played.rollout_id, name, "alice", score) for name, score in given])  # type: ignore[attr-defined]
        finally:
            await service.close()

    asyncio.run(annotated())
    env = {f"TASKAPP_{role}_{part}": value for role in ("JUDGE", "STRICT")
           for part, value in (("URL", model.url), ("MODEL", "m"))}  # fmt: skip
    for place in (address, str(tmp_path)):
        args = ["calibrate", str(tmp_path / "app.py"), "--annotations", place, "--json"]
        ran = CliRunner().invoke(command, args, env=env)
        assert ran.exit_code == 0, ran.output
        (case,) = json.loads(ran.stdout)["cases"]
        assert (case["judge"], case["labels"], case["scores"]) == ("clear", [0.5], [1.0])
    none = CliRunner().invoke(command, ["calibrate", str(tmp_path / "app.py")])
    assert none.exit_code == 2
