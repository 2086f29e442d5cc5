"""Runners, which play an evaluation's rollouts with a service in this process or with a task app at an address."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from taskapp_kit.client import TaskAppClient
from taskapp_kit.config import Settings
from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.episode_selection import find_environment
from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.errors import ConfigError, Failure, JobTimeout, RolloutFailed, TaskAppError
from taskapp_kit.evaluate.plan import EvalPlan
from taskapp_kit.evaluate.progress import Progress
from taskapp_kit.evaluate.results import add_sums, is_number, row_of_answer, row_of_error, row_of_failure
from taskapp_kit.evaluate.rows import RowFields, short_fields
from taskapp_kit.net.envelope import sentence
from taskapp_kit.records.content import Json, json_hash
from taskapp_kit.records.protocols import RolloutRow
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.score_ranges import ScoreRanges
from taskapp_kit.records.scorecard import POLICY, model_use
from taskapp_kit.records.seeds import SEED_LIMIT
from taskapp_kit.rollout.describe import Description
from taskapp_kit.rollout.episode import global_random
from taskapp_kit.rollout.models.access import role_endpoint
from taskapp_kit.rollout.models.model_settings import ModelNames
from taskapp_kit.rollout.request import RequestPlanner
from taskapp_kit.rollout.score.judges import check_judges, needed_roles
from taskapp_kit.rollout.service import Service
from taskapp_kit.version import __version__, git_commit
from taskapp_kit.wire.inference_url import stored_url
from taskapp_kit.wire.rollout import RolloutRequest

if TYPE_CHECKING:
    from taskapp_kit.records.protocols import Store
    from taskapp_kit.rollout.admission import RunningRollout


DECLARED = ("task", "environment", "dataset", "rubric", "action_space", "config_schema", "reward", "version")
"""The fields of `/task_info` that describe a task app's declarations."""
SEEDS_A_REQUEST = 200
"""How many seeds one request for rows contains. The limit exists because the seeds are part of the address."""
NEWEST_FAILED = 50
"""How many failed rollouts are listed to find a recent one."""
PATIENCE_SECONDS = 600.0
"""Extra seconds after a rollout's deadline, for a saturated server and the transfer of the response."""


@dataclass(frozen=True, slots=True)
class EvaluatedApp:
    """The app under evaluation.

    Attributes:
        app: The app's name.
        version: The app's version.
        spec_hash: The hash of the declarations. For a server, the hash of the declarations in its `/task_info`.
        environment: The environment.
        splits: The seeds of each split, with the default split first. Empty if a server does not report them.
        formula: The reward's formula as a string.
        ranges: The ranges of the reward and the criteria.
        kit_version: The kit's version.
        models: The known models of the judges, by model role.
        git: The commit of the repository that contains the app.
        has_rows: Whether the environment has rows.
    """

    app: str
    version: str | None
    spec_hash: str
    environment: str
    splits: Mapping[str, range] = field(default_factory=dict)
    formula: str = ""
    ranges: ScoreRanges = field(default_factory=ScoreRanges)
    kit_version: str | None = None
    models: Mapping[str, Json] = field(default_factory=dict)
    git: str | None = None
    has_rows: bool = False


def judge_models(spec: AppSpec, settings: Settings) -> dict[str, Json]:
    """Return the judges' models that the settings configure, by model role, without API keys."""
    found: dict[str, Json] = {}
    for need in needed_roles(spec):
        endpoint = role_endpoint(settings, need.role) if need.judges else None
        if endpoint is not None:
            found[need.role] = {"inference_url": stored_url(endpoint.url), "model": endpoint.model}
    return found


class Runner(Protocol):
    """Plays rollouts on one event loop. Call `about` and `check`, then `open`. Always call `close` at the end."""

    @property
    def spec(self) -> AppSpec | None:
        """The app's declarations, whose aggregates are computed, or None if this process does not have them."""
        ...

    async def about(self, environment: str | None) -> EvaluatedApp:
        """Describe the app. Raises RequestError or TaskAppError if the environment or the server does not exist."""
        ...

    async def rows(self, environment: str | None, split: str | None, seeds: Sequence[int]) -> list[dict[str, Json]]:
        """Return the short public fields of each seed's row (`rows.short_fields`), or {} for a seed without a row.

        Raises KitError if the rows cannot be read.
        """
        ...

    async def check(self, plan: EvalPlan) -> None:
        """Raise an error that every rollout of the plan would raise, if it can be found in advance."""
        ...

    async def open(self) -> None:
        """Prepare to play rollouts. Raises KitError if the preparation fails."""
        ...

    async def play(self, request: RolloutRequest, *, key: str, progress: Progress) -> RolloutRow:
        """Play one rollout and return its row. The rollout may have failed.

        key: The idempotency key. Calling `play` again with the same key returns the same episode. progress: Receives
        turns and tokens.

        Raises KitError if no rollout can be played, for example because the request is invalid or the server is down.
        """
        ...

    async def close(self) -> None:
        """Release the resources."""
        ...


class LocalRunner:
    """Plays the rollouts of an app in this process or in worker processes.

    Args:
        app: The app.
        settings: The settings that configure the models of judges and environments.
        store: Opens the store for full rollouts. With None, nothing is stored.
        concurrency: The number of concurrent rollouts.
        workers: The number of worker processes. With 0, rollouts run in threads.
        max_time_seconds: The longest deadline of a rollout.
        skip_judges: Whether to skip all judges.

    Attributes:
        warnings: A warning about each environment in which playing revealed a problem.

    Raises:
        DeclarationError: The app's declarations are invalid.
    """

    def __init__(
        self,
        app: TaskApp,
        settings: Settings,
        *,
        store: Callable[[], Store] | None = None,
        concurrency: int = 8,
        workers: int = 0,
        max_time_seconds: float = 3600.0,
        skip_judges: bool = False,
    ) -> None:
        self.spec: AppSpec = app.freeze()
        self._app = app
        self._settings = settings
        self._store = store
        self._concurrency = concurrency
        self._workers = workers
        self._max_time_seconds = max_time_seconds
        self._skip_judges = skip_judges
        self._service: Service | None = None
        self._alone = concurrency == 1 and workers == 0
        self._rows = RowFields(self.spec)
        self._ended: dict[str, Rollout | None] = {}
        self.warnings: dict[str, str] = {}

    async def about(self, environment: str | None) -> EvaluatedApp:
        """See Runner."""
        spec = find_environment(self.spec, environment)
        described = Description(self.spec, max_time_seconds=1.0, max_concurrent=1, max_body_bytes=1).taskset(spec)
        return EvaluatedApp(
            app=self.spec.name,
            version=self.spec.version,
            spec_hash=self.spec.hash,
            environment=spec.name,
            splits=_splits(described["dataset"]),
            formula=self.spec.blend_for(spec.name).words(),
            ranges=ScoreRanges.of_task_info(described, self.spec.aggregation),
            kit_version=__version__,
            models=judge_models(self.spec, self._settings),
            git=git_commit(self._app.file),
            has_rows=spec.tasks is not None,
        )

    async def rows(self, environment: str | None, split: str | None, seeds: Sequence[int]) -> list[dict[str, Json]]:
        """See Runner."""
        name = find_environment(self.spec, environment).name
        return [self._rows.of(name, split, seed) for seed in seeds]

    async def check(self, plan: EvalPlan) -> None:
        """Check the requests for the first and the last seed of each range, and the judges' models. See Runner.

        Also raises Unavailable if a judge with a weight has no model.
        """
        if not self._skip_judges:
            check_judges(self.spec, lambda role: role_endpoint(self._settings, role) is not None)
        planner = RequestPlanner(self.spec, self._app.file.parent)
        for index in _ends(plan):
            for policy in range(len(plan.policies)):
                planner.plan(plan.request(plan.first(index, policy), "check"))

    async def open(self) -> None:
        """See Runner. Raises Unavailable, StoreError or ConfigError if the service cannot be started."""
        self._service = Service.of(
            self._app,
            self._settings,
            store=None if self._store is None else self._store(),
            max_concurrent=self._concurrency,
            max_time_seconds=self._max_time_seconds,
            threads=self._concurrency,
            workers=self._workers,
            skip_judges=self._skip_judges,
        )
        self._service.watchers.append(self._note)
        await asyncio.to_thread(self._service.prepare)
        await self._service.start()

    def _note(self, rollout: RunningRollout, result: Rollout) -> None:
        if rollout.rollout_id in self._ended:
            self._ended[rollout.rollout_id] = result

    async def play(self, request: RolloutRequest, *, key: str, progress: Progress) -> RolloutRow:
        """See Runner.

        Adds a warning if a rollout changes the global random state. Concurrent rollouts are not checked.
        """
        assert self._service is not None, "open() comes first"
        environment, seed = find_environment(self.spec, request.env.env_name).name, request.env.seed or 0
        watch = global_random.GlobalRandomWatch() if self._alone and environment not in self.warnings else None
        began = time.monotonic()
        rollout_id = ""
        try:
            admitted = await self._service.admit(request)
            rollout_id = admitted.rollout_id
            self._ended[rollout_id] = None
            # a model's turn takes long, but another policy's turn may be too short
            prompt = admitted.plan.endpoint is not None
            rollout = await self._service.run(admitted, listener=progress.count_event, prompt=prompt)
            result = rollout.row()
        except RolloutFailed as failed:
            result = row_of_failure(
                failed.failure,
                seed=seed,
                rollout_id=failed.rollout_id,
                seconds=time.monotonic() - began,
                played=self._ended.get(rollout_id),
            )
        finally:
            self._ended.pop(rollout_id, None)
            warning = None if watch is None else watch.changed(environment)
            if warning is not None:
                self.warnings[environment] = f"{warning}; {global_random.REMEDY}."
        progress.add(0, {}, result.other_cost)
        progress.see_congestion(self._service.models.congestion)
        split = request.env.config.get("split")
        result.row = self._rows.of(environment, split if isinstance(split, str) else None, seed)
        return result

    async def close(self) -> None:
        """See Runner."""
        if self._service is not None:
            await self._service.close()


class RemoteRunner:
    """Plays the rollouts of a task app at an address.

    `spec` contains the declarations of a local copy of the app, whose aggregates are computed. If it is None, no aggregates
    are computed. `model_names` provides the prices, which responses lack. `warnings` is always empty (see LocalRunner).
    """

    def __init__(
        self,
        url: str,
        key: str | None,
        *,
        max_time_seconds: float = 3600.0,
        spec: AppSpec | None = None,
        model_names: ModelNames | None = None,
    ) -> None:
        self._url = url
        self._key = key
        self._client = TaskAppClient(url, key, timeout_seconds=max_time_seconds + PATIENCE_SECONDS)
        self._model_names = model_names
        self._rows: dict[tuple[str | None, int], dict[str, Json]] = {}
        self.spec = spec
        self.warnings: dict[str, str] = {}

    async def about(self, environment: str | None) -> EvaluatedApp:
        """See Runner. Also raises ConfigError if the local app is not the served app."""
        query = {} if environment is None else {"environment": environment}
        info, server = await self._client.task_info((), **query), await self._client.info()
        versions, rubrics = server.get("versions"), server.get("rubrics")
        outcome = rubrics.get("outcome") if isinstance(rubrics, Mapping) else None
        task = info.get("task") if isinstance(info, Mapping) else None
        if not isinstance(info, Mapping) or not isinstance(task, Mapping) or "id" not in task:
            raise TaskAppError(f"{stored_url(self._url)} does not describe a task app.", hint="Check the address.")
        reward = info.get("reward")
        about = EvaluatedApp(
            app=self._name(task["id"]) or "untold",
            version=self._name(task.get("version")) or None,
            spec_hash=json_hash({name: info[name] for name in DECLARED if name in info}),
            environment=self._name(info.get("environment")) or environment or self._name(task["id"]),
            splits=_splits(info.get("dataset")),
            formula=self._name(reward.get("formula")) if isinstance(reward, Mapping) else "",
            ranges=ScoreRanges.of_task_info(info, outcome.get("aggregation") if isinstance(outcome, Mapping) else None),
            kit_version=(self._name(versions.get("kit")) or None) if isinstance(versions, Mapping) else None,
            has_rows=isinstance(info.get("dataset"), Mapping) and info["dataset"].get("kind") == "rows",
        )
        if self.spec is not None and (self.spec.name, self.spec.version) != (about.app, about.version):
            raise ConfigError(
                f"The server has {about.app} {about.version}, but --app-id is {self.spec.name} {self.spec.version}.",
                hint="Pass the served app as --app-id. If you omit --app-id, no aggregates are computed.",
            )
        return about

    def _name(self, value: Any) -> str:
        """Return a server's string as one line, without control characters or the API key, or "" for other values."""
        return sentence(value, self._key)

    async def rows(self, environment: str | None, split: str | None, seeds: Sequence[int]) -> list[dict[str, Json]]:
        """See Runner. The fields are added to later results of these seeds."""
        query = {} if environment is None else {"environment": environment}
        query |= {} if split is None else {"split": split}
        unknown = [seed for seed in seeds if (split, seed) not in self._rows]
        for some in (unknown[start : start + SEEDS_A_REQUEST] for start in range(0, len(unknown), SEEDS_A_REQUEST)):
            found = await self._client.task_info(some, **query)
            tasks = [found] if len(some) == 1 else found
            if not isinstance(tasks, list) or len(tasks) != len(some):
                raise TaskAppError(f"{stored_url(self._url)}/task_info did not return a task for each seed.")
            self._rows |= {(split, seed): self._fields(task) for seed, task in zip(some, tasks, strict=True)}
        return [self._rows[split, seed] for seed in seeds]

    def _fields(self, task: Any) -> dict[str, Json]:
        """Return the short fields of one TaskInfo, without the API key."""
        metadata = task.get("task_metadata") if isinstance(task, Mapping) else None
        row = metadata.get("row") if isinstance(metadata, Mapping) else None
        if not isinstance(row, Mapping):
            return {}
        return {self._name(name): self._safe(value) for name, value in short_fields(row).items()}

    def _safe(self, value: Json) -> Json:
        if isinstance(value, list):
            return [self._name(word) for word in value]
        return self._name(value) if isinstance(value, str) else value

    async def check(self, plan: EvalPlan) -> None:
        """Request the tasks of the first and the last seed of each range. See Runner."""
        query = {} if plan.environment is None else {"environment": plan.environment}
        query |= {} if plan.split is None else {"split": plan.split}
        await self._client.task_info([plan.seeds.at(index) for index in _ends(plan)][:100], **query)

    async def open(self) -> None:
        """See Runner. This has no effect, because the server is already running."""

    async def play(self, request: RolloutRequest, *, key: str, progress: Progress) -> RolloutRow:
        """See Runner.

        Waits while the server is saturated, and retries requests if a retry cannot duplicate a rollout.
        """
        result = await self._answered(request, key)
        if result.failed and result.rollout_id:
            await self._add_use(request.run_id, result)
        if result.policy_cost is None:
            result.policy_cost = self._price(request, result.usage)
        turns = int(result.metrics.get("turns", 0))
        if result.usage:
            model = request.policy.config.get("model")
            result.models = [model_use(POLICY, model, result.usage, result.policy_cost, turns)]
        add_sums(result)
        result.row = self._rows.get((request.env.config.get("split"), result.seed), {})
        progress.add(turns, result.usage, result.policy_cost)
        progress.add(0, {}, result.other_cost)
        return result

    async def _answered(self, request: RolloutRequest, key: str) -> RolloutRow:
        began = time.monotonic()
        seed = request.env.seed or 0
        try:
            answer = await self._client.rollout(request, idempotency_key=key)
        except TaskAppError as error:
            if error.boundary is None and error.status != 500:
                raise  # this is not a failed rollout: the server is down or rejects the request
            return row_of_error(error, seed=seed, seconds=time.monotonic() - began)
        except JobTimeout as error:
            failure = Failure("timeout", "no_answer", error.message)
            return row_of_failure(failure, seed=seed, rollout_id="", seconds=time.monotonic() - began)
        try:
            return row_of_answer(answer, seed=seed)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise TaskAppError(
                f"The response of {stored_url(self._url)} is not a rollout response of taskapp-kit.",
                hint="Check that a taskapp-kit server runs at this address.",
            ) from None

    async def _add_use(self, run_id: str, result: RolloutRow) -> None:
        """Look up the tokens and the cost of a failed rollout in the server's list, because error responses lack them.

        They stay unknown if the server has no store, or if many rollouts have failed in the meantime.
        """
        try:
            page = await self._client.rollouts(run_id=run_id, status="failed", limit=NEWEST_FAILED)
            found = next(row for row in page["rollouts"] if row["id"] == result.rollout_id)
            tokens, cost = found["tokens"], found["cost"]
        except (TaskAppError, StopIteration, KeyError, TypeError):
            return
        if is_number(tokens):
            result.usage = {"total_tokens": float(tokens)}
        if is_number(cost):
            result.policy_cost = float(cost)

    def _price(self, request: RolloutRequest, usage: Mapping[str, float]) -> float | None:
        url, model = request.policy.config.get("inference_url"), request.policy.config.get("model")
        if self._model_names is None or not isinstance(url, str) or not isinstance(model, str) or not usage:
            return None
        price = self._model_names.price(url, model) if "prompt_tokens" in usage else None
        return None if price is None else price.cost(usage)

    async def close(self) -> None:
        """See Runner."""
        await self._client.aclose()


def idempotency_key(eval_id: str, position: int, failures: int) -> str:
    """Return an idempotency key, which is the same for a repeated request and different after each failure.

    With the same key, the server would return the failure again.
    """
    return hashlib.sha256(f"{eval_id}/{position}/{failures}".encode()).hexdigest()


def _ends(plan: EvalPlan) -> list[int]:
    """Return the indexes of the first and the last seed of each range."""
    found = {plan.seeds.index(seed) for one in plan.seeds.ranges for seed in (one[0], one[-1])}
    return sorted(index for index in found if index is not None)


def _is_seed(value: Any) -> bool:
    return type(value) is int and 0 <= value <= SEED_LIMIT


def _splits(dataset: Any) -> dict[str, range]:
    """Return the seeds of each split in `/task_info`. Malformed entries are ignored."""
    if not isinstance(dataset, Mapping) or not isinstance(dataset.get("seeds"), Mapping):
        return {}
    found = {}
    for name, bounds in dataset["seeds"].items():
        if (
            isinstance(bounds, list)
            and 2 <= len(bounds) <= 3
            and all(_is_seed(part) for part in bounds)
            and bounds[2:] != [0]
        ):
            found[str(name)] = range(*bounds)
    first = dataset.get("default_split")
    return {name: found[name] for name in sorted(found, key=lambda name: name != first)}
