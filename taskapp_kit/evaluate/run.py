"""Plays the missing rollouts of an evaluation concurrently, and writes the summary.

The number of concurrent rollouts is fixed, or grows until the models are busy.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol
from uuid import uuid4

from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.evaluate.directory import Directory
from taskapp_kit.evaluate.limits import MAX_CONSECUTIVE_FAILURES, EvalBudget, EvalLimits, ModelFailures
from taskapp_kit.evaluate.plan import EvalPlan
from taskapp_kit.evaluate.progress import Progress
from taskapp_kit.evaluate.runners import EvaluatedApp, Runner, idempotency_key
from taskapp_kit.evaluate.summary import SUMMARY_OPTIONS, EvalStatistics, SummaryOptions
from taskapp_kit.records.content import Json
from taskapp_kit.records.protocols import RolloutRow
from taskapp_kit.rollout.score.scoring import ScoringFailed, aggregates

MOST_AT_ONCE = 256
FIRST_AT_ONCE = 8
FEWEST_ANSWERS = 8
"""How many model calls must end before the number of concurrent rollouts changes."""
SLOWER = 2.0
"""If the median duration of calls exceeds the first median by this factor, more concurrency only adds waiting."""


class Concurrency:
    """A constant number of concurrent rollouts. limit: How many rollouts may run now."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def see(self, seconds: float, *, congested: bool) -> None:
        """Count a model call, or a turn of a policy without a model.

        seconds: The duration of the call or turn. congested: Whether an endpoint returned 429 or was overloaded.
        """


class AutoConcurrency(Concurrency):
    """Doubles the limit until an endpoint is congested or calls take twice as long as at first.

    The limit is at most MOST_AT_ONCE. After congestion it returns to the previous value and stays there. From then on,
    the models' client (rollout/models/attempts.py) limits the concurrent calls per host. A limit is judged by the
    median duration of as many calls as there are concurrent rollouts. Calls that began under an earlier limit are
    ignored. A 429 stops the growth immediately.
    """

    def __init__(self) -> None:
        super().__init__(FIRST_AT_ONCE)
        self._before = self.limit
        self._growing = True
        self._seconds: list[float] = []
        self._left_out = 0
        self._at_first: float | None = None

    def see(self, seconds: float, *, congested: bool) -> None:
        """See `Concurrency.see`."""
        if not self._growing:
            return
        if congested:
            self._stop()
        elif self._left_out:
            self._left_out -= 1
        else:
            self._seconds.append(seconds)
            if len(self._seconds) >= max(FEWEST_ANSWERS, self.limit):
                self._judge(statistics.median(self._seconds))

    def _judge(self, median: float) -> None:
        if self._at_first is None:
            self._at_first = median
        if median >= SLOWER * self._at_first > 0:
            self._stop()
            return
        self._before, self.limit = self.limit, min(MOST_AT_ONCE, 2 * self.limit)
        self._growing = self.limit > self._before
        self._seconds, self._left_out = [], self.limit

    def _stop(self) -> None:
        self.limit, self._growing = self._before, False


MODEL_RATE_LIMITED = "model_rate_limited"
NO_LIMITS = EvalLimits()
TICK_SECONDS = 10.0
"""How often an observer receives the progress, in seconds."""


class EvalObserver(Protocol):
    """An observer of an evaluation. Its methods run on the event loop and must not raise."""

    def begin(self, *, asked: int, done: int) -> None:
        """Called first. asked: The number of requested rollouts. done: How many of them already have a result."""

    def result(self, result: RolloutRow, policy: str) -> None:
        """Called when a result was written to disk. policy: The policy's name in the plan."""

    def tick(self, progress: Progress) -> None:
        """Called every TICK_SECONDS."""


def configuration(
    plan: EvalPlan,
    about: EvaluatedApp,
    *,
    app_reference: str | None = None,
    options: Mapping[str, Json] | None = None,
) -> dict[str, Any]:
    """Return the content of `config.json`. Only the field `asked` must match when the evaluation is resumed.

    app_reference: The app's reference for `find_app`, or None if only the app's address is known. options: The
    command's other options, with which the evaluation can be resumed without flags.
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
        "ranges": about.ranges.to_json(),
        "app_reference": app_reference,
        **({"options": dict(options)} if options else {}),
        "eval_id": uuid4().hex,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


async def evaluate(
    plan: EvalPlan,
    player: Runner,
    directory: Directory,
    *,
    eval_id: str,
    concurrency: int | Concurrency,
    retry_failed: bool = False,
    max_consecutive_failures: int = MAX_CONSECUTIVE_FAILURES,
    limits: EvalLimits = NO_LIMITS,
    watch: EvalObserver | None = None,
    tick_seconds: float = TICK_SECONDS,
) -> None:
    """Play every rollout that has no result in the directory, and every failed rollout if `retry_failed` is set.

    Every result that was passed to `watch` is on disk, even if this function fails. `max_consecutive_failures` is the limit
    of ModelFailures.

    Raises:
        EvaluationLimitReached: One of `limits` was reached. The running rollouts have ended.
        EvaluationStopped: The remaining rollouts would probably fail the same way. Running rollouts were cancelled.
        StoreError: Results cannot be written. Running rollouts were cancelled.
        KitError: `Runner.play` raised this error. Running rollouts were cancelled.
    """
    writer = _Writer(directory)
    todo = _Todo(directory.missing(retry_failed=retry_failed))
    settled = directory.done - (directory.failed if retry_failed else 0)
    left = len(plan) - settled
    at_once = Concurrency(concurrency) if isinstance(concurrency, int) else concurrency
    adapts = isinstance(at_once, AutoConcurrency)
    model_failures = ModelFailures(max_consecutive_failures)
    progress = Progress()
    budget = EvalBudget(limits, directory.spent, progress)
    if adapts:
        progress.new_calls()  # starts recording
    if watch is not None:
        watch.begin(asked=len(plan), done=settled)

    async def play(position: int, failures: int) -> None:
        nonlocal left
        key = idempotency_key(eval_id, position, failures)
        progress.under_way += 1
        try:
            result = await player.play(plan.request(position, f"eval-{eval_id[:12]}"), key=key, progress=progress)
        finally:
            progress.under_way -= 1
        await writer.add(position, result)
        left -= 1
        model = plan.names[plan.policy_of(position)]
        if watch is not None:
            watch.result(result, model)
        budget.see(model, result)
        if adapts:
            _see(at_once, progress, result)
        if left:
            model_failures.see(model, result)

    async def show(watch: EvalObserver) -> None:
        while True:
            await asyncio.sleep(tick_seconds)
            watch.tick(progress)

    shown = None if watch is None else asyncio.create_task(show(watch))
    try:
        if todo:
            directory.drop_summary()
            await _play_all(todo, play, at_once, budget)
            reached = budget.reached() if left else None
            if reached is not None:
                raise reached
    finally:
        if shown is not None:
            shown.cancel()
            await asyncio.gather(shown, return_exceptions=True)
        await writer.settle()


class _Todo:
    """The remaining rollouts, each as (position, failures so far). The object is false if no rollout remains."""

    def __init__(self, items: Iterator[tuple[int, int]]) -> None:
        self._items = items
        self._next = next(items, None)

    def __bool__(self) -> bool:
        return self._next is not None

    def take(self) -> tuple[int, int]:
        """Remove and return the next rollout. At least one rollout must remain."""
        taken, self._next = self._next, next(self._items, None)
        assert taken is not None, "the caller checks first"
        return taken


async def _play_all(
    todo: _Todo, play: Callable[[int, int], Awaitable[None]], at_once: Concurrency, budget: EvalBudget
) -> None:
    """Play up to `at_once.limit` rollouts concurrently until no rollout is left or the budget is spent.

    If a rollout raises an error, all running rollouts are cancelled.
    """
    workers: set[asyncio.Task[None]] = set()
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        while todo and len(workers) <= at_once.limit and budget.reached() is None:
            await play(*todo.take())
            add_workers()

    def add_workers() -> None:
        while len(workers) < at_once.limit and todo and budget.reached() is None:
            task = asyncio.create_task(work())
            workers.add(task)
            task.add_done_callback(leave)

    def leave(task: asyncio.Task[None]) -> None:
        workers.discard(task)
        fault = None if task.cancelled() else task.exception()
        if ended.done():
            return
        if fault is not None:
            ended.set_exception(fault)
        elif not workers:
            ended.set_result(None)

    add_workers()
    try:
        if workers:
            await ended
    finally:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


def _see(at_once: Concurrency, progress: Progress, result: RolloutRow) -> None:
    """Report the durations of the model calls. If they are unknown, report the durations of the rollout's turns."""
    calls = progress.new_calls()
    if not calls and not result.failed and result.seconds is not None:
        calls = [result.seconds / max(1.0, result.metrics.get("turns", 1.0))]
    if progress.new_congestion() or result.code == MODEL_RATE_LIMITED:
        at_once.see(0.0, congested=True)
    for seconds in calls:
        at_once.see(seconds, congested=False)


class _Writer:
    """Writes results in the order in which they arrive. Results that arrive during a write share the next flush."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._waiting: list[tuple[int, RolloutRow, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def add(self, position: int, result: RolloutRow) -> None:
        """Write the result to disk. Raises StoreError if it cannot be written."""
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
                    continue  # the task that waited for this result was cancelled
                if fault is None:
                    written.set_result(None)
                else:
                    written.set_exception(fault)
        self._task = None

    async def settle(self) -> None:
        """Wait for the current writes."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)


def summarise(
    plan: EvalPlan,
    directory: Directory,
    about: EvaluatedApp,
    spec: AppSpec | None,
    options: SummaryOptions = SUMMARY_OPTIONS,
    *,
    of_app: Sequence[Mapping[str, Any]] | None = None,
    rows: Mapping[int, Mapping[str, Json]] | None = None,
) -> dict[str, Any]:
    """Compute the summary of all results on disk, in the plan's order. If every rollout has a line, write the summary.

    The summaries of equal evaluations differ only in `timing`, even if one evaluation was interrupted. If there are
    several policies, `by_policy` has the numbers of each policy.

    Args:
        plan: The plan of the evaluation.
        directory: The results.
        about: The app.
        spec: The app's declarations, whose aggregates are computed.
        options: How to summarize.
        of_app: Each policy's aggregates from an earlier summary, used if `spec` is None.
        rows: The fields of rows, by seed, for lines that have no fields.
    """
    policies = [EvalStatistics(options) for _ in plan.policies]
    whole = EvalStatistics(SummaryOptions(interval="t")) if len(policies) > 1 else policies[0]
    finished: list[list[RolloutRow]] = [[] for _ in policies]
    for position, result in directory.placed_results():
        which = plan.policy_of(position)
        if rows is not None and not result.row:
            result.row = dict(rows.get(result.seed, {}))
        policies[which].add(result)
        if whole is not policies[0]:
            whole.add(result)
        if spec is not None and spec.aggregates and not result.failed:
            finished[which].append(result)
    computed = [_aggregates(spec, numbers) for numbers in finished] if of_app is None else of_app
    each = [
        {**tally.to_json(len(plan) // len(policies)), **{name: one[name] for name in OF_THE_APP}}
        for tally, one in zip(policies, computed, strict=True)
    ]
    summary: dict[str, Any] = {
        "app": about.app,
        "app_version": about.version,
        "spec_hash": about.spec_hash,
        "reward_formula": about.formula,
        **plan.to_json(),
        "environment": about.environment,
    }
    if len(each) == 1:
        summary |= each[0]
    else:
        numbers = whole.to_json(len(plan))
        problem = next((one["aggregates_problem"] for one in each if one["aggregates_problem"]), None)
        summary |= {name: numbers[name] for name in OF_ALL_POLICIES}
        summary |= {"aggregates_problem": problem, "by_policy": dict(zip(plan.names, each, strict=True))}
    summary["timing"] = summary.pop("timing")  # move the field to the end
    if directory.done == len(plan):
        directory.write_summary(summary)
    return summary


OF_ALL_POLICIES = tuple("rollouts failures stop_reasons usage cost models digest observation_digest timing".split())
"""The fields of a summary that are meaningful for several policies together."""
OF_THE_APP = ("aggregates", "aggregates_problem", "published")
"""The fields of a summary that the app's code computes."""


def _aggregates(spec: AppSpec | None, numbers: list[RolloutRow]) -> dict[str, Any]:
    """Return the summary's fields with the app's aggregates over these rollouts."""
    computed: dict[str, Any] | None = None
    problem = None
    if spec is not None and numbers:
        try:
            computed = dict(aggregates(spec, numbers))
        except ScoringFailed as error:
            problem = error.failure.message
    return {"aggregates": computed, "aggregates_problem": problem, "published": published(spec, computed)}


def published(spec: AppSpec | None, aggregates: Any) -> dict[str, Json]:
    """Return the published figures that the app declares for each computed aggregate."""
    if spec is None or not aggregates:
        return {}
    return {
        item.name: {heading: dict(figures) for heading, figures in item.published.items()}
        for item in spec.aggregates
        if item.name in aggregates and item.published
    }
