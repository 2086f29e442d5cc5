"""The job of examples/rl/learn_clicks.toml: a warm-up on the scripted solver's answers, then RL, in a real browser."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("playwright", reason="needs the web extra: make browser")

from environments.web.browser import shared
from taskapp_kit.asgi import build
from taskapp_kit.config import Settings
from taskapp_kit.errors import Unavailable
from taskapp_kit.jobs.client.config.sft_config import SftConfig, SftDocument
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.testing import play
from taskapp_kit.train.sft.sft_job import run_sft
from taskapp_kit.train.sft.sft_settings import sft_settings
from tests.train.driver.peers import MemoryLedger
from tests.train.jobs_by_config import config_of, run_job
from tests.train.models.test_tiny import EXAMPLES, example
from tests.train.sft.sft_files import line, write_lines
from tests.train.sft.test_sft_job import Watching

pytestmark = [pytest.mark.train, pytest.mark.browser, pytest.mark.server]

KEY = "k" * 40
WARM_UP = range(256)


@pytest.fixture(scope="module")
def clicks() -> Iterator[ModuleType]:
    try:
        shared().version()
    except Unavailable as error:
        pytest.skip(str(error))
    yield example("clicks")


def test_a_click_on_the_button_of_the_goal_pays_and_any_other_does_not(clicks: ModuleType) -> None:
    for seed in (0, 1, 12_000):
        gold = play(clicks.app, seed=seed, policy="gold")
        page = gold.trajectory.initial
        buttons = [line.split('"')[1] for line in page.splitlines() if "] button" in line]
        others = [name for name in buttons if name != clicks.gold(page)]
        assert gold.reward == 1.0 and len(others) == 2
        for said in (*others, clicks.gold(page)[:-1]):
            assert play(clicks.app, seed=seed, policy="constant", action=said).reward == 0.0


def test_no_task_of_the_evaluation_is_learned_in_the_warm_up(clicks: ModuleType) -> None:
    evaluated = config_of(EXAMPLES / "learn_clicks.toml")["evaluation"]["seeds"]
    assert set(evaluated) <= set(clicks.app.freeze().default_environment.splits["test"])
    assert set(WARM_UP) <= set(clicks.app.freeze().default_environment.splits["train"])


def gold_lines(clicks: ModuleType) -> Iterator[dict[str, Any]]:
    """What `taskapp export --demonstrations` writes of the scripted solver's rollouts."""
    for seed in WARM_UP:
        played = play(clicks.app, seed=seed, policy="gold")
        page = played.trajectory.initial
        roles = {"system": "Which thing?", "user": page, "assistant": clicks.gold(page)}
        messages = [{"role": role, "content": text} for role, text in roles.items()]
        yield line(seed, messages=messages, reward=played.reward, environment="clicks")


def warmed_up(clicks: ModuleType, folder: Path) -> str:
    """The name of the model after the warm-up of clicks_first/sft.toml."""
    path = EXAMPLES / "clicks_first" / "sft.toml"
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    document["data"]["train"] = str(write_lines(folder / "clicks.jsonl", gold_lines(clicks)))
    document["data"]["rl_config"] = str(EXAMPLES / "learn_clicks.toml")
    config = SftConfig(document, SftDocument.model_validate(document), path)
    return asyncio.run(run_sft(document, sft_settings(config), folder, {}, Watching())).model


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_it_learns_which_button_to_click(clicks: ModuleType, tmp_path: Path) -> None:
    ledger = MemoryLedger()
    config = config_of(EXAMPLES / "learn_clicks.toml")
    config["model"]["source"] = warmed_up(clicks, tmp_path)
    settings = Settings(environment_api_key=KEY, max_concurrent=8)
    with BackgroundServer(build(clicks.app, settings, exposure="local")) as server:
        asyncio.run(run_job(config, server.url, KEY, ledger, job_id="clicks-0", models=tmp_path))
    evaluations = ledger.curve("eval_reward")
    print(f"evaluations {evaluations}, without spread {ledger.curve('groups_without_spread')}")
    rewards = ledger.curve("reward")  # of 512 answers at each end; an evaluation has 48
    assert sum(rewards[-4:]) > sum(rewards[:4])
    assert sum(ledger.curve("groups_without_spread")) / len(rewards) < 0.5
    assert sum(ledger.curve("failed")) == 0
