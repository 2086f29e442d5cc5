"""What `taskapp train --local` does: starts a backend and the task apps in this process, and follows the job to its end.

A job that was left goes on when the command is given again: its idempotency key is made of config, task app and model. A
run has addresses and keys of its own, so the stored job is given the task apps' new addresses before the backend starts.
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
"""Below it is a folder for each job."""
FOLLOW_SECONDS = 1.0
"""Between two looks at the job's status."""
POINTS_PAGE = 1000
PAIRS = 3
"""Episodes that are shown before and after training: those of the first seeds of the evaluations."""
DRAWING = ("matplotlib", "tensorboardX")
"""Packages of the extra `train` that only this command needs."""


@dataclass(frozen=True, slots=True)
class LocalTraining:
    """What is trained. task_app: a file, or the name of a bundled app. model: in place of the config's.

    fresh: begins a new job, and cancels one that was left. quiet: shows nothing while the job runs.
    """

    config: RlConfig
    task_app: str
    settings: Settings
    model: str | None = None
    fresh: bool = False
    quiet: bool = False

    def idempotency_keys(self) -> Iterator[str]:
        """Yield the idempotency keys of its first job, its second, and so on."""
        # The same command is the same job: no file names the last job, a changed config is another job, and a failed job
        # continues after its cause was fixed. The number grows after a job that succeeded.
        named = [self.config.document, str(Path(self.task_app).resolve()), self.model]
        digest = hashlib.sha256(orjson.dumps(named, option=orjson.OPT_SORT_KEYS, default=str)).hexdigest()
        return (f"train-local.{digest}.{count}" for count in itertools.count(1))


@dataclass(frozen=True, slots=True)
class LocalResult:
    """A job that has ended, however. status: its last one, without keys. points: of its metrics."""

    status: dict[str, Any]
    points: Points
    pairs: Sequence[EpisodePair]
    files: JobFiles

    def to_json(self) -> dict[str, Any]:
        """The status, and where the files are (None without a point)."""
        files = (
            {"picture": str(self.files.picture), "tensorboard": str(self.files.tensorboard)} if self.points else None
        )
        return {**self.status, "files": files}


@dataclass(slots=True)
class LocalServers:
    """The running backend and task apps. left: the id of the stored job that goes on, None for a new one.

    urls: of the task apps by the names that flag and config give them. key: of the backend. idempotency_key: of the new
    job. viewer_link: logs a browser in, once. job_id: once it is known.
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
        """Both keys, which are never shown."""
        return self.key, self.task_app_key


def train(wanted: LocalTraining, ctx: click.Context) -> LocalResult:
    """Run the job to its end, and write the files about it.

    Ctrl-C stops all that was started and ends the command with status 1. Raises Unavailable, ConfigError, StoreError,
    DiscoveryError, DeclarationError, TaskAppError, BackendError.
    """
    running: list[LocalServers] = []
    try:
        with _servers(wanted) as servers:
            running.append(servers)
            return asyncio.run(_followed(wanted, servers))
    except KeyboardInterrupt:
        job_id = next((each.job_id for each in running), None)
        if job_id is None:
            echo("\nStopped before the job had begun.", err=True)
        else:
            words = f"job {clean(job_id)} goes on where it stopped when the same command is given again"
            echo(f"\nStopped; {words}.", err=True)
        ctx.exit(1)


@contextlib.contextmanager
def _servers(wanted: LocalTraining) -> Iterator[LocalServers]:
    """A backend and the task apps, each at a free port of this machine with a key of its own, while the block runs."""
    # They are threads of this process, and the trainer is a child of it: however the command ends, nothing is left running.
    missing = [name for name in DRAWING if find_spec(name) is None]
    if missing:
        raise Unavailable(
            f"`taskapp train --local` needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            "installed.",
            hint="Install the extra: pip install 'taskapp-kit[train]'.",
        )
    vllm = VllmPlace.of(wanted.settings.vllm, wanted.settings.variable(KEY_VARIABLE))
    engine = LocalEngine(wanted.settings.models, wanted.settings.aliases, vllm=vllm, open_paths=True)
    log_to_stderr("error", wanted.settings.log_format)
    own_key = wanted.settings.environment_api_key if _calls_others(wanted.config) else None
    key, app_key = secrets.token_urlsafe(24), own_key or secrets.token_urlsafe(24)
    settings = replace(wanted.settings, environment_api_key=app_key, store=wanted.settings.store or ROLLOUT_STORE)
    export(settings)
    keep_from_authors()
    apps = {name: find_app(name) for name in dict.fromkeys([wanted.task_app, *_other_task_apps(wanted.config)])}
    bearer, left = BearerKeys([], minted=key), list[str]()
    with contextlib.ExitStack() as running:
        urls: dict[str, str] = {}
        for name, app in apps.items():
            before = next((url for other, url in urls.items() if apps[other] is app), None)  # it has several names
            urls[name] = before or running.enter_context(BackgroundServer(build(app, settings, exposure="local"))).url
        url = urls[wanted.task_app]
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
            hint = "Stop that `taskapp backend serve` or `taskapp train --local`, or run this one in another folder."
            raise StoreError(error.message, hint=hint) from error
        jobs: Jobs = backend_app.state.jobs
        idempotency_key, found = asyncio.run(left_job(wanted, jobs, url, urls))
        left += [] if found is None else [found]
        viewer = backend_viewer(jobs, bearer, [key], settings)
        with BackgroundServer(UiMount(viewer, backend_app)) as backend:
            link = viewer.login_link(backend.url)
            yield LocalServers(backend.url, key, jobs, url, urls, app_key, link, found, idempotency_key)


def _environments(config: RlConfig) -> list[dict[str, Any]]:
    return (config.document.get("rollout") or {}).get("environments") or []


def _other_task_apps(config: RlConfig) -> list[str]:
    """What `[rollout] environments` name as `task_app`."""
    return [each["task_app"] for each in _environments(config) if each.get("task_app")]


def _with_addresses(config: RlConfig, urls: Mapping[str, str]) -> dict[str, Any] | None:
    """What replaces values of the config, so that the backend finds the task apps; None where there is only the job's own."""
    if not _other_task_apps(config):
        return None
    environments = [
        {**each, "task_url": urls[each["task_app"]]} if each.get("task_app") else each for each in _environments(config)
    ]
    return {"rollout": {"environments": environments}}


def _calls_others(config: RlConfig) -> bool:
    """Whether the job plays task apps that this command does not start: then all have the key ENVIRONMENT_API_KEY."""
    return any("task_url" in each and not each.get("task_app") for each in _environments(config))


async def left_job(
    wanted: LocalTraining, jobs: Jobs, task_app_url: str, urls: Mapping[str, str] | None = None
) -> tuple[str, str | None]:
    """Return (the key of a new job, the id of the one that was left); the latter has the task apps' new addresses."""
    last = None
    for key in wanted.idempotency_keys():
        job = await jobs.submitted(LOCAL, key)
        if job is None:
            break
        last = job
    if last is None or last.status == SUCCEEDED:
        return key, None
    if wanted.fresh:
        await jobs.records.write(last.job_id, cancelling=True)  # the backend ends it when it starts
        return key, None
    await jobs.records.move(last.job_id, task_app_url, urls)  # ports are new in each run
    return key, last.job_id


async def _followed(wanted: LocalTraining, servers: LocalServers) -> LocalResult:
    job = await _begun(wanted, servers)
    job_id = servers.job_id = str(job.job_id)
    files = JobFiles(FILES / job_id)
    if not wanted.quiet:
        way = "goes on where it stopped" if servers.left else "begins"
        echo(f"Job {job_id} {way}. Its page: {servers.viewer_link}&next=jobs/{job_id}", err=True)
    async with BackendClient(servers.backend_url, servers.key) as client:
        writing = asyncio.create_task(files.follow(lambda step: client.metrics(job_id, step, POINTS_PAGE)))
        try:
            with job_progress.display_for(quiet=wanted.quiet) as display:
                status = await job_progress.follow(
                    job, display, timeout_seconds=math.inf, interval_seconds=FOLLOW_SECONDS, keys=servers.keys
                )
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)  # what failed fails again in `files.write`
    points = await job.metrics_async()
    if points:
        title = f"{job_id} · {wanted.model or status.get('model') or ''} · final reward {number(status.get('final_reward'))}"
        best = best_checkpoint(status)
        title += f"\nbest: {best}" if best else ""
        await asyncio.to_thread(files.write, points, title)
    return LocalResult(without_keys(status, servers.keys), points, await _pairs(servers, job_id), files)


async def _begun(wanted: LocalTraining, servers: LocalServers) -> RLJob:
    """The job that was left, which goes on, or a new one."""
    if servers.left is not None:
        job = RLJob.from_job_id(servers.left, servers.backend_url, servers.key)
        await job.start_async()  # if it failed or was cancelled
        return job
    job = RLJob.from_config(
        wanted.config.path,
        backend_url=servers.backend_url,
        api_key=servers.key,
        task_app_url=servers.task_app_url,
        task_app_api_key=servers.task_app_key,
        overrides=_with_addresses(wanted.config, servers.urls),
        idempotency_key=servers.idempotency_key,
        model=wanted.model,
    )
    await job.submit_async()
    return job


async def _pairs(servers: LocalServers, job_id: str) -> list[EpisodePair]:
    """The episodes of the first seeds in the first and the last evaluation; [] where there are not two."""
    records = servers.jobs.records
    phase: Phase = "eval"
    evaluations = [one.iteration for one in await records.iterations(job_id) if one.phase == phase]
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
    """A rollout of any of the task apps; None if none has it."""
    for source in sources if rollout_id else ():
        with contextlib.suppress(ConfigError, StoreError, TaskAppError):
            return details_of(await source.load(rollout_id))
    return None


def show(result: LocalResult, wanted: LocalTraining) -> None:
    """Print it on stdout."""
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
        out.print("\nthe first seeds of the evaluations, before and after", style="bold")
        print_pairs(result.pairs, out)
    facts: dict[str, str] = {}
    if result.points:
        facts["picture"] = str(result.files.picture)
        facts["TensorBoard"] = shlex.join(["tensorboard", "--logdir", str(result.files.tensorboard)])
    model = _model(result)
    if model is not None:
        facts |= {"model": model, "next": shlex.join(_next(wanted, model))}
    out.print()
    for name, words in facts.items():  # no table: a command is copied as one line
        out.print(f"{name:<11}  {clean(words)}", soft_wrap=True)


def _by_step(result: LocalResult, name: str) -> Mapping[int, float]:
    return {point["step"]: point["value"] for point in result.points if point["name"] == name}


def _model(result: LocalResult) -> str | None:
    """The name of the checkpoint with the highest score, else of the last one."""
    results = result.status.get("results") or {}
    model = results.get("best") or results.get("model")
    return model if isinstance(model, str) else None


def _next(wanted: LocalTraining, model: str) -> list[str]:
    """The command that plays the evaluations' episodes with the model, sampled as they were.

    Of a job with several environments, the app alone: their seeds and configs differ.
    """
    document, command = wanted.config.document, ["taskapp", "eval", wanted.task_app]
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
