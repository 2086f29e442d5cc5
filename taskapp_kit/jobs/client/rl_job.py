"""`RLJob` submits a reinforcement-learning job from a TOML file, follows it and returns its results.

    job = RLJob.from_config("rl_config.toml")
    job.submit()
    result = job.poll_until_complete(on_status=print)

If the backend's engine updates no weights, the logger `taskapp_kit.jobs.client.rl_job` warns once, when the job has a
reward.

Every method that calls the backend blocks, and has an asynchronous variant with the suffix `_async`. A blocking
method can be called inside a running event loop. It then blocks the loop, and callbacks run on another thread.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from taskapp_kit.client.blocking_portal import iterate, run
from taskapp_kit.client.checks import check_task_app
from taskapp_kit.config import process_variable
from taskapp_kit.errors import (
    BackendError,
    JobConfigError,
    JobError,
    JobFailed,
    TaskAppError,
    TaskAppUnreachable,
)
from taskapp_kit.jobs.client.backend import BackendClient, api_base
from taskapp_kit.jobs.client.backend import backend_url as backend_address
from taskapp_kit.jobs.client.job_watch import OnStatus, watch
from taskapp_kit.jobs.client.stream import all_events, all_metrics
from taskapp_kit.net.envelope import ended, sentence
from taskapp_kit.net.http import header_key
from taskapp_kit.records.job_status import SUCCEEDED, TERMINAL, job_id_of, over, read_status, succeeded, weights_note

if TYPE_CHECKING:
    from taskapp_kit.jobs.client.config.rl_config import RlConfig

log = logging.getLogger("taskapp_kit.jobs.client.rl_job")
Answer = TypeVar("Answer")

FLAT = ("task_url", "task_app_url", "backend", "backend_url", "model")
"""Overrides that set arguments of `from_config` instead of tables of the file. Some of them come from the SDK."""

__all__ = ["SUCCEEDED", "TERMINAL", "RLJob"]


class RLJob:
    """One job. Create it with `from_config` to submit a job, or with `from_job_id` to follow a submitted job.

    Args:
        backend_url: The backend's address.
        api_key: The backend's key.
        job_id: The id of a submitted job, or None.
        payload: The request body that `submit` sends.
        task_app_api_key: The task app's key. It is used to check the task app before the job is submitted.
        idempotency_key: Makes a repeated `submit` return the first job.
        config: The config that the payload was built from.

    Raises:
        BackendError: The backend rejected a request. `status` is the HTTP status.
        BackendUnreachable: The backend did not respond.
        JobError: A method needs a submitted job, but this job was not submitted.
    """

    def __init__(
        self,
        *,
        backend_url: str,
        api_key: str,
        job_id: str | None = None,
        payload: Mapping[str, Any] | None = None,
        task_app_api_key: str | None = None,
        idempotency_key: str | None = None,
        config: RlConfig | None = None,
    ) -> None:
        self.backend_url = api_base(backend_url)
        self.warnings = () if config is None else tuple(config.warnings)
        """Probable mistakes in the config file, one sentence each."""
        self._api_key = api_key
        self._job_id = job_id
        self._payload = payload
        self._task_app_api_key = task_app_api_key
        self._idempotency_key = idempotency_key
        self._config = config
        self._noted = False

    @classmethod
    def from_config(
        cls,
        config_path: str | Path,
        backend_url: str | None = None,
        api_key: str | None = None,
        task_app_url: str | None = None,
        task_app_api_key: str | None = None,
        allow_experimental: bool | None = None,
        overrides: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        trainer_id: str | None = None,
        model: str | None = None,
    ) -> RLJob:
        """Return a job to submit. Sends no request.

        Args:
            config_path: The RL config, a TOML file.
            backend_url: Defaults to BACKEND_BASE_URL.
            api_key: The backend's key. Defaults to SYNTH_API_KEY.
            task_app_url: Defaults to TASK_APP_URL, then the file's `services.task_url`.
            task_app_api_key: The task app's key. Defaults to ENVIRONMENT_API_KEY. If neither is set, the backend checks
                the task app with the key that it has stored.
            allow_experimental: Sent to the backend unless None.
            overrides: Nested tables that replace values of the file. They are validated with the file.
            idempotency_key: Makes it safe to retry a submission that got no response: no second job is created.
            trainer_id: The id of one of the backend's trainers.
            model: Replaces the file's model.

        Raises:
            FileNotFoundError: The file does not exist.
            JobConfigError: A value is invalid. This is a ConfigError and a ValueError.
        """
        from taskapp_kit.jobs.client.config.rl_config import load_rl_config
        from taskapp_kit.jobs.client.job_payload import build_rl_payload

        changed, named = split_overrides(overrides)
        config = load_rl_config(config_path, changed or None)
        url = api_base(backend_address(backend_url or named.get("backend")))
        payload = build_rl_payload(
            config,
            task_app_url=task_app_url or named.get("task_url"),
            backend_url=url,
            model=model or named.get("model"),
            trainer_id=trainer_id,
            allow_experimental=allow_experimental,
        )
        return cls(
            backend_url=url,
            api_key=backend_key(api_key),
            payload=payload,
            task_app_api_key=task_app_key(task_app_api_key),
            idempotency_key=idempotency_key,
            config=config,
        )

    @classmethod
    def from_job_id(cls, job_id: str, backend_url: str | None = None, api_key: str | None = None) -> RLJob:
        """Return a job that was submitted before.

        Args:
            job_id: The job's id.
            backend_url: Defaults to BACKEND_BASE_URL.
            api_key: The backend's key. Defaults to SYNTH_API_KEY.

        Raises:
            JobConfigError: The id is empty, or no address or key is set.
        """
        if not job_id or not job_id.strip():
            raise JobConfigError("The job's id is empty.", hint="Pass the id that submit() returned.")
        return cls(backend_url=backend_address(backend_url), api_key=backend_key(api_key), job_id=job_id.strip())

    @property
    def job_id(self) -> str | None:
        """The job's id at the backend, or None before `submit`."""
        return self._job_id

    @property
    def payload(self) -> dict[str, Any] | None:
        """A copy of the request that `submit` sends, or None for a job from `from_job_id`."""
        return None if self._payload is None else copy.deepcopy(dict(self._payload))

    @property
    def task_app_url(self) -> str | None:
        """The address of the job's task app, or None for a job from `from_job_id`."""
        data = (self._payload or {}).get("data")
        return data.get("endpoint_base_url") if isinstance(data, Mapping) else None

    # blocking

    def submit(self) -> str:
        """Check the task app's health, submit the job to the backend, and return the job's id.

        Raises:
            TaskAppError: The task app cannot be used. Nothing was submitted.
            BackendError: The backend rejected the job.
            BackendUnreachable: The backend did not respond.
            JobError: The job was submitted before.
        """
        return run(self.submit_async())

    def get_status(self) -> dict[str, Any]:
        """Return the job's current `status`, `progress`, `metrics` and other fields."""
        return run(self.get_status_async())

    def poll_until_complete(
        self, *, timeout: float = 7200.0, interval: float = 10.0, on_status: OnStatus | None = None
    ) -> dict[str, Any]:
        """Wait until the job has ended, even while the backend is unreachable or answers 5xx.

        Args:
            timeout: Seconds to wait in total.
            interval: Seconds between polls.
            on_status: Called after the first poll, and whenever the status, progress or metrics have changed. If it
                raises an exception, waiting stops and the exception is raised.

        Returns:
            The job's last status, with `final_reward` and `metrics`. The job may have succeeded or failed.

        Raises:
            JobTimeout: The job did not end in time, and continues. This is a TimeoutError.
            BackendError: The job is unknown, or the key is rejected.
        """
        return run(self.poll_until_complete_async(timeout=timeout, interval=interval, on_status=on_status))

    def get_results(self) -> dict[str, Any]:
        """Return the last status of a job that succeeded, with `final_reward`, `metrics` and `results`.

        Raises:
            JobFailed: The job failed, was cancelled, or has not ended.
        """
        return run(self.get_results_async())

    def events(self, since_seq: int = 0) -> list[dict[str, Any]]:
        """Return all events so far whose number is greater than `since_seq`."""
        return run(self.events_async(since_seq))

    def metrics(self) -> list[dict[str, Any]]:
        """Return all points of the metrics so far, each as `{name, value, step, …}`."""
        return run(self.metrics_async())

    def cancel(self) -> dict[str, Any]:
        """Cancel the job."""
        return run(self.cancel_async())

    def start(self) -> dict[str, Any]:
        """Restart a failed or cancelled job from its last checkpoint, and return its status.

        The call has no effect if the job has another status, or if the backend's engine stores no checkpoints.
        """
        return run(self.start_async())

    def stream(self, since_seq: int = 0) -> Iterator[dict[str, Any]]:
        """Yield events as they occur, without gaps, until the job has ended."""
        return iterate(lambda: self.stream_async(since_seq))

    # asynchronous

    async def submit_async(self) -> str:
        """See `submit`."""
        if self._job_id is not None:
            raise JobError(f"The job was already submitted as {self._job_id}.", hint="Create another RLJob.")
        if self._payload is None:
            raise JobError("The job has no config to submit.", hint="Create the job with RLJob.from_config.")
        async with self._client() as client:
            if self.task_app_url is not None:
                await _check_health(self.task_app_url, self._task_app_api_key, client)
            try:
                answer = await client.create_job(self._payload, idempotency_key=self._idempotency_key)
            except BackendError as error:
                if self._config is not None:
                    error.message = self._config.with_lines(error.message, error.fields)
                raise
        job_id = job_id_of(answer)
        if job_id is None:
            raise BackendError(f"{self.backend_url}/rl/jobs returned no job id. Check the backend's log.", status=200)
        self._job_id = job_id
        return job_id

    async def get_status_async(self) -> dict[str, Any]:
        """See `get_status`."""
        return self._with_note(read_status(await self._ask(BackendClient.get_job), self._submitted()))

    async def poll_until_complete_async(
        self,
        *,
        timeout: float = 7200.0,  # noqa: ASYNC109 — the guides' name
        interval: float = 10.0,
        on_status: OnStatus | None = None,
    ) -> dict[str, Any]:
        """See `poll_until_complete`. on_status may be asynchronous here."""
        following = partial(watch, timeout_seconds=timeout, interval_seconds=interval, on_status=on_status)
        return self._with_note(await self._ask(following))

    async def get_results_async(self) -> dict[str, Any]:
        """See `get_results`."""
        job = await self.get_status_async()
        if succeeded(job):
            return job
        if not over(job):
            raise JobFailed(
                f"Job {job['job_id']} has no results yet. It is {job['status']}.", job=job, hint="Wait until it ends."
            )
        cause = job.get("error")
        cause = cause.get("message") if isinstance(cause, Mapping) else cause
        why = sentence(sentence(cause, self._api_key), self._task_app_api_key)
        raise JobFailed(f"Job {job['job_id']} {job['status']}{f': {ended(why)}' if why else '.'}", job=job)

    async def events_async(self, since_seq: int = 0) -> list[dict[str, Any]]:
        """See `events`."""
        return await self._ask(lambda client, job_id: all_events(client, job_id, since_seq))

    async def metrics_async(self) -> list[dict[str, Any]]:
        """See `metrics`."""
        return await self._ask(all_metrics)

    async def cancel_async(self) -> dict[str, Any]:
        """See `cancel`."""
        return await self._ask(BackendClient.cancel)

    async def start_async(self) -> dict[str, Any]:
        """See `start`."""
        return await self._ask(BackendClient.start_job)

    async def stream_async(self, since_seq: int = 0) -> AsyncGenerator[dict[str, Any], None]:
        """See `stream`."""
        job_id = self._submitted()
        async with self._client() as client, aclosing(client.stream(job_id, since_seq)) as stream:
            async for event in stream:
                yield event

    async def _ask(self, ask: Callable[[BackendClient, str], Coroutine[Any, Any, Answer]]) -> Answer:
        """Return the backend's response to one request about the job."""
        job_id = self._submitted()
        async with self._client() as client:
            return await ask(client, job_id)

    def _client(self) -> BackendClient:
        return BackendClient(self.backend_url, self._api_key)

    def _with_note(self, job: dict[str, Any]) -> dict[str, Any]:
        """Return the job unchanged. Warn once if it has a reward although no weights were updated."""
        note = weights_note(job)
        if note and not self._noted and job.get("final_reward") is not None:
            self._noted = True
            log.warning("job %s: %s", job["job_id"], note)
        return job

    def _submitted(self) -> str:
        if self._job_id is None:
            raise JobError("The job has not been submitted yet.", hint="Call submit() first.")
        return self._job_id

    def __repr__(self) -> str:
        return f"RLJob(job_id={self._job_id!r}, backend_url={self.backend_url!r})"


async def _check_health(url: str, key: str | None, backend: BackendClient) -> None:
    """Check a task app's health. Raises TaskAppError if the task app cannot be used.

    If `key` is None, the backend checks the task app with the key that it has stored.
    """
    wrong = next((finding for finding in await check_task_app(url, key) if not finding.ok), None)
    if wrong is None:
        return
    if wrong.part == "key" and key is None:
        with suppress(BackendError):
            if (await backend.verify_task_app(url)).get("any_ok") is True:
                return
    message = f"The job was not submitted, because its task app at {url} cannot be used: {ended(wrong.found)}"
    if wrong.part == "task app":
        raise TaskAppUnreachable(message, code="unreachable", hint=wrong.do)
    raise TaskAppError(message, code="unauthorised" if wrong.part == "key" else "contract", hint=wrong.do)


def backend_key(given: str | None) -> str:
    """Return the given key or SYNTH_API_KEY. Raises JobConfigError if neither is set."""
    key = header_key(given, "The backend's key") or header_key(process_variable("SYNTH_API_KEY"), "SYNTH_API_KEY")
    if key is None:
        raise JobConfigError("The backend's key is not set.", hint="Pass it as api_key, or set SYNTH_API_KEY.")
    return key


def task_app_key(given: str | None) -> str | None:
    """Return the given key or ENVIRONMENT_API_KEY, or None if neither is set.

    Raises ConfigError if the key is invalid.
    """
    return header_key(given, "The task app's key") or header_key(
        process_variable("ENVIRONMENT_API_KEY"), "ENVIRONMENT_API_KEY"
    )


def split_overrides(overrides: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Split overrides into tables, which are merged into the config, and strings, which are named like arguments.

    `from_config` uses the strings for the arguments that it was not given. `model` belongs to them if it is a string,
    and to the tables if it is a mapping.
    """
    tables: dict[str, Any] = {}
    arguments: dict[str, str] = {}
    for name, value in (overrides or {}).items():
        if name in FLAT and isinstance(value, str):
            arguments[{"task_app_url": "task_url", "backend_url": "backend"}.get(name, name)] = value
        else:
            tables[name] = value
    return tables, arguments
