"""Runs whole evaluations, as the command does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.evaluate.directory import Directory
from taskapp_kit.evaluate.plan import EvalPlan
from taskapp_kit.evaluate.run import EvalObserver, configuration, evaluate, summarise
from taskapp_kit.evaluate.runners import LocalRunner, Runner

FLAKY = str(Path(__file__).parent / "flaky.py")


class Evaluations:
    """Runs whole evaluations, as the command does."""

    def here(self, **options: Any) -> LocalRunner:
        return LocalRunner(find_app(FLAKY), Settings(), **options)

    def run(
        self, path: Path, plan: EvalPlan, player: Runner | None = None, *, retry: bool = False, watch: EvalObserver | None = None,
        concurrency: int = 4, **options: Any,
    ) -> dict[str, Any]:  # fmt: skip
        return asyncio.run(self._run(path, plan, player or self.here(), retry, watch, concurrency, **options))

    async def _run(
        self,
        path: Path,
        plan: EvalPlan,
        player: Runner,
        retry: bool,
        watch: EvalObserver | None,
        concurrency: int,
        **options: Any,
    ) -> dict[str, Any]:
        about = await player.about(plan.environment)
        await player.check(plan)
        directory = Directory(path, plan)
        try:
            config = directory.begin(configuration(plan, about), resume=True)
            await player.open()
            await evaluate(
                plan,
                player,
                directory,
                eval_id=config["eval_id"],
                concurrency=concurrency,
                retry_failed=retry,
                watch=watch,
                **options,
            )
            return summarise(plan, directory, about, player.spec)
        finally:
            await player.close()
            directory.close()


@pytest.fixture
def evaluations() -> Evaluations:
    return Evaluations()
