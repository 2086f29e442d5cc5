"""The ORS sessions of a server, and the conversion of observations to ORS blocks. Clients choose the session ids."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import orjson

from taskapp_kit.declare.specs import EnvironmentSpec
from taskapp_kit.errors import FieldProblem, RequestError, RolloutFailed, Saturated, SessionError
from taskapp_kit.interop.call_queue import MAX_WAITING, CallQueue
from taskapp_kit.interop.ors.models import CreateSession, OrsCall, ScoreGroup, TaskSpec
from taskapp_kit.interop.ors.stream import CallFailed, CallStream
from taskapp_kit.interop.protocols import check_environment, environment_of_path, step_metadata, tools_of
from taskapp_kit.interop.split_tasks import check_split, task_at
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.net.response import Peer
from taskapp_kit.records.content import Content, Image, Json, as_object, text_of
from taskapp_kit.rollout.admission import Caller
from taskapp_kit.rollout.score.groups import group_judges
from taskapp_kit.rollout.session import EnvironmentSession, SessionStart, SessionStep
from taskapp_kit.serve.errors import error_answer
from taskapp_kit.serve.route import RouteContext, parsed

Block = dict[str, Json]
SYSTEM: dict[str, Json] = {"role": "system"}
"""The `detail` of the blocks in a prompt that contain instructions."""


def observed_blocks(observation: Content) -> list[Block]:
    """Convert an observation to ORS blocks. A dict becomes one block of JSON text."""
    if not isinstance(observation, list):
        return [text_block(text_of(observation))]
    return [image_block(block.data_url()) if isinstance(block, Image) else text_block(block) for block in observation]


def prompt_blocks(messages: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Convert the messages of an episode's first model request to ORS blocks."""
    return [
        block
        for message in messages
        for block in _content(message["content"], SYSTEM if message["role"] == "system" else None)
    ]


def role_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Json]]:
    """Convert the messages of an episode's first model request to ORS messages."""
    return [
        {"role": message["role"], "blocks": _content(message["content"], None), "detail": None} for message in messages
    ]


def text_block(text: str, detail: Json = None) -> Block:
    """Return a block of text."""
    return {"type": "text", "text": text, "detail": detail}


def image_block(data_url: str, detail: Json = None) -> Block:
    """Convert a data URL of an image to an ORS block. data_url: `data:TYPE;base64,DATA`."""
    kind, _, data = data_url.removeprefix("data:").partition(";base64,")
    return {"type": "image", "data": data, "mimeType": kind, "detail": detail}


def _content(content: Any, detail: Json) -> list[Block]:
    """Convert the content of a chat message to ORS blocks."""
    if isinstance(content, str):
        return [text_block(content, detail)]
    return [
        text_block(part["text"], detail) if part["type"] == "text" else image_block(part["image_url"]["url"], detail)
        for part in content
    ]


PROTOCOL = "ors"
SETUP_SECONDS = 25.0
"""How long a request waits for the episode to begin.

After this time, the response is 503, and clients repeat the request.
"""
RETRY_SECONDS = 2
MAX_SESSION_ID = 255
REPLAYED_CALLS = 4
"""How many of a session's latest results are stored for repeated calls with the same `task_id`."""


class OrsSession:
    """A session, which lasts from `/create` to `/delete`.

    It stores the results of the latest calls, which clients may request again.
    """

    def __init__(self, session: EnvironmentSession, begin: Callable[[], Awaitable[SessionStart]]) -> None:
        self.session = session
        self._begin = begin
        self._queue = CallQueue()
        self._calls: dict[str, asyncio.Task[str]] = {}
        self._awaiting_start = 0
        self._start = self._begun()

    async def started(self, seconds: float) -> SessionStart:
        """Wait until the episode has begun, and return its start. If the reset failed, raise the reset's exception.

        Raises RequestRefused if the episode did not begin within `seconds` (503) or the session was deleted (410).
        """
        if self._start.done() and not self._start.cancelled() and isinstance(self._start.exception(), Saturated):
            self._start = self._begun()
        if not self._start.done() and self._awaiting_start < MAX_WAITING:
            self._awaiting_start += 1
            try:
                await asyncio.wait((self._start,), timeout=seconds)
            finally:
                self._awaiting_start -= 1
        if not self._start.done():
            raise RequestRefused(
                "session_starting",
                "The episode has not begun yet.",
                hint="Repeat the request after a few seconds.",
                headers=starting(RETRY_SECONDS),
            )
        try:
            return self._start.result()
        except (SessionError, RolloutFailed):
            if self.session.closed:
                raise RequestRefused("session_deleted", "The session was deleted.") from None
            raise

    def call(self, work: Callable[[], Awaitable[Json]], task_id: str | None, where: str, peer: Peer) -> CallStream:
        """Start a call and return its stream. If `task_id` is set, only return the stream of the call with this id.

        The session's calls run in order. A call that was dropped before it began is started again with its id.

        work: runs the call. peer: the connection of the request. Raises SessionError if too many calls are waiting.
        """
        earlier = None if task_id is None else self._calls.get(task_id)
        if task_id is not None and not _dropped(earlier):
            if earlier is not None:
                self._queue.join(earlier, peer)
            return CallStream(200, b"", task_id=task_id, call=earlier or asyncio.create_task(_unknown()))

        async def run() -> str:
            try:
                return orjson.dumps(await work(), default=as_object).decode()
            except Exception as error:
                raise CallFailed(sentence(error, where)) from error

        task_id = task_id or uuid.uuid4().hex
        task = self._calls[task_id] = self._queue.start(run, peer)
        if len(self._calls) > REPLAYED_CALLS:
            oldest = next(iter(self._calls))
            if self._calls[oldest].done():
                del self._calls[oldest]
        return CallStream(200, b"", task_id=task_id, call=task)

    def _begun(self) -> asyncio.Task[SessionStart]:
        async def begin() -> SessionStart:
            return await self._begin()

        task = asyncio.create_task(begin())
        task.add_done_callback(_retrieved)
        return task


class OrsEpisodes:
    """ORS's operations on sessions. The app's sessions provide error boundaries, limits, rewards and storage."""

    def __init__(self, context: RouteContext) -> None:
        self.context = context
        self.sessions = context.service.sessions
        self.setup_seconds = SETUP_SECONDS
        self._app = context.service.spec
        self._by_name = {name.lower(): spec for name, spec in self._app.environments.items()}
        self._by_name |= dict(self._app.environments)
        self._opening: set[tuple[str | None, str]] = set()
        self._open: dict[tuple[str | None, str], OrsSession] = {}

    def known(self, name: str) -> EnvironmentSpec | None:
        """Return the environment with this name, ignoring case, or None if it does not exist."""
        return self._by_name.get(name) or self._by_name.get(name.lower())

    def environment(self, name: str | None, deployment: str | None = None) -> EnvironmentSpec:
        """Return the environment that a request names. Raises RequestRefused (404) if `name` is unknown.

        name: the name in the path, or None. deployment: the name that `openreward` sends in a header. It is only used
        if `name` is None. If the header is missing or its name is unknown, the default environment is returned.
        """
        if name is None:
            return self.known(deployment or "") or self._app.default_environment
        return self.known(name) or environment_of_path(self._app, name)

    # -- sessions --------------------------------------------------------------------------------------------------

    async def create(self, environment: EnvironmentSpec, sid: str, caller: Caller, creation: CreateSession) -> None:
        """Open the session `sid` and begin its episode, without waiting for the first observation.

        Raises RequestRefused (400) if the session already exists or the split or index does not exist, RequestError
        (422) if the task is invalid, and Saturated if the server has no free session.
        """
        task_spec: Mapping[str, Any] | None = creation.task_spec
        if task_spec is None:
            task_spec = task_at(environment, str(creation.split), int(creation.index or 0))
        task = parsed(TaskSpec, task_spec)
        if task.split is not None:
            check_split(environment, task.split)
        key = (caller.key_label, sid)
        if key in self._open or key in self._opening:
            raise RequestRefused("session_exists", "A session with this X-Session-ID already exists.")
        self._opening.add(key)
        try:
            session = await self.sessions.open(environment.name, caller=caller, protocol=PROTOCOL)
        finally:
            self._opening.discard(key)

        async def begin() -> SessionStart:
            return await session.reset(task.seed, split=task.split, config=task.config)

        def leave(_: str) -> None:
            self._open.pop(key, None)

        self._open[key] = OrsSession(session, begin)
        session.attach(leave)

    def find(self, sid: str, caller: Caller, environment: EnvironmentSpec | None) -> OrsSession:
        """Return the caller's session and mark it as used. environment: the environment in the path, or None.

        Raises RequestRefused (404) if the session does not exist, and RequestError if it belongs to another
        environment.
        """
        ors_session = self._open.get((caller.key_label, sid))
        if ors_session is None:
            raise RequestRefused(
                "not_found",
                "There is no session with this X-Session-ID.",
                hint="It was deleted, has expired or was never created. Create another session with /create.",
            )
        ors_session.session.touch()
        if environment is not None:
            hint = "Send env_name to /create. ors-sdk sends env_name with session(task=...), but not with split= and index=."
            check_environment(ors_session.session, environment, hint)
        return ors_session

    async def delete(self, sid: str, caller: Caller) -> None:
        """Close the session if it exists. An unfinished episode is cancelled."""
        ors_session = self._open.get((caller.key_label, sid))
        if ors_session is not None:
            await ors_session.session.close()

    async def call(self, ors_session: OrsSession, call: OrsCall, peer: Peer) -> CallStream:
        """Start a tool call, and return the stream with its result."""
        await ors_session.started(self.setup_seconds)

        async def work() -> Json:
            try:
                step = await ors_session.session.step([(call.name, call.input)])
            except SessionError as error:
                if error.code != "episode_over":
                    raise
                return _refused(f"{error.message} {error.hint}", "episode_finished")
            return _answer(ors_session.session, step, call.name)

        return ors_session.call(work, call.task_id, "/ors/{environment}/call", peer)

    # -- descriptions of an environment -----------------------------------------------------------------------------

    def tools(self, environment: EnvironmentSpec) -> dict[str, Json]:
        """Return the tools, which are the same for every task."""
        return {
            "tools": tools_of(environment, "input_schema"),
            "terminal_tool": None,
            "supports_score_group": self.scores_groups(environment),
            "message_block_types": ["text", "image", "reasoning", "tool_call", "tool_result"],
        }

    # -- groups ----------------------------------------------------------------------------------------------------

    def scores_groups(self, environment: EnvironmentSpec) -> bool:
        """Return whether the environment has a group judge."""
        return bool(group_judges(self._app, environment.name))

    def score_group(self, ors_session: OrsSession, group: ScoreGroup, peer: Peer) -> CallStream:
        """Return a stream with a score for each candidate. Raises RequestRefused (404) if there is no group judge."""
        environment = ors_session.session.environment
        if not self.scores_groups(environment):
            raise RequestRefused("group_scoring_unsupported", f"Environment {environment.name!r} has no group judge.")

        async def work() -> Json:
            ids = [(candidate.metadata or {}).get("rollout_id") for candidate in group.candidates]
            if not all(isinstance(name, str) for name in ids):
                message = "should have metadata.rollout_id, which the session's calls return in their metadata"
                raise RequestError(f"A candidate {message}.", fields=(FieldProblem(("body", "candidates"), message),))
            ranked: Any = await self.context.service.score_group(
                rollout_ids=[str(name) for name in ids], caller=ors_session.session.caller
            )
            scores = [
                {"reward": item["score"], "metadata": {name: item[name] for name in ("rollout_id", "rank", "reason")}}
                for item in ranked["scores"]
            ]
            if any(item["reward"] is None for item in scores):
                raise RequestError("No group judge has a weight above 0, so the scores are undefined.")
            return {"scores": scores}

        return ors_session.call(work, group.task_id, "/ors/{environment}/score_group", peer)


def starting(seconds: int) -> list[tuple[bytes, bytes]]:
    """Return the headers of a response that make clients repeat the request after `seconds`."""
    return [(b"x-backend-state", b"starting"), (b"retry-after", b"%d" % seconds)]


def sentence(error: Exception, where: str) -> str:
    """Return an error as one line of text, and log details for the operator. where: the route, for the log."""
    members: dict[str, Any] = orjson.loads(error_answer(error, where=where).body)["detail"]["error"]
    named = [f"{name} {members[name]}" for name in ("boundary", "code", "error_id", "rollout_id") if name in members]
    return " ".join(f"{members['message']} [{', '.join(named)}]".split())


def _answer(session: EnvironmentSession, step: SessionStep, tool: str) -> Json:
    """Return the result of a tool call in ORS's format.

    If the action was rejected, the result is ORS's error for a malformed call, which has no reward. But if the rejected
    action had a reward or ended the episode, the result is an output with `metadata.refused`.
    """
    metadata = step_metadata(session, step)
    refused = metadata["refused"]
    if refused is not None and step.end is None and step.reward == 0:
        return _refused(refused, "input_validation" if tool in session.environment.actions else "not_found")
    output = {
        "blocks": observed_blocks(step.observation),
        "metadata": metadata,
        "reward": step.reward,
        "finished": step.end is not None,
    }
    return {"ok": True, "output": output}


def _refused(why: str, reason: str) -> Json:
    return {"ok": False, "error": why, "reason": reason}


def _dropped(call: asyncio.Task[str] | None) -> bool:
    """Return whether a call was dropped before it began, and can therefore run again."""
    return call is not None and call.done() and isinstance(call.exception(), SessionError)


async def _unknown() -> str:
    raise CallFailed("unknown task_id")


def _retrieved(task: asyncio.Task[Any]) -> None:
    """Retrieve the asyncio task's exception, so that asyncio does not log it if the client has disconnected."""
    if not task.cancelled():
        task.exception()
