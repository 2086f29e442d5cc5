"""Plays the rollouts that a directory lacks, several at once, and writes the summary."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Protocol
from uuid import uuid4

from taskapp_kit.contract.content import Json
from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.evaluate.consecutive_failures import MAX_CONSECUTIVE_FAILURES, ModelFailures
from taskapp_kit.evaluate.directory import Directory
from taskapp_kit.evaluate.plan import EvalPlan
from taskapp_kit.evaluate.progress import Progress
from taskapp_kit.evaluate.results import Result
from taskapp_kit.evaluate.runners import EvaluatedApp, Runner, idempotency_key
from taskapp_kit.evaluate.statistics import EvalStatistics

TICK_SECONDS = 10.0
"""The interval at which an observer receives the progress."""


class EvalObserver(Protocol):
    """Observes an evaluation, on the event loop; its methods must not raise."""

    def begin(self, *, asked: int, done: int) -> None:
        """Called first with the number of requested rollouts, and of those that are already done."""

    def result(self, result: Result) -> None:
        """Called when one more result is on the disk."""

    def tick(self, progress: Progress) -> None:
        """Called every TICK_SECONDS, whether or not a rollout has ended."""


def configuration(plan: EvalPlan, about: EvaluatedApp, *, app_reference: str | None = None) -> dict[str, Any]:
    """`config.json`: `asked` must be the same to resume the evaluation, the rest is information for readers.

    app_reference: the reference by which `find_app` finds the app again; None if only its address is known.
    """
    return {
        "asked": {
            "app": about.app,
            "app_version": about.version,
            "spec_hash": about.spec_hash,
            "kit_version": about.kit_version,
            "judges": dict(about.models),
            **plan.to_json(),
            "environment": about.environment,
        },
        "git": about.git,
        "app_reference": app_reference,
        "eval_id": uuid4().hex,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


async def evaluate(
    plan: EvalPlan,
    player: Runner,
    directory: Directory,
    *,
    eval_id: str,
    concurrency: int,
    retry_failed: bool = False,
    max_consecutive_failures: int = MAX_CONSECUTIVE_FAILURES,
    watch: EvalObserver | None = None,
    tick_seconds: float = TICK_SECONDS,
) -> None:
    """Plays every rollout that the directory lacks. However it ends, every result that `watch` received is on the disk.

    max_consecutive_failures: see ModelFailures. Raises EvaluationStopped when the model is unavailable and rollouts are
    left, any error of `Runner.play`, and StoreError when results cannot be written; running rollouts are then cancelled.
    """
    writer = _Writer(directory)
    waiting = directory.missing(retry_failed=retry_failed)
    settled = directory.done - (directory.failed if retry_failed else 0)
    left = len(plan) - settled
    model_failures = ModelFailures(max_consecutive_failures)
    progress = Progress()
    if watch is not None:
        watch.begin(asked=len(plan), done=settled)

    async def work(todo: Iterator[tuple[int, int]]) -> None:
        nonlocal left
        for position, failures in todo:
            key = idempotency_key(eval_id, position, failures)
            progress.under_way += 1
            try:
                result = await player.play(plan.request(position, f"eval-{eval_id[:12]}"), key=key, progress=progress)
            finally:
                progress.under_way -= 1
            await writer.add(position, result)
            left -= 1
            if watch is not None:
                watch.result(result)
            if left:
                model_failures.see(plan.key(position).policy, result)

    async def show(watch: EvalObserver) -> None:
        while True:
            await asyncio.sleep(tick_seconds)
            watch.tick(progress)

    tasks: list[asyncio.Task[None]] = []
    shown = None if watch is None else asyncio.create_task(show(watch))
    try:
        first = next(waiting, None)
        if first is not None:
            directory.drop_summary()
            todo = _from(first, waiting)
            tasks = [asyncio.create_task(work(todo)) for _ in range(concurrency)]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
    finally:
        ending = tasks if shown is None else [*tasks, shown]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await writer.settle()


def _from(first: tuple[int, int], rest: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    yield first
    yield from rest


class _Writer:
    """Writes results in the order in which they come; those that arrive during a write share the next flush."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._waiting: list[tuple[int, Result, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def add(self, position: int, result: Result) -> None:
        """Returns when the result is on the disk. Raises StoreError."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((position, result, written))
        if self._task is None:
            self._task = asyncio.create_task(self._write())
        await written

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            fault: BaseException | None = None
            try:
                await asyncio.to_thread(self._directory.append, [(position, result) for position, result, _ in batch])
            except Exception as error:
                fault = error
            for _, _, written in batch:
                if written.done():
                    continue  # the waiting task was cancelled
                if fault is None:
                    written.set_result(None)
                else:
                    written.set_exception(fault)
        self._task = None

    async def settle(self) -> None:
        """Waits for the current writes."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)


def summarise(plan: EvalPlan, directory: Directory, about: EvaluatedApp, spec: AppSpec | None) -> dict[str, Any]:
    """Computes and writes `summary.json` from all results, read again from the disk, in the plan's order.

    spec: of the app, whose aggregates are computed; without it there are none. Two equal evaluations differ only in
    `timing`, whether they were interrupted or not.
    """
    from taskapp_kit.rollout.score.scoring import ScoringFailed, aggregates

    tally = EvalStatistics()
    numbers = []
    for result in directory.results():
        tally.add(result)
        if spec is not None and spec.aggregates and not result.failed:
            numbers.append(result.summary)
    computed: dict[str, Any] | None = None
    problem = None
    if spec is not None and numbers:
        try:
            computed = dict(aggregates(spec, numbers))
        except ScoringFailed as error:
            problem = error.failure.message
    summary = {
        "app": about.app,
        "app_version": about.version,
        "spec_hash": about.spec_hash,
        "reward_formula": about.formula,
        **plan.to_json(),
        "environment": about.environment,
        **tally.to_json(len(plan)),
        "aggregates": computed,
        "aggregates_problem": problem,
        "published": published(spec, computed),
    }
    summary["timing"] = summary.pop("timing")  # moved to the end
    directory.write_summary(summary)
    return summary


def published(spec: AppSpec | None, aggregates: Any) -> dict[str, Json]:
    """The published figures for each computed aggregate: heading to name to number."""
    if spec is None or not aggregates:
        return {}
    return {
        item.name: {heading: dict(figures) for heading, figures in item.published.items()}
        for item in spec.aggregates
        if item.name in aggregates and item.published
    }
