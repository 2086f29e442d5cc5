"""`taskapp train --local`: start a backend and the task apps in this process, and follow the job to its end.

Running the same command again continues an unfinished job, because the idempotency key depends only on the config, the task
app and the model. Each run has new addresses and keys, so the stored job is updated with the task apps' new addresses before
the backend starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import math
import secrets
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import orjson

from taskapp_kit.asgi import build
from taskapp_kit.cli.output import job_progress
from taskapp_kit.cli.output.episode_pairs import EpisodePair, print_pairs
from taskapp_kit.cli.output.terminal import clean, console, echo, number
from taskapp_kit.cli.output.text_chart import CURVE_WIDTH, curve
from taskapp_kit.cli.train.backend_viewer import backend_viewer
from taskapp_kit.cli.train.job_files import JobFiles, Points
from taskapp_kit.config import Settings, export, keep_from_authors
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import ConfigError, StoreError, TaskAppError, Unavailable
from taskapp_kit.evaluate.source import ServerSource
from taskapp_kit.jobs.client.backend import BackendClient
from taskapp_kit.jobs.client.config.rl_config import RlConfig
from taskapp_kit.jobs.client.rl_job import RLJob
from taskapp_kit.jobs.server.app import create_backend
from taskapp_kit.jobs.server.auth import LOCAL, BearerKeys
from taskapp_kit.jobs.server.engine import Phase
from taskapp_kit.jobs.server.jobs import Jobs
from taskapp_kit.jobs.server.schema import SUCCEEDED
from taskapp_kit.net.redact import without_keys
from taskapp_kit.records.job_status import best_checkpoint
from taskapp_kit.records.seeds import Seeds
from taskapp_kit.rollout.details import RolloutDetails, details_of
from taskapp_kit.serve.uvicorn_server import BackgroundServer, log_to_stderr
from taskapp_kit.train.engine.local_engine import LocalEngine
from taskapp_kit.train.sampler.vllm.place import KEY_VARIABLE, VllmPlace
from taskapp_kit.viewer.viewer import UiMount

JOB_STORE = "sqlite:///.taskapp/backend.db"
ROLLOUT_STORE = "sqlite:///.taskapp/rollouts.db"
FILES = Path(".taskapp/train")
"""The directory that contains a directory for each job."""
FOLLOW_SECONDS = 1.0
"""The interval between two requests for the job's status, in seconds."""
POINTS_PAGE = 1000
PAIRS = 3
"""How many episodes from before and after training are shown. They are played with the evaluations' first seeds."""
DRAWING = ("matplotlib", "tensorboardX")
"""Packages of the extra `train` that only this command imports."""


@dataclass(frozen=True, slots=True)
class LocalTraining:
    """The options of a training run.

    Attributes:
        task_app: A file, or the name of a bundled app.
        model: Replaces the config's model.
        fresh: Whether to cancel an unfinished job and start a new one.
        quiet: Whether to show nothing while the job runs.
    """

    config: RlConfig
    task_app: str
    settings: Settings
    model: str | None = None
    fresh: bool = False
    quiet: bool = False

    def idempotency_keys(self) -> Iterator[str]:
        """Yield the idempotency keys of the first job with these options, of the second job, and so on."""
        # The same command continues the same job, also after a failure whose cause was fixed. A changed config starts
        # another job. After a job succeeded, the same command also starts another job, with the next number.
        identity = [self.config.document, str(Path(self.task_app).resolve()), self.model]
        digest = hashlib.sha256(orjson.dumps(identity, option=orjson.OPT_SORT_KEYS, default=str)).hexdigest()
        return (f"train-local.{digest}.{count}" for count in itertools.count(1))


@dataclass(frozen=True, slots=True)
class LocalResult:
    """A job that succeeded, failed or was cancelled, with its last status (without keys) and the points of its metrics."""

    status: dict[str, Any]
    points: Points
    pairs: Sequence[EpisodePair]
    files: JobFiles

    def to_json(self) -> dict[str, Any]:
        """Return the status object. Its field `files` contains the files' paths, or None if there are no points."""
        paths = {"picture": str(self.files.picture), "tensorboard": str(self.files.tensorboard)}
        return {**self.status, "files": paths if self.points else None}


@dataclass(slots=True)
class LocalServers:
    """The running backend and task apps.

    Attributes:
        key: The backend's key.
        urls: The task apps' addresses, by the names that the flag and the config use.
        viewer_link: A link to the viewer that logs a browser in and works once.
        left: The id of the unfinished job to continue, or None for a new job.
        idempotency_key: The idempotency key of a new job.
        job_id: The job's id, or None until it is known.
    """

    backend_url: str
    key: str = field(repr=False)
    jobs: Jobs
    task_app_url: str
    urls: Mapping[str, str]
    task_app_key: str = field(repr=False)
    viewer_link: str = field(repr=False)
    left: str | None
    idempotency_key: str
    job_id: str | None = None

    @property
    def keys(self) -> tuple[str, str]:
        """Return the backend's key and the task apps' key. They must never be printed."""
        return self.key, self.task_app_key


def train(training: LocalTraining, ctx: click.Context) -> LocalResult:
    """Run the job to its end, and write the files about the job.

    Ctrl-C stops the job and the servers, and ends the command with status 1.

    Raises Unavailable if a package is missing, DiscoveryError or DeclarationError if a task app cannot be loaded,
    ConfigError for an invalid setting, StoreError if a store cannot be opened, and TaskAppError or BackendError if a
    request to the task app or the backend fails.
    """
    servers: LocalServers | None = None
    try:
        with _servers(training) as servers:
            return asyncio.run(_followed(training, servers))
    except KeyboardInterrupt:
        if servers is None or servers.job_id is None:
            echo("\nStopped before the job started.", err=True)
        else:
            echo(f"\nStopped. To continue job {clean(servers.job_id)}, run the same command again.", err=True)
        ctx.exit(1)


@contextlib.contextmanager
def _servers(training: LocalTraining) -> Iterator[LocalServers]:
    """Run a backend and the task apps, each on a free port of this machine, while the block runs."""
    # The servers are threads of this process and the trainer is a child process, so nothing outlives the command.
    missing = [name for name in DRAWING if find_spec(name) is None]
    if missing:
        raise Unavailable(
            f"`taskapp train --local` needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            "installed.",
            hint="Install the extra: pip install 'taskapp-kit[train]'.",
        )
    settings = training.settings
    vllm = VllmPlace.of(settings.vllm, settings.variable(KEY_VARIABLE))
    engine = LocalEngine(settings.models, settings.aliases, vllm=vllm, open_paths=True)
    log_to_stderr("error", settings.log_format)
    own_key = settings.environment_api_key if _calls_others(training.config) else None
    key, app_key = secrets.token_urlsafe(24), own_key or secrets.token_urlsafe(24)
    settings = replace(settings, environment_api_key=app_key, store=settings.store or ROLLOUT_STORE)
    export(settings)
    keep_from_authors()
    apps = {name: find_app(name) for name in dict.fromkeys([training.task_app, *_other_task_apps(training.config)])}
    bearer, left = BearerKeys([], minted=key), list[str]()
    with contextlib.ExitStack() as running:
        urls: dict[str, str] = {}
        for name, app in apps.items():
            same = next(
                (url for other, url in urls.items() if apps[other] is app), None
            )  # one app may have several names
            urls[name] = same or running.enter_context(BackgroundServer(build(app, settings, exposure="local"))).url
        url = urls[training.task_app]
        try:
            backend_app = create_backend(
                bearer,
                store=JOB_STORE,
                environment_api_key=app_key,
                max_jobs=1,
                engine=engine,
                resumes=lambda job: job.job_id in left,  # the task apps of other unfinished jobs are not running
            )
        except StoreError as error:
            hint = "Stop the other `taskapp backend serve` or `taskapp train --local`, or run this command in another directory."
            raise StoreError(error.message, hint=hint) from error
        jobs: Jobs = backend_app.state.jobs
        idempotency_key, unfinished = asyncio.run(left_job(training, jobs, url, urls))
        left += [] if unfinished is None else [unfinished]
        viewer = backend_viewer(jobs, bearer, [key], settings)
        with BackgroundServer(UiMount(viewer, backend_app)) as backend:
            link = viewer.login_link(backend.url)
            yield LocalServers(backend.url, key, jobs, url, urls, app_key, link, unfinished, idempotency_key)


def _environments(config: RlConfig) -> list[dict[str, Any]]:
    return (config.document.get("rollout") or {}).get("environments") or []


def _other_task_apps(config: RlConfig) -> list[str]:
    """Return the task apps that the config names in `[rollout] environments`."""
    return [item["task_app"] for item in _environments(config) if item.get("task_app")]


def _with_addresses(config: RlConfig, urls: Mapping[str, str]) -> dict[str, Any] | None:
    """Return config overrides that contain the task apps' addresses, or None if the job has only one task app."""
    if not _other_task_apps(config):
        return None
    environments = [
        {**item, "task_url": urls[item["task_app"]]} if item.get("task_app") else item for item in _environments(config)
    ]
    return {"rollout": {"environments": environments}}


def _calls_others(config: RlConfig) -> bool:
    """Return whether the job also uses task apps that are already running. All task apps then share ENVIRONMENT_API_KEY."""
    return any("task_url" in item and not item.get("task_app") for item in _environments(config))


async def left_job(
    training: LocalTraining, jobs: Jobs, task_app_url: str, urls: Mapping[str, str] | None = None
) -> tuple[str, str | None]:
    """Return the idempotency key of a new job, and the id of the unfinished job to continue.

    The id is None if no job is unfinished, or if `fresh` is set, which cancels the unfinished job.

    The task apps' addresses in the unfinished job are updated.
    """
    last = None
    for key in training.idempotency_keys():
        job = await jobs.submitted(LOCAL, key)
        if job is None:
            break
        last = job
    if last is None or last.status == SUCCEEDED:
        return key, None
    if training.fresh:
        await jobs.records.write(last.job_id, cancelling=True)  # the backend cancels the job when the backend starts
        return key, None
    await jobs.records.move(last.job_id, task_app_url, urls)  # each run uses new ports
    return key, last.job_id


async def _followed(training: LocalTraining, servers: LocalServers) -> LocalResult:
    job = await _started(training, servers)
    job_id = servers.job_id = str(job.job_id)
    files = JobFiles(FILES / job_id)
    if not training.quiet:
        verb = "continues where it stopped" if servers.left else "starts"
        echo(f"Job {job_id} {verb}. Watch it at {servers.viewer_link}&next=jobs/{job_id}", err=True)
    async with BackendClient(servers.backend_url, servers.key) as client:
        writing = asyncio.create_task(files.follow(lambda step: client.metrics(job_id, step, POINTS_PAGE)))
        try:
            with job_progress.display_for(quiet=training.quiet) as display:
                status = await job_progress.follow(
                    job, display, timeout_seconds=math.inf, interval_seconds=FOLLOW_SECONDS, keys=servers.keys
                )
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)  # `files.write` raises the same error again
    points = await job.metrics_async()
    if points:
        model, reward = training.model or status.get("model") or "", number(status.get("final_reward"))
        title = f"{job_id} · {model} · final reward {reward}"
        best = best_checkpoint(status)
        title += f"\nbest: {best}" if best else ""
        await asyncio.to_thread(files.write, points, title)
    return LocalResult(without_keys(status, servers.keys), points, await _pairs(servers, job_id), files)


async def _started(training: LocalTraining, servers: LocalServers) -> RLJob:
    """Continue the unfinished job, or submit a new job, and return it."""
    if servers.left is not None:
        job = RLJob.from_job_id(servers.left, servers.backend_url, servers.key)
        await job.start_async()  # restarts the job if it failed or was cancelled
        return job
    job = RLJob.from_config(
        training.config.path,
        backend_url=servers.backend_url,
        api_key=servers.key,
        task_app_url=servers.task_app_url,
        task_app_api_key=servers.task_app_key,
        overrides=_with_addresses(training.config, servers.urls),
        idempotency_key=servers.idempotency_key,
        model=training.model,
    )
    await job.submit_async()
    return job


async def _pairs(servers: LocalServers, job_id: str) -> list[EpisodePair]:
    """Return the episodes of the first seeds in the first and the last evaluation. Empty for fewer than two evaluations."""
    records = servers.jobs.records
    phase: Phase = "eval"
    evaluations = [row.iteration for row in await records.iterations(job_id) if row.phase == phase]
    if len(evaluations) < 2 or min(evaluations) > 0:
        return []
    first, last = [await records.stored(job_id, phase, number) for number in (0, max(evaluations))]
    sources = [ServerSource(url, servers.task_app_key) for url in dict.fromkeys(servers.urls.values())]
    try:
        return [
            EpisodePair(
                before.seed,
                await _details(sources, before.rollout_id),
                await _details(sources, after.rollout_id),
                (before.reward, after.reward),
            )
            for before, after in zip(first[:PAIRS], last[:PAIRS], strict=False)
        ]
    finally:
        for source in sources:
            await source.close()


async def _details(sources: Sequence[ServerSource], rollout_id: str) -> RolloutDetails | None:
    """Return a rollout from the task app that stored it, or None if no task app has stored it."""
    for source in sources if rollout_id else ():
        with contextlib.suppress(ConfigError, StoreError, TaskAppError):
            return details_of(await source.load(rollout_id))
    return None


def show(result: LocalResult, training: LocalTraining) -> None:
    """Print the result on stdout."""
    job_progress.report(result.status)
    out = console()
    rewards = _by_step(result, "reward")
    drawn = curve([rewards[step] for step in sorted(rewards)], width=CURVE_WIDTH)
    if len(rewards) > 1:
        out.print("\nreward, by iteration", style="bold")
        for line in drawn:
            out.print(line, soft_wrap=True)
    evaluations = _by_step(result, "eval_reward")
    if evaluations:
        out.print(job_progress.evaluation_words(evaluations), soft_wrap=True)
    if result.pairs:
        out.print("\nthe first seeds of the evaluations, before and after training", style="bold")
        print_pairs(result.pairs, out)
    facts: dict[str, str] = {}
    if result.points:
        facts["picture"] = str(result.files.picture)
        facts["TensorBoard"] = shlex.join(["tensorboard", "--logdir", str(result.files.tensorboard)])
    results = result.status.get("results") or {}
    model = results.get("best") or results.get("model")
    if isinstance(model, str):
        facts |= {"model": model, "next": shlex.join(_next(training, model))}
    out.print()
    for name, words in facts.items():  # not a table, so that a command can be copied as one line
        out.print(f"{name:<11}  {clean(words)}", soft_wrap=True)


def _by_step(result: LocalResult, name: str) -> Mapping[int, float]:
    return {point["step"]: point["value"] for point in result.points if point["name"] == name}


def _next(training: LocalTraining, model: str) -> list[str]:
    """Return the command that plays the evaluations' episodes with the trained model and the same sampling.

    If the job has several environments, the command names only the app and the model, because the environments may have
    different seeds and configs.
    """
    document, command = training.config.document, ["taskapp", "eval", training.task_app]
    rollout, evaluation, policy = (document.get(name) or {} for name in ("rollout", "evaluation", "policy"))
    if rollout.get("environments"):
        return [*command, "--model", model]
    seeds = {range(seed, seed + 1) for seed in evaluation.get("seeds") or ()}
    sampled = {name: policy[name] for name in ("temperature", "max_tokens") if name in policy}
    if "temperature" in evaluation:
        sampled["temperature"] = evaluation["temperature"]
    options = {
        "--env": rollout.get("env_name"),
        "--config": json.dumps(rollout["env_config"]) if rollout.get("env_config") else None,
        "--model": model,
        "--seeds": str(Seeds(seeds)) if seeds else None,
        "--policy-config": json.dumps(sampled) if sampled else None,
    }
    return [*command, *(word for name, value in options.items() if value is not None for word in (name, str(value)))]
