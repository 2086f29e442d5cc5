"""Model calls for worker processes. The parent process makes them, because only the parent has addresses and keys."""

from __future__ import annotations

from dataclasses import asdict

from taskapp_kit.errors import Failure, Unavailable
from taskapp_kit.records.content import Json
from taskapp_kit.rollout.executors.protocol import Frame, Stopped, WorkerJob
from taskapp_kit.wire.chat.conversation import Ask, ChatReply, ModelFailed, stopped_failure


class ParentModelPort:
    """A `ModelPort` in a worker process, which forwards calls to the parent."""

    def __init__(self, job: WorkerJob) -> None:
        self._job = job

    def ask(self, role: str, body: dict[str, Json]) -> ChatReply:
        """Call the model through the parent, and block. Raises ModelFailed, or Unavailable if no model has the role."""
        try:
            frame = self._job.ask({"chat": body, "role": role})
        except Stopped as stopped:
            raise stopped_failure(stopped.reason) from None
        if "reply" in frame:
            return ChatReply.from_json(frame["reply"])
        if "unavailable" in frame:
            raise Unavailable(frame["unavailable"], hint=frame["hint"])
        raise ModelFailed(Failure(**frame["failed"]), overflow=frame["overflow"])


async def answer_worker(ask: Ask, frame: Frame) -> Frame:
    """Call a model for a `ParentModelPort` and return a frame with the reply or the error. Runs in the parent."""
    try:
        came = await ask(frame["role"], frame["chat"])
    except Unavailable as error:
        # An exception cannot cross the pipe, so the frame describes it and `ParentModelPort.ask` raises it again.
        return {"unavailable": error.message, "hint": error.hint}
    if isinstance(came, ModelFailed):
        return {"failed": asdict(came.failure), "overflow": came.overflow}
    return {"reply": came.to_json()}
