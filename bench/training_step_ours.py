"""`python -m bench.training_step_ours SIZE FOLDER TASK_APP_URL KEY`: iterations of a JobDriver, one for each line of stdin.

Prints the prompts of the first iteration, then one line of CPU seconds after each.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.training_step_model import CONTEXT, LEARNING_RATE, NEW_TOKENS, PROMPTS, SAMPLES, begin, model_of, say, wait
from taskapp_kit.jobs.server.engine import Event, RolloutOutcome
from taskapp_kit.jobs.server.rollout_plan import JobPlan
from taskapp_kit.jobs.server.task_app_access import OpenedTaskApp, TaskAppAddresses
from taskapp_kit.train.driver.driver_settings import DriverSettings
from taskapp_kit.train.driver.job_driver import JobDriver
from taskapp_kit.train.driver.learning import PolicyLearner
from taskapp_kit.train.gateway.attempt import AttemptSettings
from taskapp_kit.train.gateway.gateway_server import Gateway
from taskapp_kit.train.rendering.chatml import ChatMl
from taskapp_kit.train.rendering.tokenizer import JsonTokenizer
from taskapp_kit.train.sampler.transformers_sampler import TransformersSampler
from taskapp_kit.train.turns import TrainingRow, UpdateMetrics
from taskapp_kit.train.update.policy_update import PolicyUpdate
from taskapp_kit.train.update.update_settings import UpdateSettings

ITERATIONS = 1000
"""More than the parent ever asks for."""
AT_ONCE = PROMPTS * SAMPLES
PLAN = JobPlan(
    iterations=ITERATIONS,
    per_epoch=ITERATIONS,
    groups=PROMPTS,
    samples=SAMPLES,
    at_once=AT_ONCE,
    env_name="words",
    env_config={},
    policy_name=None,
    policy_config={},
    ops=["agent", "env"],
    seeds=list(range(PROMPTS)),
)


class MeasuringLearner(PolicyLearner):
    """Notes an update's rows and CPU seconds."""

    update_seconds = 0.0
    rows: Sequence[TrainingRow] = ()

    async def learn(self, rows: Sequence[TrainingRow]) -> UpdateMetrics:
        self.rows = rows
        began = time.process_time()
        metrics = await super().learn(rows)
        self.update_seconds = time.process_time() - began
        return metrics


class WaitingLedger:
    """Stores nothing. After each iteration it says what that took, and waits for the next line."""

    def __init__(self, learner: MeasuringLearner, tokenizer: JsonTokenizer) -> None:
        self._learner, self._tokenizer = learner, tokenizer
        self._began = self._clocks()
        self._first = True

    def _clocks(self) -> dict[str, float]:
        clocks = {"cpu_seconds": time.process_time()}
        for thread in threading.enumerate():
            for name, start in (("sampler_seconds", "sampler"), ("gateway_seconds", "taskapp-server")):
                if thread.name.startswith(start) and thread.ident is not None:
                    clocks[name] = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        return clocks

    async def report(self, *events: Event, **more: Any) -> None:
        if not any(event.type == "rl.train.step" for event in events):
            return
        now = self._clocks()
        rows = self._learner.rows
        if self._first:
            self._first = False
            starts = [row.ids[: row.mask.index(True)] for row in rows]
            say(prompts=[self._tokenizer.decode(ids) for ids in dict.fromkeys(starts)])
        say(
            **{name: now[name] - self._began[name] for name in now},
            update_seconds=self._learner.update_seconds,
            tokens=sum(row.trained for row in rows),
            sequences=len(rows),
        )
        await asyncio.to_thread(wait)
        self._began = self._clocks()

    async def store(self, rollout: RolloutOutcome) -> RolloutOutcome:
        if rollout.failed:
            raise SystemExit(f"a rollout failed: {rollout.message}")
        return rollout

    async def stored(self, phase: str, iteration: int) -> list[RolloutOutcome]:
        return []

    async def last_data(self, *types: str, last: int) -> list[Mapping[str, Any]]:
        return []


async def main(size: str, folder: Path, url: str, key: str) -> None:
    model = begin(size, folder)
    tokenizer = JsonTokenizer.from_file(folder / "tokenizer.json")
    update = PolicyUpdate(model, UpdateSettings(learning_rate=LEARNING_RATE, loss="grpo"))
    settings = DriverSettings(AttemptSettings(temperature=1.0, max_tokens=NEW_TOKENS, context_tokens=CONTEXT))
    gateways: list[Gateway] = []
    with (
        TransformersSampler(
            model_of(size), batch_size=AT_ONCE, open_attempts=lambda: gateways[0].open_attempts if gateways else 1
        ) as sampler,
        Gateway(sampler, ChatMl(tokenizer), max_open_attempts=AT_ONCE) as gateway,
    ):
        gateways.append(gateway)
        async with OpenedTaskApp(url, key, TaskAppAddresses(local=True), [key], 0) as task_app:
            learner = MeasuringLearner(update, sampler)
            ledger: Any = WaitingLedger(learner, tokenizer)
            await JobDriver("bench", PLAN, task_app, gateway, learner, ledger, settings).run({})


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]))
