"""Events, which are the only record of an episode, numbered from 0. A trajectory is computed by folding them.

started     the episode's identity: environment, split, seed, config, policy
observed    the first observation
called      the policy is called (its reply follows)
answered    the policy's reply: text, tool calls, tokens
acted       an action is passed to the environment
stepped     the action's result
limited     a limit was reached: which, and its value
failed      a failure: boundary and message
ended       status, stop reason, final state (private), metrics
scored      the scorecard
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, ClassVar

import orjson

from taskapp_kit.errors import Boundary, Failure
from taskapp_kit.records.content import Content, Image, Json
from taskapp_kit.records.trajectory import Decision, PlayedStep, Recording, Status, ToolCall, Trajectory, Turn

SCHEMA_VERSION = 1
"""The schema version of events and stored rows."""


@dataclass(slots=True)
class Started:
    """The episode's identity (environment, split, seed, config) and the name of the policy."""

    kind: ClassVar[str] = "started"
    environment: str
    version: str
    split: str
    seed: int
    config: dict[str, Json]
    policy: str


@dataclass(slots=True)
class Observed:
    """The first observation, and the names of the episode's tools."""

    kind: ClassVar[str] = "observed"
    observation: Content
    tools: list[str]
    seconds: float = 0.0


@dataclass(slots=True)
class Called:
    """The policy is called for turn number `turn`, counted from 0."""

    kind: ClassVar[str] = "called"
    turn: int


@dataclass(slots=True)
class Answered:
    """The policy's reply in turn `turn`. `scripted` is true if the caller supplied the action."""

    kind: ClassVar[str] = "answered"
    turn: int
    answer: Decision
    seconds: float = 0.0
    scripted: bool = False


@dataclass(slots=True)
class Acted:
    """Step number `step` begins. The action is recorded as requested."""

    kind: ClassVar[str] = "acted"
    step: int
    tool: str
    args: Json


@dataclass(slots=True)
class Stepped:
    """The step has ended."""

    kind: ClassVar[str] = "stepped"
    step: PlayedStep


@dataclass(slots=True)
class Limited:
    """A limit ended the episode. Contains the limit's name and its value, in steps, turns, refusals, operations or tokens."""

    kind: ClassVar[str] = "limited"
    limit: str
    value: float


@dataclass(slots=True)
class Failed:
    """A failure. `message` is written by the kit and never contains the exception's text."""

    kind: ClassVar[str] = "failed"
    boundary: Boundary
    code: str
    message: str
    error_id: str = ""
    hint: str = ""

    def failure(self) -> Failure:
        """Return the failure in this event."""
        return Failure(self.boundary, self.code, self.message, self.hint, self.error_id)


@dataclass(slots=True)
class EpisodeEnded:
    """The episode has ended and the environment is closed."""

    kind: ClassVar[str] = "ended"
    status: Status
    stop_reason: str
    final_state: Json = None
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Scored:
    """The scorecard as JSON (see `records.scorecard`)."""

    kind: ClassVar[str] = "scored"
    scorecard: dict[str, Json]


Event = Started | Observed | Called | Answered | Acted | Stepped | Limited | Failed | EpisodeEnded | Scored

KINDS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (Started, Observed, Called, Answered, Acted, Stepped, Limited, Failed, EpisodeEnded, Scored)
}


_FIELDS: dict[type[Event], tuple[str, ...]] = {cls: tuple(item.name for item in fields(cls)) for cls in KINDS.values()}
_STEP_FIELDS = tuple(item.name for item in fields(PlayedStep))
_ANSWER_FIELDS = tuple(item.name for item in fields(Decision))
_step_values, _answer_values = attrgetter(*_STEP_FIELDS), attrgetter(*_ANSWER_FIELDS)


# Trajectories are only built from events, so nothing about an episode is recorded twice.
def fold(events: Iterable[Event]) -> Trajectory:
    """Fold the events of an episode into its trajectory.

    Args:
        events: All events of the episode, in order.

    Raises:
        ValueError: The first event is not `started`.
    """
    remaining = iter(events)
    first = next(remaining, None)
    if not isinstance(first, Started):
        raise ValueError(f"an episode's first event is 'started', got {getattr(first, 'kind', None)!r}")
    trajectory = Trajectory(first.environment, first.version, first.split, first.seed, first.config)
    turns, steps = trajectory.turns, trajectory.steps
    for event in remaining:
        kind = type(event)
        if kind is Called or kind is Acted:
            continue
        if isinstance(event, Stepped):
            steps.append(event.step)
            turns[-1].steps.append(event.step)
        elif isinstance(event, Answered):
            turns.append(Turn(len(turns), event.answer))
        elif isinstance(event, Observed):
            trajectory.initial = event.observation
        elif isinstance(event, EpisodeEnded):
            trajectory.status = event.status
            trajectory.stop_reason = event.stop_reason
            trajectory.final_state = event.final_state
            trajectory.metrics = event.metrics
    return trajectory


@dataclass(slots=True)
class TurnRecord:
    """A stored turn. answered: The full `answered` event. steps: The steps of the turn's `stepped` events."""

    answered: dict[str, Any]
    steps: list[dict[str, Any]] = field(default_factory=list)

    @property
    def answer(self) -> dict[str, Any]:
        """Return the policy's reply."""
        answer: dict[str, Any] = self.answered["answer"]
        return answer

    @property
    def scripted(self) -> bool:
        """Return whether the caller supplied the action."""
        return bool(self.answered.get("scripted"))


@dataclass(slots=True)
class EpisodeRecord:
    """An episode that was read from stored events, as JSON. It includes data that a trajectory omits.

    Events of older releases lack fields that were added later. Images are hashes.

    `started`, `observed`, `limited`, `failed` and `ended` contain the fields of these events, or are empty. `called` is the
    turn in which the policy was called but did not reply. `acted` is the `acted` event whose action did not return.
    """

    started: dict[str, Any] = field(default_factory=dict)
    observed: dict[str, Any] = field(default_factory=dict)
    turns: list[TurnRecord] = field(default_factory=list)
    called: int | None = None
    acted: dict[str, Any] | None = None
    limited: dict[str, Any] = field(default_factory=dict)
    failed: dict[str, Any] = field(default_factory=dict)
    ended: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[dict[str, Any]]) -> EpisodeRecord:
        """Read an episode from stored events. Raises KeyError or IndexError if the events are damaged."""
        episode = cls()
        for event in events:
            match event["kind"]:
                case "called":
                    episode.called = event["turn"]
                case "answered":
                    episode.called = None
                    episode.turns.append(TurnRecord(event))
                case "acted":
                    episode.acted = event
                case "stepped":
                    episode.acted = None
                    episode.turns[-1].steps.append(event["step"])
                case "started" | "observed" | "limited" | "failed" | "ended":
                    setattr(episode, event["kind"], event)
        return episode

    @property
    def answers(self) -> list[dict[str, Any]]:
        """Return the policy's replies, one for each turn."""
        return [turn.answer for turn in self.turns]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """Return the steps of all turns."""
        return [step for turn in self.turns for step in turn.steps]

    @property
    def tools(self) -> tuple[str, ...]:
        """Return the names of the episode's actions."""
        return tuple(self.observed.get("tools") or ())


def to_json(seq: int, event: Event) -> dict[str, Json]:
    """Return the event as JSON. An image is represented as `{"image": hash, …}`. Its bytes are stored separately.

    The values are the event's own objects, not copies.
    """
    body: dict[str, Any] = {"v": SCHEMA_VERSION, "seq": seq, "kind": event.kind}
    for name in _FIELDS[type(event)]:
        body[name] = getattr(event, name)
    if isinstance(event, Observed):
        body["observation"] = content_to_json(event.observation)
    elif isinstance(event, Stepped):
        step = event.step
        written = {name: getattr(step, name) for name in _STEP_FIELDS}
        written["observation"] = content_to_json(step.observation)
        body["step"] = written
    elif isinstance(event, Answered):
        body["answer"] = answer_to_json(event.answer)
    return body


def answer_to_json(answer: Decision) -> dict[str, Json]:
    """Return the reply as JSON, without empty fields."""
    body: dict[str, Json] = {}
    for name in _ANSWER_FIELDS:
        part = getattr(answer, name)
        if part or (part is not None and name not in ("tool_calls", "messages", "usage", "details")):
            body[name] = part
    if answer.tool_calls:
        body["tool_calls"] = [{"tool": call.tool, "args": call.args, "id": call.id} for call in answer.tool_calls]
    return body


def answer_from_json(body: dict[str, Any]) -> Decision:
    """Return the inverse of `answer_to_json`."""
    return Decision(**{**body, "tool_calls": [ToolCall(**call) for call in body.get("tool_calls", [])]})


def recording_to_json(recording: Recording) -> dict[str, Json]:
    """Convert a recording to JSON, to pass it to another process."""
    return {"answers": [answer_to_json(answer) for answer in recording.answers], "stops": recording.stops}


def recording_from_json(body: dict[str, Any]) -> Recording:
    """Return the inverse of `recording_to_json`."""
    return Recording([answer_from_json(answer) for answer in body["answers"]], body["stops"])


class EncodedEvents(Sequence[dict[str, Json]]):
    """Events as an encoded JSON array (`text`, UTF-8). It is decoded on first access, so forwarding needs no parsing."""

    __slots__ = ("_read", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._read: list[dict[str, Json]] | None = None

    def _events(self) -> list[dict[str, Json]]:
        if self._read is None:
            self._read = orjson.loads(self.text)
        return self._read

    def __getitem__(self, index: Any) -> Any:
        return self._events()[index]

    def __len__(self) -> int:
        return len(self._events())

    def __eq__(self, other: object) -> bool:
        return self._events() == (other._events() if isinstance(other, EncodedEvents) else other)

    __hash__ = None  # type: ignore[assignment]  # unhashable, like a list


def encode(events: Sequence[Event]) -> EncodedEvents:
    """Encode the events as `to_json` does, without the environment's private end state.

    Values in an event are not validated again, because they were returned by `content.plain` or parsed from JSON.
    """
    return EncodedEvents(orjson.dumps([_members(seq, event) for seq, event in enumerate(events)], default=_picture))


def encode_one(seq: int, event: Event) -> bytes:
    """Encode one event as `encode` does, without the environment's private end state."""
    return orjson.dumps(_members(seq, event), default=_picture)


def _members(seq: int, event: Event) -> dict[str, Any]:
    """Return the event as a dict for `encode`, because orjson takes twice as long for a dataclass with slots."""
    members: dict[str, Any] = {"v": SCHEMA_VERSION, "seq": seq, "kind": event.kind}
    for name in _FIELDS[type(event)]:
        members[name] = getattr(event, name)
    if isinstance(event, Stepped):
        members["step"] = dict(zip(_STEP_FIELDS, _step_values(event.step), strict=True))
    elif isinstance(event, Answered):
        members["answer"] = dict(zip(_ANSWER_FIELDS, _answer_values(event.answer), strict=True))
    elif isinstance(event, EpisodeEnded):
        members["final_state"] = None
    return members


def joined(pieces: Sequence[bytes]) -> EncodedEvents:
    """Join pieces into one sequence of events. A piece contains one or more encoded events, separated by commas."""
    return EncodedEvents(b"[" + b",".join(pieces) + b"]")


def _picture(value: Any) -> Json:
    if isinstance(value, Image):
        body: dict[str, Json] = {"image": value.hash, "width": value.width, "height": value.height}
        if value.pixels is not None:
            body["pixels"] = value.pixels
        return body
    raise TypeError(f"a value of type {type(value).__name__} cannot be encoded as JSON")


def from_json(body: dict[str, Any], blobs: dict[str, bytes] | None = None) -> Event:
    """Return the event that `to_json` wrote.

    Args:
        body: The event as JSON.
        blobs: The PNG bytes of images, by hash. An image without bytes is omitted.

    Raises:
        ValueError: This release does not support the event's kind or schema version.
    """
    if body.get("v") != SCHEMA_VERSION or body.get("kind") not in KINDS:
        raise ValueError(
            f"an event has schema {body.get('v')!r} and kind {body.get('kind')!r}; this release reads schema "
            f"{SCHEMA_VERSION} and the kinds {', '.join(KINDS)}"
        )
    values = {key: value for key, value in body.items() if key not in ("v", "seq", "kind")}
    if "observation" in values:
        values["observation"] = content_from_json(values["observation"], blobs)
    if body["kind"] == "stepped":
        step = dict(values["step"])
        step["observation"] = content_from_json(step["observation"], blobs)
        values["step"] = PlayedStep(**step)
    if body["kind"] == "answered":
        values["answer"] = answer_from_json(values["answer"])
    return KINDS[body["kind"]](**values)


def content_to_json(observation: Content) -> Json:
    """Return a recorded observation in which each image is represented as `{"image": hash, "width": px, "height": px}`.

    An image from an array also has `pixels`, the hash of its raw RGB (`Image.pixels`).
    """
    if type(observation) is not list:
        return observation
    return [_picture(block) if isinstance(block, Image) else block for block in observation]


def content_from_json(observation: Json, blobs: dict[str, bytes] | None) -> Content:
    """Return the inverse of `content_to_json`. An image whose bytes are not in `blobs` is omitted."""
    if type(observation) is not list:
        return observation
    known = blobs or {}
    return [
        Image.recorded(known[block["image"]], block.get("pixels")) if isinstance(block, dict) else block
        for block in observation
        if not isinstance(block, dict) or block["image"] in known
    ]


# A prompt mostly repeats the previous call's prompt and completion, so the size of a response with full prompts would grow
# with the square of the number of turns: 64 Crafter episodes of up to 100 turns would take 520 MB instead of 22 MB. The store
# and event streams have full prompts, and `client.read_events` restores the prompts in responses.


def event_history(events: Iterable[dict[str, Json]]) -> list[dict[str, Json]]:
    """Return copies of events (as `events.to_json` returns them) for a response.

    The environment's private end state is omitted. `event_type` is `environment` for a step, and otherwise the event's kind.
    For every model call after the first, `prompt_token_ids` is replaced by two fields: `prompt_prefix`, the number of leading
    tokens that are equal to the previous call's prompt and completion, and `prompt_token_ids_rest`, the remaining tokens.
    """
    history, known = [], None
    for event in events:
        entry = {name: part for name, part in event.items() if name != "final_state"}
        entry["event_type"] = "environment" if entry["kind"] == "stepped" else entry["kind"]
        if entry["kind"] == "answered":
            entry["answer"], known = _shortened_answer(entry["answer"], known)
        history.append(entry)
    return history


def _shortened_answer(answer: dict[str, Json], known: list[int] | None) -> tuple[dict[str, Json], list[int] | None]:
    """Return the shortened reply, and the tokens of the reply's last model call.

    known: The tokens of the model call before this reply, or None if there was no such call.
    """
    details = answer.get("details") or {}
    if "earlier_calls" in details:
        calls = []
        for call in details["earlier_calls"]:
            short, known = _shortened(call, known)
            calls.append(short)
        answer = {**answer, "details": {**details, "earlier_calls": calls}}
    return _shortened(answer, known)


def _shortened(call: dict[str, Json], known: list[int] | None) -> tuple[dict[str, Json], list[int] | None]:
    prompt = call.get("prompt_token_ids")
    if prompt is None:
        return call, known
    tokens = [*prompt, *(call.get("token_ids") or ())]
    if known is not None:
        prefix = _common_prefix(known, prompt)
        call = {name: part for name, part in call.items() if name != "prompt_token_ids"}
        call |= {"prompt_prefix": prefix, "prompt_token_ids_rest": prompt[prefix:]}
    return call, tokens


def _common_prefix(one: list[int], two: list[int]) -> int:
    shorter = min(len(one), len(two))
    if one[:shorter] == two[:shorter]:
        return shorter
    return next(index for index in range(shorter) if one[index] != two[index])
