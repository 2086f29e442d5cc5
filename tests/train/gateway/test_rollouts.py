"""Real rollouts whose model is the gateway: their turns, and what is stored of their addresses."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import pytest

from taskapp_kit import Step, TaskApp, action
from taskapp_kit.config import Settings
from taskapp_kit.net.redact import holds_key
from taskapp_kit.records.protocols import SystemClock
from taskapp_kit.rollout.models.access import model_access
from taskapp_kit.rollout.response import answer_bytes
from taskapp_kit.store import open_store
from taskapp_kit.train.gateway.attempt import Faithfulness
from taskapp_kit.train.gateway.gateway_server import Gateway
from tests.rollouts import a_request, a_service
from tests.train.gateway.peers import RENDERER, SETTINGS, ScriptedSampler

pytestmark = [pytest.mark.server, pytest.mark.anyio]

LEAST = 12
app = TaskApp("counting", version="1")


@app.environment("counting", splits={"train": range(4)}, max_steps=8)
class Counting:
    """Reach three."""

    def reset(self, seed: int) -> str:
        self.total = 0
        return "0 of 3"

    @action
    def add(self, amount: int) -> Step:
        """Add it."""
        self.total += amount
        return Step(f"{self.total} of 3", reward=1.0, terminated=self.total >= 3)


async def test_a_rollouts_turns_are_recorded_and_its_address_is_not_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    sampler = ScriptedSampler(lambda call: '<tool_call>\n{"name": "add", "arguments": {"amount": 1}}\n</tool_call>')
    settings = dataclasses.replace(SETTINGS, max_tokens=200)
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    models = model_access(Settings(variables={}), "local", SystemClock())
    service = a_service(app, exposure="local", models=models, store=store)
    shown = []
    with Gateway(sampler, RENDERER, max_open_attempts=2) as gateway:
        for config in ({}, {"trace_correlation_id": "cid-7"}):
            async with gateway.attempt("cid-7", draw="d", settings=settings) as attempt:
                config = {"inference_url": attempt.url, "model": "m", **config}
                played = await service.rollout(a_request(None, seed=0, policy_config=config))
                shown.append(answer_bytes(played).decode())
            record = attempt.record()
            assert played.scorecard is not None
            assert played.total_reward == 3.0
            assert len(record.turns) == 3
            assert record.faithfulness == Faithfulness(exact=3)
            assert [turn.parent for turn in record.turns] == [None, 0, 1]
            assert [turn.finish_reason for turn in record.turns] == ["tool_calls"] * 3
            assert all(turn.exclusion is None for turn in record.turns)
            shown.append(attempt.token.partition("-")[2])
    await service.close()
    answers, secrets = "\n".join(shown[::2]), shown[1::2]
    assert "/r/(hidden)/v1" in answers
    assert "/r/cid-7/v1" in answers
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir()).decode("latin-1")
    assert "/r/cid-7/v1" in stored
    for secret in secrets:
        assert not holds_key(answers, secret, LEAST)
        assert not holds_key(stored, secret, LEAST)
        assert not holds_key(caplog.text, secret, LEAST)
