"""Runs an RL job in one call: serves the task app in this program, submits the job to a backend, waits for its end.

    result = run_in_process_job(config_path="rl_config.toml", task_app_path="my_task_app.py", on_status=print)
    print(result.status, result.final_reward)

The job needs its task app for as long as it runs, and the task app ends with this call. So if the call ends before the job,
the log and a note on the exception name the job that continues without one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taskapp_kit.client.blocking_portal import run
from taskapp_kit.deploy.local.in_process import InProcessTaskApp
from taskapp_kit.deploy.tunnel.tunnel_settings import on_loopback
from taskapp_kit.errors import BadArgument
from taskapp_kit.jobs.client.environment_key import setup_environment_api_key_async
from taskapp_kit.jobs.client.rl_job import RLJob, backend_key

log = logging.getLogger("taskapp_kit.deploy")

CANCEL_SECONDS = 10.0
"""The limit on a backend's answer to a cancellation while the caller waits to exit."""
LATER = "http://127.0.0.1:1"
"""Replaces the task app's address while the config is checked, before there is one. It is never called."""
OnStatus = Callable[[dict[str, Any]], None] | Callable[[dict[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class InProcessJobResult:
    """The end of the job.

    Attributes:
        job_id: of the job.
        status: succeeded, completed, failed, cancelled or canceled.
        final_reward: None when the backend reported none.
        metrics: name to number.
        task_app_url: the task app's address for the backend; it is closed by now.
        job: the backend's last report.
    """

    job_id: str
    status: str
    final_reward: float | None
    metrics: dict[str, Any]
    task_app_url: str
    job: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def succeeded(self) -> bool:
        """Whether the job succeeded; if not, `job` may say why."""
        return self.status in ("succeeded", "completed")


def run_in_process_job(
    *,
    config_path: str | Path,
    job_type: str = "rl",
    task_app_path: str | Path | None = None,
    app: Any = None,
    config: Any = None,
    config_factory: Callable[[], Any] | None = None,
    backend_url: str | None = None,
    api_key: str | None = None,
    task_app_api_key: str | None = None,
    port: int = 8114,
    overrides: Mapping[str, Any] | None = None,
    on_status: OnStatus | None = None,
    timeout: float = 7200.0,
    interval: float = 10.0,
    upload_key: bool | None = None,
    cancel_on_interrupt: bool = False,
    allow_experimental: bool | None = None,
    idempotency_key: str | None = None,
    trainer_id: str | None = None,
    model: str | None = None,
    **task_app: Any,
) -> InProcessJobResult:
    """Starts the task app, submits the job, waits for its end, closes everything. Blocks.

    A job that fails is a result like another: look at `status`.

    Args:
        config_path: the job's TOML.
        job_type: "rl".
        task_app_path: as of InProcessTaskApp, like app, config, config_factory and port.
        app: see task_app_path.
        config: see task_app_path.
        config_factory: see task_app_path.
        backend_url: as of RLJob, like api_key, overrides, on_status, timeout, interval, allow_experimental,
            idempotency_key, trainer_id and model.
        api_key: see backend_url.
        task_app_api_key: the `api_key` of InProcessTaskApp.
        port: see task_app_path.
        overrides: see backend_url.
        on_status: see backend_url.
        timeout: see backend_url.
        interval: see backend_url.
        upload_key: whether the task app's key is stored, sealed, at the backend, where it replaces the previous one.
            None: a key created for this run is uploaded to a backend on this machine, which could not know it
            otherwise; for a remote backend it is refused (BadArgument) before any request: nothing is uploaded without
            the caller's consent.
        cancel_on_interrupt: whether Ctrl-C (or a cancellation) also cancels the job; else it is left running.
        allow_experimental: see backend_url.
        idempotency_key: see backend_url.
        trainer_id: see backend_url.
        model: see backend_url.
        task_app: further arguments of InProcessTaskApp.

    Raises:
        BadArgument: an argument cannot be used; raised before anything is started.
        JobConfigError: the config cannot be used; raised before anything is started.
        TunnelError: the tunnel could not be opened.
        TaskAppError: the task app does not answer well.
        BackendError: the backend refused or broke.
        JobTimeout: the job ran longer than `timeout`; it is a TimeoutError.
    """
    given = {**locals(), **task_app}
    del given["task_app"]
    notes: list[str] = []
    try:
        return run(_run(notes, **given))
    except KeyboardInterrupt as error:
        for note in notes:  # the coroutine saw only a cancellation, so it could not add them to this exception
            error.add_note(note)
        raise


async def run_in_process_job_async(
    *, config_path: str | Path, job_type: str = "rl", **given: Any
) -> InProcessJobResult:
    """Like `run_in_process_job`, with the same arguments, without blocking the event loop. on_status may be async."""
    return await _run([], config_path=config_path, job_type=job_type, **given)


async def _run(
    notes: list[str],
    *,
    config_path: str | Path,
    job_type: str,
    backend_url: str | None = None,
    api_key: str | None = None,
    task_app_api_key: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    on_status: OnStatus | None = None,
    timeout: float = 7200.0,  # noqa: ASYNC109 (the name that the guide gives it)
    interval: float = 10.0,
    upload_key: bool | None = None,
    cancel_on_interrupt: bool = False,
    allow_experimental: bool | None = None,
    idempotency_key: str | None = None,
    trainer_id: str | None = None,
    model: str | None = None,
    **task_app: Any,
) -> InProcessJobResult:
    if job_type != "rl":
        raise BadArgument(f"job_type {str(job_type)[:40]!r} is unknown; expected rl.")

    def made(url: str, key: str | None) -> RLJob:
        return RLJob.from_config(
            config_path,
            backend_url=backend_url,
            api_key=api_key,
            task_app_url=url,
            task_app_api_key=key,
            allow_experimental=allow_experimental,
            overrides=overrides,
            idempotency_key=idempotency_key,
            trainer_id=trainer_id,
            model=model,
        )

    # The config is checked as a whole before a port, a tunnel or a job exists.
    backend = made(LATER, task_app_api_key).backend_url.removesuffix("/api")
    async with InProcessTaskApp(backend_url=backend, api_key=task_app_api_key, **task_app) as served:
        if upload_key or (upload_key is None and served.key_was_minted and on_loopback(backend)):
            await _upload(backend, api_key, served.api_key)
        elif served.key_was_minted and upload_key is None:
            raise BadArgument(
                f"The task app has no key, and the backend at {backend} would have to receive a new one.",
                hint="Set ENVIRONMENT_API_KEY to the key that it has; or upload_key=True stores a new one in its place.",
            )
        elif served.key_was_minted:
            log.warning("the task app's key was created for this run and is not uploaded: the backend cannot know it")
        job = made(served.url, served.api_key)
        job_id = ""
        try:
            job_id = await job.submit_async()
            log.info("job %s is at %s, its task app at %s", job_id, backend, served.url)
            last = await job.poll_until_complete_async(timeout=timeout, interval=interval, on_status=on_status)
        except BaseException as error:
            interrupted = isinstance(error, (KeyboardInterrupt, asyncio.CancelledError))
            if not job_id and not interrupted:
                raise  # the backend refused it, and said why
            # The job goes on elsewhere and costs money, so its id must not be lost with this call.
            note = await _left(job, job_id, backend, cancel=interrupted and cancel_on_interrupt)
            notes.append(note)
            error.add_note(note)
            raise
        metrics = last.get("metrics")
        return InProcessJobResult(
            job_id=job_id,
            status=str(last["status"]),
            final_reward=last.get("final_reward"),
            metrics=dict(metrics) if isinstance(metrics, Mapping) else {},
            task_app_url=served.url,
            job=last,
        )


async def _upload(backend: str, api_key: str | None, key: str | None) -> None:
    if key is None:
        raise BadArgument("There is no key of the task app to upload.", hint="Set ENVIRONMENT_API_KEY.")
    await setup_environment_api_key_async(backend, backend_key(api_key), key)
    log.info("the task app's key is stored, sealed, at %s as ENVIRONMENT_API_KEY", backend)


async def _left(job: RLJob, job_id: str, backend: str, *, cancel: bool) -> str:
    """A sentence on the state of the job, which is cancelled first if `cancel`."""
    if not job_id:
        note = f"A job was being submitted to {backend} and may run there, under an unknown id; its task app is closed."
        log.warning(note)
        return note
    why = ""
    if cancel:
        try:
            await asyncio.wait_for(job.cancel_async(), CANCEL_SECONDS)
        except Exception as error:
            why = f" (it could not be cancelled: {type(error).__name__})"
        else:
            note = f"Job {job_id} at {backend} was asked to cancel."
            log.warning(note)
            return note
    note = f"Job {job_id} at {backend} was left running{why}; its task app is closed, so its rollouts will fail."
    log.warning(note)
    return note
