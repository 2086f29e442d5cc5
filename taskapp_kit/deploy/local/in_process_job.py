"""Runs an RL job in one call: serves the task app in this program, submits the job, and waits for the end of the job.

    result = run_in_process_job(config_path="rl_config.toml", task_app_path="my_task_app.py", on_status=print)
    print(result.status, result.final_reward)

The task app is stopped at the end of the call. If the call ends before the job, the job continues without a task app.
In this case, the log and a note on the exception contain the job's id.
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
"""How many seconds to wait for the backend's response to a cancellation."""
LATER = "http://127.0.0.1:1"
"""A placeholder for the address of the task app while the config is checked. No requests are sent to it."""
OnStatus = Callable[[dict[str, Any]], None] | Callable[[dict[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class InProcessJobResult:
    """The result of a job.

    Attributes:
        job_id: The job's id.
        status: succeeded, completed, failed, cancelled or canceled.
        final_reward: The final reward, or None if the backend did not report it.
        metrics: Numbers by name.
        task_app_url: The address at which the backend reached the task app. The task app has already been stopped.
        job: The backend's last report.
    """

    job_id: str
    status: str
    final_reward: float | None
    metrics: dict[str, Any]
    task_app_url: str
    job: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def succeeded(self) -> bool:
        """Whether the job succeeded. If it failed, `job` may contain the reason."""
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
    """Start the task app, submit the job, wait for the end of the job, and close everything.

    Blocks the calling thread. A job that fails does not raise an exception; check `status` or `succeeded`.

    Args:
        config_path: The job's TOML file.
        job_type: The type of the job. Only "rl" is supported.
        task_app_path: See InProcessTaskApp.
        app: See InProcessTaskApp.
        config: See InProcessTaskApp.
        config_factory: See InProcessTaskApp.
        backend_url: See RLJob.
        api_key: See RLJob.
        task_app_api_key: The `api_key` of InProcessTaskApp.
        port: See InProcessTaskApp.
        overrides: See RLJob.
        on_status: See RLJob.
        timeout: See RLJob.
        interval: See RLJob.
        upload_key: Whether to upload the task app's key, encrypted, to the backend, where it replaces the previous key.
            By default, a key that was created for this run is uploaded only to a backend on this machine. For a remote
            backend, the default raises BadArgument before any request.
        cancel_on_interrupt: Whether Ctrl-C, or cancelling the calling asyncio task, also cancels the job. By default,
            the job continues.
        allow_experimental: See RLJob.
        idempotency_key: See RLJob.
        trainer_id: See RLJob.
        model: See RLJob.
        task_app: Additional arguments of InProcessTaskApp.

    Raises:
        BadArgument: An argument is invalid. The job was not submitted.
        JobConfigError: The config is invalid. The job was not submitted.
        TunnelError: The tunnel could not be opened.
        TaskAppError: The task app is not healthy.
        BackendError: The backend rejected a request or failed.
        JobTimeout: The job ran longer than `timeout`. It is a TimeoutError.
    """
    given = {**locals(), **task_app}
    del given["task_app"]
    notes: list[str] = []
    try:
        return run(_run(notes, **given))
    except KeyboardInterrupt as error:
        for note in notes:  # the coroutine received only a cancellation, so the notes are added to this exception here
            error.add_note(note)
        raise


async def run_in_process_job_async(
    *, config_path: str | Path, job_type: str = "rl", **given: Any
) -> InProcessJobResult:
    """Do the same as `run_in_process_job` without blocking the event loop. `on_status` may be async."""
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
    timeout: float = 7200.0,  # noqa: ASYNC109 (documented name)
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
        raise BadArgument(f"job_type {str(job_type)[:40]!r} is unknown. Expected 'rl'.")

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

    # Checks the whole config before a port is bound, a tunnel is opened or a job is submitted.
    backend = made(LATER, task_app_api_key).backend_url.removesuffix("/api")
    async with InProcessTaskApp(backend_url=backend, api_key=task_app_api_key, **task_app) as served:
        if upload_key or (upload_key is None and served.key_was_minted and on_loopback(backend)):
            await _upload(backend, api_key, served.api_key)
        elif served.key_was_minted and upload_key is None:
            raise BadArgument(
                f"No API key is set, and the backend at {backend} does not have the key that was created for this run.",
                hint="Set ENVIRONMENT_API_KEY to the task app's key that was uploaded to the backend, "
                "or pass upload_key=True to replace the uploaded key.",
            )
        elif served.key_was_minted:
            log.warning(
                "the task app's key was created for this run and is not uploaded, so the backend does not have the key"
            )
        job = made(served.url, served.api_key)
        job_id = ""
        try:
            job_id = await job.submit_async()
            log.info("job %s was submitted to %s, and its task app is reachable at %s", job_id, backend, served.url)
            last = await job.poll_until_complete_async(timeout=timeout, interval=interval, on_status=on_status)
        except BaseException as error:
            interrupted = isinstance(error, (KeyboardInterrupt, asyncio.CancelledError))
            if not job_id and not interrupted:
                raise  # the error contains the backend's reason
            # The job continues at the backend and costs money, so its id must be reported.
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
        raise BadArgument("The task app has no key to upload.", hint="Set ENVIRONMENT_API_KEY.")
    await setup_environment_api_key_async(backend, backend_key(api_key), key)
    log.info("the task app's key was encrypted and uploaded to %s as ENVIRONMENT_API_KEY", backend)


async def _left(job: RLJob, job_id: str, backend: str, *, cancel: bool) -> str:
    """Cancel the job if `cancel` is set, and return a sentence about the job's state."""
    if not job_id:
        note = f"The submission was interrupted, so a job with an unknown id may run at {backend} without its task app."
        log.warning(note)
        return note
    why = ""
    if cancel:
        try:
            await asyncio.wait_for(job.cancel_async(), CANCEL_SECONDS)
        except Exception as error:
            why = f" (it could not be cancelled: {type(error).__name__})"
        else:
            note = f"Job {job_id} at {backend} is being cancelled."
            log.warning(note)
            return note
    note = f"Job {job_id} at {backend} is still running{why}. Its task app is closed, so its rollouts will fail."
    log.warning(note)
    return note
