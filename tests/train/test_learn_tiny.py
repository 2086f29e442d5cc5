"""The job of examples/rl/learn_tiny.toml, over HTTP: above 0.9 on combinations that no training seed has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskapp_kit.cli.main import main
from tests.train.driver.peers import MemoryLedger
from tests.train.driver.scripted_app import KEY, served
from tests.train.jobs_by_config import config_of, run_job
from tests.train.models.test_tiny import EXAMPLES, example

pytestmark = [pytest.mark.train, pytest.mark.server]

CHANCE = 1 / 8


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(example("keys").app) as address:
        yield address


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_it_learns_from_stored_answers_of_which_most_are_wrong(tmp_path: Path) -> None:
    """A job records its rollouts; another one learns from them, from the same start, and plays its evaluations only."""
    store, file = tmp_path / "rollouts.db", tmp_path / "keys.jsonl"
    with served(example("keys").app, store=str(store)) as url:
        config = config_of(EXAMPLES / "record_tiny.toml")
        asyncio.run(run_job(config, url, KEY, MemoryLedger(), job_id="recorded", models=tmp_path))
        main(["export", str(store), "--format", "tokens", "--out", str(file)], standalone_mode=False)
        config = config_of(EXAMPLES / "learn_tiny_offline.toml")
        config["data"]["rollouts"] = str(file)
        ledger = MemoryLedger()
        asyncio.run(run_job(config, url, KEY, ledger, job_id="offline", models=tmp_path))
    evaluations = ledger.curve("eval_reward")
    assert evaluations[0] < 2.5 * CHANCE
    assert evaluations[-1] > 0.8
    assert max(ledger.curve("stored_reward")) < 0.6
    assert {each.phase for each in ledger.rollouts} == {"eval"}


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_ppo_learns_it_too(url: str, tmp_path: Path) -> None:
    ledger = MemoryLedger()
    config = config_of(EXAMPLES / "learn_tiny_ppo.toml", iterations_per_epoch=16)
    config["evaluation"]["every_n_iters"] = 16
    asyncio.run(run_job(config, url, KEY, ledger, job_id="ppo-0", models=tmp_path))
    evaluations = ledger.curve("eval_reward")
    assert evaluations[0] < 2.5 * CHANCE
    assert evaluations[-1] > 0.9
    assert len(ledger.curve("explained_variance")) == 16


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.exhaustive), pytest.param(2, marks=pytest.mark.exhaustive)]
)
def test_it_learns_keys_of_combinations_that_it_never_saw(url: str, seed: int, tmp_path: Path) -> None:
    ledger = MemoryLedger()
    config = config_of(EXAMPLES / "learn_tiny.toml")
    asyncio.run(run_job(config, url, KEY, ledger, job_id=f"seed-{seed}", models=tmp_path))
    evaluations = ledger.curve("eval_reward")
    assert evaluations[0] < 2.5 * CHANCE
    assert evaluations[-1] > 0.9
    assert max(ledger.curve("log_prob_mismatch")) < 1e-4
    assert sum(ledger.curve("failed")) == 0
