"""An app in a worker process, which runs the parent's rollouts and sends their events as they occur. See `main.py`."""

from __future__ import annotations

import gc
import os
import sys
import time
from contextvars import Context

from taskapp_kit.config import take_parent_logging
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.errors import RequestError
from taskapp_kit.logs import configure, rollout
from taskapp_kit.records.content import images
from taskapp_kit.records.events import Event, Observed, encode_one, recording_from_json
from taskapp_kit.records.protocols import Clock, SystemClock
from taskapp_kit.rollout.episode.environment import prepare_to_serve
from taskapp_kit.rollout.episode.plan import Control
from taskapp_kit.rollout.executors.model_calls import ParentModelPort
from taskapp_kit.rollout.executors.protocol import Frame, WorkerJob
from taskapp_kit.rollout.play_and_score import RolloutPlayer
from taskapp_kit.rollout.policy.options import CALLERS, MODEL
from taskapp_kit.rollout.request import RequestPlanner
from taskapp_kit.rollout.response import write_body
from taskapp_kit.wire.chat.conversation import RemotePolicy
from taskapp_kit.wire.rollout import RolloutRequest

# Each frame wakes the parent, so events of quick steps are sent together. Sent events survive a crash of a step.
SEND_SECONDS = 0.05
"""Events older than this are sent before a step, so that they are stored if the step crashes or hangs."""
SEND_BYTES = 64 * 1024
"""If events and images have more bytes than this, they are sent before the next step."""

SWITCH_SECONDS = 0.02
"""The thread switch interval in a worker, longer than Python's default of 5 ms, because a switch begins with cold caches.

At 100 ms, a worker ran 10 % more of Crafter, but would notice a stop request 100 ms later.
"""


class Worker:
    """An app in this process. Any thread may call `play`."""

    def __init__(self, reference: str) -> None:
        """Import the app and prepare its environments. Raises DiscoveryError or DeclarationError if that fails."""
        log_format, log_level = take_parent_logging()
        configure(log_level, log_format, worker=os.getpid())
        app = find_app(reference)
        self.spec: AppSpec = app.freeze()
        self.folder = app.file.parent
        self.clock: Clock = SystemClock()
        for environment in self.spec.environments.values():
            prepare_to_serve(environment)
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20, 50)  # as in the server, because a rollout creates many objects and few cycles
        sys.setswitchinterval(SWITCH_SECONDS)

    def play(self, job: WorkerJob) -> tuple[Frame, bytes]:
        """Run one rollout, with its id in log records and in its own context. `main.py` documents the frames."""
        return Context().run(self._logged, job)

    def _logged(self, job: WorkerJob) -> tuple[Frame, bytes]:
        with rollout(job.frame["rollout_id"]):
            return self._play(job)

    def _play(self, job: WorkerJob) -> tuple[Frame, bytes]:
        frame = job.frame
        request = RolloutRequest.model_validate(frame["request"])
        recording = frame["recording"]
        control = Control()
        job.on_stop(control.end)
        sender = EventSender(job, live=frame["live"], at_calls=frame["session"])
        try:
            planner = RequestPlanner(
                self.spec, self.folder, max_calls=frame["max_calls"], skip_judges=frame["skip_judges"]
            )
            plan = planner.plan(
                request,
                recording=None if recording is None else recording_from_json(recording),
                session=frame["session"],
            )
            port = ParentModelPort(job)
            player = RolloutPlayer(self.spec, plan, self.clock, control, emit=sender, models=port)
            if plan.policy in (MODEL, *CALLERS) and isinstance(plan.actor, RemotePolicy):
                player.turns(plan.actor).run_blocking(port)
                result = player.finish()
            else:
                result = player.play()
        except RequestError as error:
            return {"refused": refusal(error)}, b""
        body = b""
        if frame["written"] and result.failure is None:
            result.rollout_id, result.created_at = frame["rollout_id"], frame["created_at"]
            result.versions = {**frame["versions"], "environment": result.version}
            body = write_body(result) or b""
        last, pieces = sender.rest()
        last["outcome"] = result.to_json()
        last["body"] = len(body)
        return last, b"".join((*pieces, body))


class EventSender:
    """Encodes and sends the events of one rollout, and reports when a step begins and ends.

    live: whether each event is sent immediately. at_calls: whether all events are sent before each call of the policy.
    """

    def __init__(self, job: WorkerJob, *, live: bool, at_calls: bool = False) -> None:
        self._job = job
        self._live = live
        self._at_calls = at_calls
        self._seq = 0
        self._lines: list[bytes] = []
        self._pictures: dict[str, bytes] = {}
        self._known: set[str] = set()
        self._bytes = 0
        self._sent_at = time.monotonic()

    def __call__(self, event: Event) -> None:
        """Handle one event. Called in the rollout's thread."""
        kind = event.kind
        if kind == "stepped":
            self._job.step_ends()
        if kind in ("observed", "stepped"):
            self._see(event)
        line = encode_one(self._seq, event)
        self._seq += 1
        self._lines.append(line)
        self._bytes += len(line)
        if self._live or (kind == "acted" and self._due()) or (kind == "called" and self._at_calls):
            self._send()
        if kind == "acted":
            self._job.step_begins()

    def rest(self) -> tuple[Frame, list[bytes]]:
        """Return the unsent events as a frame and the pieces of its blob."""
        text = b",".join(self._lines)
        pictures = list(self._pictures.items())
        self._lines, self._pictures, self._bytes = [], {}, 0
        frame: Frame = {"text": len(text), "pictures": [[name, len(png)] for name, png in pictures]}
        return frame, [text, *(png for _, png in pictures)]

    def _due(self) -> bool:
        """Return whether the events so far should be sent before the next step."""
        return self._job.exclusive or self._bytes > SEND_BYTES or time.monotonic() - self._sent_at > SEND_SECONDS

    def _send(self) -> None:
        frame, pieces = self.rest()
        self._job.report(frame, b"".join(pieces))
        self._sent_at = time.monotonic()

    def _see(self, event: Event) -> None:
        observation = event.observation if isinstance(event, Observed) else event.step.observation  # type: ignore[union-attr]
        if type(observation) is not list:
            return
        for picture in images(observation):
            if picture.hash not in self._known:
                self._known.add(picture.hash)
                self._pictures[picture.hash] = picture.png
                self._bytes += len(picture.png)


def refusal(error: RequestError) -> Frame:
    """Return a RequestError as JSON."""
    return {
        "message": error.message,
        "hint": error.hint,
        "code": error.code,
        "fields": [[list(item.loc), item.message, item.type] for item in error.fields],
    }
