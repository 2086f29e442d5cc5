"""Runs of a config with a pretrained model, and what is printed of them."""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.asgi import build
from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.records.seeds import derived_rng
from taskapp_kit.records.statistics import paired_difference
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.train.driver.learning import PolicyLearner
from taskapp_kit.train.gateway.attempt import Faithfulness
from taskapp_kit.train.turns import TrainingRow, UpdateMetrics
from tests.train.driver.peers import MemoryLedger
from tests.train.jobs_by_config import run_job

KEY = "k" * 40


class ShufflingLearner(PolicyLearner):
    """Gives the advantages of a batch to other rows of it."""

    async def learn(self, rows: Sequence[TrainingRow]) -> UpdateMetrics:
        values = [max(row.advantages, key=abs) for row in rows]
        derived_rng("shuffled", rows[0].group).shuffle(values)
        return await super().learn(
            [
                replace(row, advantages=tuple(value if on else 0.0 for on in row.mask))
                for row, value in zip(rows, values, strict=True)
            ]
        )


@dataclass(frozen=True)
class LearningRun:
    """A job that has ended. rewards: of its iterations. before, after: means of the first and the last evaluation, of the
    seeds that both scored. low, high: 95 % interval of the paired difference. calls: at the gateway while training, by kind (`attempt.Faithfulness`)."""

    name: str
    rewards: Sequence[float]
    before: float
    after: float
    low: float
    high: float
    pairs: int
    failures: dict[str, int]
    calls: dict[str, int]


def run(
    config: dict[str, Any], name: str, models: Path, learner: type[PolicyLearner] = PolicyLearner, save: bool = False
) -> LearningRun:
    """Run a job over HTTP rollouts. name: of the job, and so of each draw: seeds, tokens, minibatches."""
    ledger = MemoryLedger()
    with served(Path(config["services"]["task_app"])) as url:
        asyncio.run(run_job(config, url, KEY, ledger, job_id=name, models=models, learner=learner, save=save))
    evaluations = [each for each in ledger.rollouts if each.phase == "eval"]
    scored = {each.iteration: {} for each in evaluations}
    for each in evaluations:
        if each.reward is not None:
            scored[each.iteration][each.seed] = each.reward
    first, last = scored[min(scored)], scored[max(scored)]
    seeds = [seed for seed in first if seed in last]
    before, after = [first[seed] for seed in seeds], [last[seed] for seed in seeds]
    interval = paired_difference(before, after, seeds).interval
    return LearningRun(
        name=name,
        rewards=[round(each, 3) for each in ledger.curve("reward")],
        before=statistics.fmean(before),
        after=statistics.fmean(after),
        low=interval.low or 0.0,
        high=interval.high or 0.0,
        pairs=len(seeds),
        failures=dict(ledger.state["failures"]),
        calls={item.name: int(sum(ledger.curve(f"calls_{item.name}"))) for item in fields(Faithfulness)},
    )


def shown(result: LearningRun, capsys: pytest.CaptureFixture[str], **more: Any) -> LearningRun:
    """Print the run, also where pytest hides what is printed."""
    with capsys.disabled():
        print(json.dumps({**asdict(result), **more}))
    return result


@contextmanager
def served(app: Path) -> Iterator[str]:
    settings = Settings(environment_api_key=KEY, max_concurrent=128)
    with BackgroundServer(build(find_app(str(app)), settings, exposure="local")) as server:
        yield server.url
