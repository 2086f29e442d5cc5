"""A finished rollout as the answer: it fits the wire, says where the model stood, and tells nothing private."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from taskapp_kit import TaskApp
from taskapp_kit.records.content import Image
from taskapp_kit.rollout.response import INLINE_IMAGE_BYTES, response_body, wire_observation
from taskapp_kit.wire.rollout import RolloutResponse
from tests.rollouts import app_from, play

SECRET = "sentinel-private"
SOURCE = f"""
app = TaskApp("a")
@app.environment("e", max_steps=3)
class E:
    '''E.'''
    def reset(self, seed: int) -> str:
        self.n = 0
        return "start"
    @action
    def go(self, n: Literal[1, 2]) -> Step:
        '''Go.'''
        self.n += n
        if n == 2: raise InvalidAction("not two")
        return Step({{"n": self.n}}, None if self.n == 1 else 0.5, False, info={{"k": 1, "meta": {{"own": 2}}}}, metrics={{"m": 1}})
    def final_state(self): return {{"db": "{SECRET}"}}
@app.rubric
def r(trajectory): return 0.25
@app.policy
def talks(observation): return "hello"
@app.metric
def m2(trajectory): return {{"x": 2}}
"""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> TaskApp:
    return app_from(tmp_path_factory.mktemp("app"), SOURCE)


def body_of(app: TaskApp, policy: str | None = "constant", **given: Any) -> dict[str, Any]:
    given.setdefault("action", {"go": {"n": 1}})
    body = response_body(play(app, policy, **given))
    RolloutResponse.model_validate(body)
    parsed: dict[str, Any] = orjson.loads(orjson.dumps(body))
    assert RolloutResponse.model_validate(parsed).run_id == "r"
    return parsed


def test_one_wire_step_for_each_step(app: TaskApp) -> None:
    body = body_of(app, seed=5)
    (trajectory,) = body["trajectories"]
    steps = trajectory["steps"]
    assert [step["obs"] for step in steps] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert [step["reward"] for step in steps] == [None, 0.5, 0.5]
    assert [step["done"] for step in steps] == [False, False, True]
    assert [step["truncated"] for step in steps] == [False, False, True]
    assert steps[0]["tool_calls"] == [{"tool": "go", "args": {"n": 1}}]
    assert steps[0]["info"]["initial_observation"] == {"text": "start"}
    assert "initial_observation" not in steps[1]["info"]
    assert steps[0]["info"]["k"] == 1
    assert steps[0]["info"]["metrics"] == {"m": 1.0}
    assert trajectory["length"] == 3
    assert trajectory["final"] == {"observation": {"n": 3}, "reward": 0.5, "done": False}
    assert trajectory["trace"]["initial_observation"] == {"text": "start"}
    assert (trajectory["env_id"], trajectory["policy_id"]) == ("e", "constant")
    metrics = body["metrics"]
    assert (metrics["mean_return"], metrics["episode_returns"]) == (1.0, [1.0])
    assert (metrics["num_steps"], metrics["num_episodes"]) == (3, 1)
    assert metrics["outcome_score"] == 0.25
    assert metrics["events_score"] is None
    assert metrics["details"]["rubric"]["per_criterion"] == {
        "r": {"score": 0.25, "normalised": 0.25, "weight": 1.0, "required": False}
    }
    assert (metrics["details"]["m"], metrics["details"]["x"], metrics["details"]["steps"]) == (3.0, 2.0, 3.0)
    assert (body["status"], body["stop_reason"], body["reward"]) == ("truncated", "max_steps", 0.25)
    assert body["ops_executed"] == 6
    assert body["aborted"] is False
    assert len(body["digest"]) == 64
    assert set(body["timing"]) == {"environment", "policy", "scoring", "framework", "total"}
    assert body["versions"]["kit"]


def test_refusal_is_an_observation_marked_as_refused(app: TaskApp) -> None:
    step = body_of(app, action={"go": {"n": 2}})["trajectories"][0]["steps"][0]
    assert (step["obs"], step["reward"], step["info"]["refused"]) == ({"text": "not two"}, None, "not two")


def test_response_repeats_correlation_id_and_model_address(app: TaskApp) -> None:
    url = "https://user:pw@host/v1/chat/completions?cid=trace_7&x=1"
    body = body_of(app, policy_config={"inference_url": url}, record={"return_trace": True})
    assert body["trace_correlation_id"] == "trace_7"
    assert body["pipeline_metadata"]["trace_correlation_id"] == "trace_7"
    (trajectory,) = body["trajectories"]
    assert trajectory["trace_correlation_id"] == "trace_7"
    bare = "https://host/v1/chat/completions?cid=trace_7&x=1"
    assert trajectory["inference_url"] == body["pipeline_metadata"]["inference_url"] == bare
    assert [step["info"]["meta"]["inference_url"] for step in trajectory["steps"]] == [bare] * 3
    assert trajectory["steps"][0]["info"]["meta"]["own"] == 2
    assert "user:pw" not in json.dumps(body)


def test_ids_of_the_request_come_back(app: TaskApp) -> None:
    body = body_of(app, env_id="my-env", trace_correlation_id="top", group_id="g")
    assert body["trajectories"][0]["env_id"] == "my-env"
    assert (body["trace_correlation_id"], body["group_id"]) == ("top", "g")
    assert body["trajectories"][0]["inference_url"] == ""


def test_the_private_end_state_is_nowhere(app: TaskApp) -> None:
    body = body_of(app, record={"return_trace": True})
    assert SECRET not in json.dumps(body)
    history = body["trajectories"][0]["trace"]["event_history"]
    assert body["trace"] == {**body["trajectories"][0]["trace"], "event_history": []}
    assert [event["kind"] for event in history][:3] == ["started", "observed", "called"]
    assert history[-1]["kind"] == "scored"
    assert sum(event["event_type"] == "environment" for event in history) == 3


def test_unrequested_parts_are_omitted_from_the_response(app: TaskApp) -> None:
    body = body_of(app, record={"trajectories": False})
    assert body["trajectories"][0]["steps"] == []
    assert body["trajectories"][0]["length"] == 3
    assert body["trace"] is None


def test_text_and_tool_calls_of_one_turn(app: TaskApp) -> None:
    called = body_of(app)["trajectories"][0]["steps"]
    spoken = response_body(play(app, "talks"))["trajectories"][0]["steps"]
    assert [step["output"] for step in called + spoken] == [None] * 3 + ["hello"] * 3
    assert [step["tool_calls"] for step in spoken] == [[]] * 3


def test_an_episode_without_a_step(app: TaskApp) -> None:
    body = body_of(app, ops=["env"])
    assert body["trajectories"][0]["final"] == {"observation": {"text": "start"}, "reward": None, "done": False}
    assert (body["metrics"]["num_steps"], body["stop_reason"], body["ops_executed"]) == (0, "ops", 0)


def test_observations_on_the_wire() -> None:
    assert wire_observation("x") == {"text": "x"}
    assert wire_observation(None) == {"text": ""}
    assert wire_observation({"a": 1}) == {"a": 1}
    picture = Image(np.zeros((2, 2, 3), np.uint8))
    assert wire_observation(["a", picture]) == {
        "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": picture.data_url()}}]
    }


def test_pictures_stand_in_the_answer_up_to_two_megabytes_then_by_name(tmp_path: Path) -> None:
    app = app_from(
        tmp_path,
        """
    import numpy
    app = TaskApp("a")
    @app.environment("e", max_steps=4)
    class E:
        '''E.'''
        def reset(self, seed: int) -> str: return "start"
        @action
        def look(self) -> Step:
            '''Look.'''
            return Step([Text("see"), Image(numpy.random.default_rng().integers(0, 256, (500, 500, 3), dtype=numpy.uint8))])
    """,
    )
    rollout = play(app)
    body = response_body(rollout)
    RolloutResponse.model_validate(body)
    urls = [step["obs"]["content"][1]["image_url"]["url"] for step in body["trajectories"][0]["steps"]]
    pictures = [step.observation[1] for step in rollout.trajectory.steps]
    assert [url.startswith("data:image/png;base64,") for url in urls] == [True, True, False, False]
    assert urls[2:] == [f"/blobs/{picture.hash}" for picture in pictures[2:]]
    assert len(orjson.dumps(body)) < INLINE_IMAGE_BYTES * 4 / 3 + 20_000


def test_the_answer_names_the_aggregation_that_was_used(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text('aggregation = "sum"\n[[criteria]]\nid = "a"\n[[criteria]]\nid = "b"\n')
    app = app_from(
        tmp_path,
        """
        app = TaskApp("q")
        app.tasks("q", prompt="{q}", train=[{"q": "?"}])

        @app.rubric
        def a() -> float:
            '''A.'''
            return 1.0

        @app.rubric
        def b() -> float:
            '''B.'''
            return 1.0

        app.load_rubric("r.toml")
        """,
    )
    body = response_body(play(app, "constant", action="x"))
    rubric = body["metrics"]["details"]["rubric"]
    assert (rubric["aggregation"], rubric["score"], body["scorecard"]["aggregation"]) == ("sum", 2.0, "sum")
