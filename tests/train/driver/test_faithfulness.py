"""Rows have the tokens that were sampled, with clients that strip, rewrite their history, and send calls again."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the train extra: make test-train")
pytest.importorskip("transformers", reason="needs the train extra: make test-train")

from taskapp_kit.train.models.loading import load_model  # noqa: E402
from taskapp_kit.train.models.sources import find_model  # noqa: E402
from tests.train.driver.faithfulness import KINDS, measured, random_model  # noqa: E402
from tests.train.gateway.peers import RENDERER  # noqa: E402

pytestmark = pytest.mark.server


@pytest.mark.train
def test_rows_have_the_sampled_tokens_whatever_clients_do_to_the_conversation() -> None:
    rollouts, turns = 16, 3
    played = {"rollouts": rollouts, "turns": turns, "max_tokens": 12, "at_once": 16}
    report = measured(random_model(), RENDERER, **played, pause_seconds=2.5, timeout_seconds=0.8)
    assert report.problems == []
    assert report.rollouts == rollouts
    assert report.answers == rollouts * turns
    assert report.trained_turns == report.answers + report.discarded
    each = rollouts // len(KINDS)
    twice = {"repeats": each + report.discarded, "rewrites": 2 * each}
    assert report.rows_by_kind == {"plain": each, "strips": each, **twice}
    assert report.calls["forked"] == each + report.discarded
    assert report.calls["continued"] > 0
    assert report.calls["refused"] == 0
    assert 0 < report.calls["repeated"] <= report.sent_again, "some were given up before the gateway had read them"
    assert report.calls["exact"] + report.calls["continued"] + report.calls["forked"] == report.trained_turns
    assert report.drifted > 0, "nothing would go wrong here if texts were encoded again"
    assert report.rows_checked == report.rows
    assert report.largest_difference < 1e-4


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_500_rollouts_through_a_pause_of_5_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """`make faithfulness`. FAITHFULNESS_MODEL: the folder of a model that plays instead of one with random weights."""
    model, renderer = random_model(), RENDERER
    folder = os.environ.get("FAITHFULNESS_MODEL")
    if folder:
        loaded = load_model(find_model(folder, Path(folder).parent))
        model, renderer = loaded.model, loaded.renderer
    torch.set_num_threads(1)
    began, spent = time.monotonic(), time.process_time()
    report = measured(
        model,
        renderer,
        rollouts=500,
        turns=2 if folder else 4,
        max_tokens=8 if folder else 24,
        at_once=32 if folder else 64,
        timeout_seconds=3.0 if folder else 1.5,
        checked=40 if folder else None,
    )
    with capsys.disabled():
        values = {**asdict(report), "seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - spent}
        print(json.dumps(values, indent=2))
    assert report.problems == []
    assert report.sent_again > 0
    assert report.discarded <= 0.02 * report.sent_again
