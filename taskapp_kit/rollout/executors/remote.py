"""Rollouts in worker processes: sends rollouts to workers, collects their events, and converts errors to failures.

`main.py` is the program of a worker, and `pool.py` implements the pool of processes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Awaitable, Sequence
from typing import Any

import orjson

from taskapp_kit.config import child_environment
from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.discovery import reference_of
from taskapp_kit.declare.specs import AppSpec, EnvironmentSpec
from taskapp_kit.errors import DiscoveryError, Failure, FieldProblem, RequestError, Saturated, Unavailable
from taskapp_kit.records.events import EncodedEvents, Event, from_json, joined, recording_to_json
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.admission import Listener, RunningRollout, with_id
from taskapp_kit.rollout.episode.plan import EpisodePlan
from taskapp_kit.rollout.event_buffer import EventBuffer
from taskapp_kit.rollout.executors.model_calls import answer_worker
from taskapp_kit.rollout.executors.pool import (
    JobHung,
    JobLost,
    JobRaised,
    NeverBegan,
    ProcessPool,
    StartFailed,
    WorkerDied,
)
from taskapp_kit.rollout.executors.protocol import JOBS_AT_ONCE, BadFrame, Frame
from taskapp_kit.rollout.policy.options import CALLERS
from taskapp_kit.system.child_python import python_command
from taskapp_kit.wire.chat.conversation import Ask
from taskapp_kit.wire.rollout import RolloutRequest

log = logging.getLogger("taskapp_kit.service")

ISOLATED_AT_ONCE = 4
"""How many rollouts with isolation="process" run at once, each in its own process. Others wait."""


class RolloutLost(Exception):
    """A rollout did not end in its worker. `failure` gives the reason."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class WorkerReport:
    """The events of one rollout that a worker has sent. listener: receives them on the event loop.

    An EventBuffer receives encoded events, and any other listener decoded events. The private final state is removed from
    them.
    """

    def __init__(self, listener: Listener | None = None) -> None:
        self.pictures: dict[str, bytes] = {}
        self._listener = listener
        self._pieces: list[bytes] = []

    def take(self, frame: Frame, blob: bytes) -> int:
        """Add the events and images of a frame, and return the number of bytes that they occupied in the blob."""
        used: int = frame["text"]
        piece = blob[:used]
        pictures = {}
        for name, size in frame["pictures"]:
            pictures[name] = blob[used : used + size]
            used += size
        self.pictures.update(pictures)
        if piece:
            self._pieces.append(piece)
            # passed on without decoding, because the listener would only encode them again
            if isinstance(self._listener, EventBuffer):
                self._listener.take(piece, pictures)
            elif self._listener is not None:
                for item in orjson.loads(b"[%s]" % piece):
                    self._listener(from_json(item, self.pictures))
        return used

    def rest(self, events: Sequence[Event]) -> None:
        """Send the remaining events to the listener if the rollout did not end in its worker."""
        if self._listener is not None:
            for event in events[len(self.encoded()) :]:
                self._listener(event)

    def encoded(self) -> EncodedEvents:
        """Return the events so far in encoded form."""
        return joined(self._pieces)

    def events(self) -> list[Event]:
        """Return the events so far."""
        return [from_json(item, self.pictures) for item in self.encoded()]


class WorkerPool:
    """The workers of one app. Use it on one event loop, in a thread that lives as long as the service.

    workers: processes shared by many rollouts. With isolation="process" each rollout has a dedicated process.
    """

    def __init__(self, app: TaskApp, spec: AppSpec, *, workers: int) -> None:
        self.app = app
        self.workers = workers
        isolated = any(environment.isolation == "process" for environment in spec.environments.values())
        self.max_isolated = max(ISOLATED_AT_ONCE, workers, 2 * (os.cpu_count() or 1)) if isolated else 0
        self._pool: ProcessPool | None = None
        self._starting: asyncio.Task[ProcessPool] | None = None
        self._closed = False

    def plays(self, environment: EnvironmentSpec) -> bool:
        """Return whether rollouts of this environment run in worker processes."""
        return bool(self.workers) or environment.isolation == "process"

    def places(self, environment: EnvironmentSpec) -> int:
        """Return how many rollouts can run at once in all environments that use the same kind of process as this environment."""
        return self.max_isolated if environment.isolation == "process" else self.workers * JOBS_AT_ONCE

    async def start(self) -> ProcessPool:
        """Return the pool after its shared processes are ready. Raises Unavailable with the message of a failed process.

        If a caller is cancelled, the start continues, because other callers may be waiting for it.
        """
        if self._pool is None:
            if self._starting is None or self._starting.done():
                self._starting = asyncio.create_task(self._started())
                self._starting.add_done_callback(_retrieve_exception)
            # shielded, because the first rollout starts the processes for all and may be cancelled
            self._pool = await asyncio.shield(self._starting)
        return self._pool

    async def _started(self) -> ProcessPool:
        if self._closed:
            raise Saturated("The server is stopping.")
        try:
            reference = reference_of(self.app)
        except DiscoveryError as error:
            raise Unavailable(f"Worker processes cannot run this app: {error.message}", hint=error.hint) from None
        folders = os.pathsep.join(sys.path)
        pool = ProcessPool(
            python_command("taskapp_kit.rollout.executors.main", reference, folders),
            environment=child_environment(),
            shared=self.workers,
            exclusive=self.max_isolated,
        )
        try:
            await pool.start()
        except StartFailed as error:
            raise Unavailable(f"{error.reason}.", hint="The server's log contains the process's output.") from None
        return pool

    async def play(
        self,
        rollout: RunningRollout,
        report: WorkerReport,
        *,
        ask: Ask,
        versions: dict[str, str | None],
        written: bool,
        live: bool,
    ) -> Rollout:
        """Run one rollout in a worker. Time in the queue counts towards the rollout's deadline.

        Args:
            rollout: The admitted rollout.
            report: Receives the events while the rollout runs, even if this method raises.
            ask: Calls models.
            versions: The versions of the kit, the app and the commit.
            written: Whether the worker encodes the response. `Rollout.body` then contains it without the timing.
            live: Whether the worker sends each event immediately.

        Raises:
            RequestError: The environment's constructor rejected env.config, or the request cannot be sent.
            RolloutLost: The rollout did not end in its worker.
            Saturated: The server is stopping.
            Unavailable: The worker processes cannot start.
        """
        began = time.monotonic()
        pool = await self.start()
        plan, seconds = rollout.plan, rollout.seconds
        spec = plan.environment
        job: Frame = {
            "request": _settled(plan),
            "recording": None if plan.recording is None else recording_to_json(plan.recording),
            "rollout_id": rollout.rollout_id,
            "created_at": rollout.created_at,
            "versions": versions,
            "written": written,
            "live": live,
            "skip_judges": plan.skip_judges,
            "max_calls": plan.max_calls,
            "session": plan.policy in CALLERS,
        }

        def on_frame(frame: Frame, blob: bytes) -> Awaitable[Frame | None] | None:
            # Only this process has the models' addresses and keys, so that author's code in a worker cannot read them.
            if "chat" in frame:
                return answer_worker(ask, frame)
            report.take(frame, blob)
            return None

        try:
            frame, blob = await pool.run(
                job,
                exclusive=spec.isolation == "process",
                seconds=seconds - (time.monotonic() - began),
                step_seconds=spec.step_timeout_seconds,
                on_frame=on_frame,
            )
        except NeverBegan as error:
            if self._closed:
                raise Saturated("The server is stopping.") from None
            raise RolloutLost(_never_began(error, seconds)) from None
        except JobLost as error:
            raise RolloutLost(_lost(error, seconds, spec.step_timeout_seconds)) from None
        # only the request can contain values that JSON cannot represent; taskapp-kit builds the rest of the frame
        except (BadFrame, TypeError, ValueError) as error:
            message = f"The request cannot be sent to a worker process: {error}."
            raise RequestError(message, fields=(FieldProblem(("body",), message),)) from None
        if "refused" in frame:
            raise _refused(frame["refused"])
        used = report.take(frame, blob)
        body = blob[used:] if frame["body"] else None
        return Rollout.from_json(frame["outcome"], plan.request, plan.policy, report.encoded(), report.pictures, body)

    def health(self) -> dict[str, int]:
        """Return the number of live worker processes, and the totals of replaced and killed processes and hung rollouts."""
        if self._pool is None:
            return {"alive": 0, "replaced": 0, "killed": 0, "hung": 0, "waiting": 0}
        counted = self._pool.counters()
        return {name: counted[name] for name in ("alive", "replaced", "killed", "hung", "waiting")}

    async def close(self, grace_seconds: float = 0.0) -> None:
        """End the processes. Rollouts that are still running after the grace period are cancelled."""
        self._closed = True
        if self._starting is not None:
            await asyncio.wait((self._starting,))
            if self._starting.exception() is None:
                await self._starting.result().close(grace_seconds)


def _retrieve_exception(task: asyncio.Task[ProcessPool]) -> None:
    """Retrieve the exception, because asyncio would log it if all waiting callers have left."""
    if not task.cancelled():
        task.exception()


def _settled(plan: EpisodePlan) -> dict[str, Any]:
    """Return the request as JSON with the resolved split and seed, so that the worker plans the same episode."""
    body = RolloutRequest.model_dump(plan.request, exclude_unset=True)
    env = body.setdefault("env", {})
    # The worker plans the request again, because a plan contains objects that JSON cannot represent. A seed that was
    # drawn here must not be drawn again.
    env["seed"] = plan.seed
    env["config"] = {**env.get("config", {}), "split": plan.split}
    return body


def _refused(frame: dict[str, Any]) -> RequestError:
    fields = tuple(FieldProblem(tuple(loc), message, kind) for loc, message, kind in frame["fields"])
    return RequestError(frame["message"], fields=fields, code=frame["code"], hint=frame["hint"])


def _never_began(error: NeverBegan, seconds: float) -> Failure:
    place = f"no worker process became free within the rollout's deadline of {seconds:g} s"
    hint = "Send fewer rollouts at once, or increase safety.max_time_s."
    return _logged(Failure("timeout", "no_thread", f"{place}, so the episode did not begin", hint), error)


def _lost(error: JobLost, seconds: float, step_seconds: float | None) -> Failure:
    """Return the failure of a rollout whose worker died, was killed, abandoned the rollout or could not start."""
    hung_in = error.hung_in if isinstance(error, JobHung) else None
    if isinstance(error, WorkerDied):
        hung_in = error.killed_for if error.killed_for in ("step", "deadline") else None
        if error.killed_for in ("cancelled", "closing"):
            return _logged(Failure("cancelled", "cancelled", "the server stopped and cancelled the rollout"), error)
    if hung_in == "step":
        message = f"one step took longer than the environment's step_timeout_seconds of {step_seconds:g} s"
        failure = Failure(
            "timeout", "step_timeout", message, "Fix the environment, or increase its step_timeout_seconds."
        )
    elif hung_in == "deadline":
        message = f"the environment did not return within the rollout's deadline of {seconds:g} s"
        failure = Failure("timeout", "deadline", message, "Add timeouts to the environment's blocking calls.")
    elif isinstance(error, WorkerDied):
        message = f"the worker process died during the rollout: {error.reason}"
        failure = Failure("environment", "worker_died", message, "The server's log contains the process's output.")
    elif isinstance(error, StartFailed):
        failure = Failure(
            "environment", "worker_start_failed", error.reason, "The server's log contains the process's output."
        )
    else:
        message = f"the worker process could not return the rollout: {error.reason}"
        failure = Failure("environment", "worker_failed", message)
    return _logged(failure, error)


def _logged(failure: Failure, error: JobLost) -> Failure:
    with_id(failure)
    detail = f"\n{error.frame.get('traceback')}" if isinstance(error, JobRaised) else ""
    log.error("%s: %s (error_id %s)%s", failure.message, error.reason, failure.error_id, detail)
    return failure
