"""What authors read of an episode, and when two episodes are the same."""

from __future__ import annotations

import dataclasses
import struct
import zlib
from typing import Any

import numpy as np

from taskapp_kit.records.content import Image
from taskapp_kit.records.trajectory import Decision, PlayedStep, Step, ToolCall, Trajectory, Turn

PICTURE = Image(np.zeros((2, 2, 3), np.uint8))


def sample(**changes: Any) -> Trajectory:
    steps = [
        PlayedStep(0, "go", {"n": 1}, "one", 0.5, info={"a": 1}),
        PlayedStep(1, "go", {"n": 2}, None, None),
        PlayedStep(2, "say", {"text": "hé"}, {"k": [1]}, -0.25, terminated=True),
    ]
    turns = [
        Turn(
            0,
            Decision([ToolCall("go", {"n": 1}, "id1"), ToolCall("go", {"n": 2}, "id2")], usage={"tokens": 3}),
            steps[:2],
        ),
        Turn(1, Decision(output="hé"), steps[2:]),
    ]
    values: dict[str, Any] = {
        "initial": "start",
        "turns": turns,
        "steps": steps,
        "status": "terminated",
        "stop_reason": "environment",
    }
    return Trajectory("e", "1", "train", 7, {"x": 1}, **{**values, **changes})


def test_what_an_author_reads() -> None:
    trajectory = sample()
    assert trajectory.length == 3
    assert trajectory.total_reward == 0.25
    assert trajectory.answer_text == "hé"
    assert [step.index for step in trajectory.actions("go")] == [0, 1]
    assert len(trajectory.actions()) == 3
    assert trajectory.actions("nothing") == []
    assert sample(turns=[]).answer_text == ""


def test_an_undefined_reward_adds_nothing() -> None:
    assert sample(steps=[PlayedStep(0, "go", {}), PlayedStep(1, "go", {}, reward=0.0)]).total_reward == 0.0
    assert type(sample(steps=[]).total_reward) is float


def test_the_transcript_is_the_episode_in_words() -> None:
    assert sample().transcript().splitlines() == [
        "[start] start",
        '[1] go {"n":1}',
        "one (reward 0.5)",
        '[2] go {"n":2}',
        "",
        '[3] say {"text":"hé"}',
        '{"k": [1]} (reward -0.25)',
        "[terminated: environment]",
    ]


def test_a_step_is_made_with_defaults_of_its_own() -> None:
    assert Step() == Step(None, None, False, False, {}, {})
    assert Step().info is not Step().info


def with_step(**changes: Any) -> Trajectory:
    trajectory = sample()
    trajectory.turns[0].steps[0] = dataclasses.replace(trajectory.steps[0], **changes)
    return trajectory


def test_what_changes_the_digest() -> None:
    others = [
        sample(initial="other"),
        sample(status="truncated"),
        sample(stop_reason="x"),
        sample(final_state={"db": 1}),
        sample(turns=[]),
        dataclasses.replace(sample(), seed=8),
        dataclasses.replace(sample(), split="test"),
        dataclasses.replace(sample(), version="2"),
        dataclasses.replace(sample(), environment="f"),
        with_step(args={"n": 3}),
        with_step(tool="x"),
        with_step(reward=0.25),
        with_step(reward=None),
        with_step(observation="other"),
        with_step(info={"a": 2}),
        with_step(metrics={"m": 1.0}),
        with_step(terminated=True),
        with_step(truncated=True),
        sample(turns=[sample().turns[0], Turn(1, Decision(output="x"), sample().steps[2:])]),
    ]
    digests = {item.digest() for item in others}
    assert len(digests) == len(others)
    assert sample().digest() not in digests


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def shade(value: int, height: int = 2, width: int = 2) -> Image:
    return Image(np.full((height, width, 3), value, np.uint8))


def test_what_changes_the_observation_digest_alone() -> None:
    others = [
        sample(),
        sample(initial=["start", shade(0)]),
        sample(initial=["start", shade(1)]),
        sample(initial=["start", shade(0, 1, 4)]),
        sample(initial=[shade(0), "start"]),
        sample(initial=["start", shade(0), shade(0)]),
        sample(initial=["start", Image(shade(0).png)]),
    ]
    assert {item.digest() for item in others} == {sample().digest()}
    assert len({item.observation_digest() for item in others}) == len(others)
    assert sample().observation_digest() == sample().digest(), "nothing was shown but words"
    ends = [sample(initial=["start", shade(0)], status=status).observation_digest() for status in ("running", "failed")]
    assert ends[0] != ends[1]


def test_the_observation_digest_knows_a_picture_by_its_pixels_not_by_how_its_png_was_compressed() -> None:
    drawn = sample(initial=["start", shade(3)])
    before = drawn.observation_digest()
    data = drawn.initial[1].png
    assert drawn.observation_digest() == before, "encoded since"
    raw = zlib.decompress(data[data.index(b"IDAT") + 4 : data.index(b"IEND") - 8])
    other = data[: data.index(b"IDAT") - 4] + _chunk(b"IDAT", zlib.compress(raw, 0)) + _chunk(b"IEND", b"")
    stored = Image.recorded(other, shade(3).pixels)
    assert stored.hash != drawn.initial[1].hash
    assert sample(initial=["start", stored]).observation_digest() == before
