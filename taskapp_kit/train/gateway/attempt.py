"""One attempt at a rollout in the gateway: its generations, recorded turns, limits and counts.

All code runs on the gateway's event loop. Only the counts and turns of an ended attempt may be read in another thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from taskapp_kit.errors import BadArgument, RequestError
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.net.response import Peer
from taskapp_kit.train.gateway.call_reader import ChatPrompt, GatewayCall
from taskapp_kit.train.gateway.pace import SLACK, Pace
from taskapp_kit.train.gateway.recognition import PromptIds, Recognition, Speakers
from taskapp_kit.train.rendering.renderer import Renderer
from taskapp_kit.train.turns import RecordedTurn, Sampled, Sampler

log = logging.getLogger("taskapp_kit.train")

REJOIN_SECONDS = 2.0
"""Seconds that a generation continues without clients. SDKs retry within about a second, and join the generation."""
DRAW_CHARACTERS = 24

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class AttemptSettings:
    """The trainer's settings for the generations of an attempt.

    Attributes:
        temperature: The temperature of all generations.
        max_tokens: The maximum number of tokens of one generation. A client may request fewer.
        context_tokens: The maximum number of tokens of a prompt together with its reply.
        max_calls: The maximum number of requests in the attempt, including requests that receive an error.
        max_sampled_tokens: The maximum number of sampled tokens in the attempt.
    """

    temperature: float
    max_tokens: int
    context_tokens: int
    max_calls: int = 1000
    max_sampled_tokens: int = 1_000_000


@dataclass(slots=True)
class Faithfulness:
    """Counts of an attempt's model calls, by how they relate to the tokens that were sampled earlier.

    Attributes:
        exact: The first call, and calls that continue the latest turn without changes.
        continued: Calls that continue the latest turn with changes (stripped text, dropped ids). The prompt still
            contains the sampled tokens.
        forked: Calls that continue an earlier turn, or no turn.
        refused: Calls that received an error.
        repeated: Calls that are identical to an earlier call and receive the same response. They add no turn.
    """

    exact: int = 0
    continued: int = 0
    forked: int = 0
    refused: int = 0
    repeated: int = 0

    @property
    def calls(self) -> int:
        """The total number of calls."""
        return self.exact + self.continued + self.forked + self.refused + self.repeated

    def __add__(self, other: Faithfulness) -> Faithfulness:
        return Faithfulness(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(self)))


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """The record of an attempt.

    Attributes:
        correlation_id: The attempt's id in logs and stores.
        turns: The recorded turns.
        faithfulness: How the model calls relate to sampled tokens.
        overridden: How often clients sent each request field that the trainer overrides.
        unenforced: How often clients sent each request field that is not enforced.
        suspected: Number of trained turns that probably belong to another model (see `recognition.Speakers`).
    """

    correlation_id: str
    turns: tuple[RecordedTurn, ...]
    faithfulness: Faithfulness
    overridden: Mapping[str, int]
    unenforced: Mapping[str, int]
    suspected: int = 0


@dataclass(slots=True, eq=False)
class AnsweredTurn:
    """A finished generation: the sampled tokens and the response to the client.

    Attributes:
        returned: The message of a chat completion, or the text of a completion.
        identity: A hash of the name of the generation's random stream. It is unique in the attempt.
        sent_to: The connection to which the whole response was written, or None before that.
    """

    prompt_ids: tuple[int, ...]
    sampled: Sampled
    finish_reason: FinishReason
    returned: dict[str, Any] | str
    parent: int | None
    identity: str
    sent_to: Peer | None = None

    def sent(self, peer: Peer) -> None:
        """Record that the response was written to an open connection."""
        self.sent_to, peer.answered = peer, self

    @property
    def delivered(self) -> bool:
        """Whether the client received the response: it was written completely, and the connection was not reset later."""
        # A client that gives up while it receives the response closes with unread bytes, which resets the connection.
        peer = self.sent_to
        return peer is not None and not (peer.reset and peer.answered is self)

    @property
    def text(self) -> str:
        """The text of the response, without tool calls."""
        return self.returned if isinstance(self.returned, str) else self.returned["content"] or ""

    def recorded(self, *, auxiliary: bool) -> RecordedTurn:
        """Return the turn for the update. `auxiliary` is whether the call was for a model other than the policy."""
        sampled = self.sampled
        return RecordedTurn(
            prompt_ids=self.prompt_ids,
            token_ids=sampled.token_ids,
            log_probs=sampled.log_probs,
            version=sampled.version,
            finish_reason=self.finish_reason,
            seconds=sampled.seconds,
            delivered=self.delivered,
            parent=self.parent,
            auxiliary=auxiliary,
        )


@dataclass(slots=True, eq=False)
class RunningGeneration:
    """A running generation. `digest` is the digest of its call, and `waiting` is the number of clients that wait for it."""

    digest: bytes
    task: asyncio.Task[AnsweredTurn]
    max_tokens: int
    waiting: int = 0


@dataclass(slots=True, eq=False)
class OpenAttempt:
    """An open attempt.

    Attributes:
        draw: Name of the random streams of the attempt's samples, such as `job/place/sample`.
        model: The model name in the rollout's policy config.
        url: The task app's `inference_url`. It permits sampling until the attempt ends.
        token: The secret part of `url`.
    """

    correlation_id: str
    draw: str
    model: str
    settings: AttemptSettings
    sampler: Sampler
    renderer: Renderer
    pace: Pace
    url: str = field(repr=False)
    token: str = field(repr=False)
    _recognition: Recognition = field(init=False)
    _speakers: Speakers = field(init=False)
    _turns: list[AnsweredTurn] = field(default_factory=list)
    _latest: dict[bytes, AnsweredTurn] = field(default_factory=dict)
    _running: dict[bytes, RunningGeneration] = field(default_factory=dict)
    _continued_turns: set[int | None] = field(default_factory=set)
    _draws: defaultdict[bytes, set[int]] = field(default_factory=lambda: defaultdict(set))
    _calls: int = 0
    _ended: bool = False
    _counts: Faithfulness = field(default_factory=Faithfulness)
    _overridden: Counter[str] = field(default_factory=Counter)
    _unenforced: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._recognition = Recognition(self.renderer)
        self._speakers = Speakers(self.model)

    def record(self) -> AttemptRecord:
        """Return the record so far. It is complete when the attempt has ended."""
        others = self._speakers.auxiliary()
        turns = tuple(turn.recorded(auxiliary=at in others) for at, turn in enumerate(self._turns))
        return AttemptRecord(
            self.correlation_id,
            turns,
            self._counts + Faithfulness(),
            dict(self._overridden),
            dict(self._unenforced),
            self._speakers.suspected(),
        )

    def count_call(self) -> None:
        """Count a request. Raises RequestRefused if the attempt has more than `max_calls` requests."""
        self._calls += 1
        if self._calls > self.settings.max_calls:
            raise _spent(f"its {self.settings.max_calls} calls")

    def count_refused(self) -> None:
        """Count a request that receives an error."""
        self._counts.refused += 1

    def begin(self, call: GatewayCall) -> RunningGeneration | AnsweredTurn:
        """Return the generation or the finished turn that answers a model call.

        If an identical call is running, this is its generation. If the response to an identical call was not delivered,
        this is its turn. Otherwise a new generation is started. To wait for a generation, pass it to `result`. Raises
        RequestRefused if the attempt has ended or reached a limit, and RequestError if the call is invalid.
        """
        if self._ended:
            raise attempt_ended()
        self._overridden.update(call.overridden)
        self._unenforced.update(call.unenforced)
        running = self._running.get(call.digest)
        if running is not None:
            self._counts.repeated += 1
            return running
        latest = self._latest.get(call.digest)
        if latest is not None and not latest.delivered:
            self._counts.repeated += 1
            return latest
        prompt = self._recognition.prompt(call.prompt)
        max_tokens = self._max_tokens(call, prompt)
        task = asyncio.create_task(self._generate(call, prompt, max_tokens), name="generation")
        started = self._running[call.digest] = RunningGeneration(call.digest, task, max_tokens)
        task.add_done_callback(lambda _: self._forget(started))
        return started

    async def result(self, generation: RunningGeneration) -> AnsweredTurn:
        """Wait for a generation. Raises RequestRefused if the attempt ends or the generation takes too long.

        If this coroutine is cancelled and no client is waiting REJOIN_SECONDS later, the generation is cancelled.
        """
        generation.waiting += 1
        try:
            await asyncio.wait((generation.task,))
        finally:
            generation.waiting -= 1
            if not generation.waiting and not generation.task.done():
                asyncio.get_running_loop().call_later(REJOIN_SECONDS, self._cancel_unless_awaited, generation)
        if generation.task.cancelled():
            raise attempt_ended()
        return generation.task.result()

    async def end(self) -> None:
        """Reject new calls, and cancel running generations, whose clients receive an error."""
        # A client may have read the last response before the gateway recorded it as sent.
        self._ended = True
        await asyncio.sleep(0)  # the response is written
        await asyncio.sleep(0)  # and recorded as sent
        tasks = [generation.task for generation in self._running.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _cancel_unless_awaited(self, generation: RunningGeneration) -> None:
        if not generation.waiting and not generation.task.done():
            self._forget(generation)  # the next equal call starts a new generation
            generation.task.cancel()

    def _forget(self, generation: RunningGeneration) -> None:
        if self._running.get(generation.digest) is generation:
            del self._running[generation.digest]
        if generation.task.done() and not generation.task.cancelled():
            generation.task.exception()  # retrieve the error, so that asyncio does not log it if all clients have disconnected

    def _max_tokens(self, call: GatewayCall, prompt: PromptIds) -> int:
        settings = self.settings
        room = settings.context_tokens - len(prompt.ids)
        if room < 1:
            raise RequestError(
                f"This model's maximum context length is {settings.context_tokens} tokens. The prompt has {len(prompt.ids)}.",
                code="context_length_exceeded",
                hint="The episode must end. To avoid this, send fewer earlier turns, or train with a longer context.",
            )
        used = sum(len(turn.sampled.token_ids) for turn in self._turns)
        reserved = sum(generation.max_tokens for generation in self._running.values())
        left = settings.max_sampled_tokens - used - reserved
        if left < 1:
            raise _spent(f"its {settings.max_sampled_tokens} tokens")
        return min(call.max_tokens or settings.max_tokens, settings.max_tokens, room, left)

    async def _generate(self, call: GatewayCall, prompt: PromptIds, max_tokens: int) -> AnsweredTurn:
        digest = hashlib.sha256(array("q", prompt.ids).tobytes()).digest()
        # A cancelled generation releases its number, so that a repetition samples the same tokens.
        used = self._draws[digest]
        number = next(number for number in itertools.count() if number not in used)
        used.add(number)
        draw = f"{self.draw}/{digest.hex()[:DRAW_CHARACTERS]}/{number}"
        try:
            sampled = await self._sample(prompt, max_tokens, draw)
        except BaseException:
            used.discard(number)
            raise
        if len(sampled.token_ids) != len(sampled.log_probs):
            log.error(
                "call rejected: the sampler returned %d token ids and %d log-probabilities correlation_id=%s",
                len(sampled.token_ids),
                len(sampled.log_probs),
                self.correlation_id,
            )
            raise RequestRefused(
                "token_mismatch",
                f"The sampler returned {len(sampled.token_ids)} token ids and {len(sampled.log_probs)} log-probabilities. "
                "Expected equal numbers.",
            )
        identity = hashlib.sha256(draw.encode()).hexdigest()[:DRAW_CHARACTERS]
        turn = self._answered(call, prompt, sampled, identity)
        self._recognition.add(call.prompt, prompt, turn.sampled.token_ids, turn.returned)
        self._speakers.add(call, turn.text)
        if self._turns and (prompt.parent is None or prompt.parent in self._continued_turns):
            self._counts.forked += 1
        elif prompt.stripped:
            self._counts.continued += 1
        else:
            self._counts.exact += 1
        self._continued_turns.add(prompt.parent)
        self._turns.append(turn)
        self._latest[call.digest] = turn
        return turn

    async def _sample(self, prompt: PromptIds, max_tokens: int, draw: str) -> Sampled:
        sampled = None
        measured = object()
        seconds = self.pace.started(measured, max_tokens)
        try:
            async with asyncio.timeout(seconds):
                sampled = await self.sampler.sample(
                    prompt.ids,
                    max_tokens=max_tokens,
                    temperature=self.settings.temperature,
                    stop_ids=self.renderer.stop_ids,
                    draw=draw,
                )
        except TimeoutError:
            raise RequestRefused(
                "generation_timeout",
                f"The sampler returned nothing within {seconds:.0f} s, {SLACK:g} times the expected time.",
                hint="Send the request again. An update of the weights may have caused the delay.",
            ) from None
        except BadArgument as wrong:
            raise RequestError(wrong.message, hint=wrong.hint) from None
        finally:
            self.pace.ended(measured, None if sampled is None else len(sampled.token_ids))
        return sampled

    def _answered(self, call: GatewayCall, prompt: PromptIds, sampled: Sampled, identity: str) -> AnsweredTurn:
        """Return the turn, cut at the first stop string. Dropping later tokens does not bias the earlier tokens."""
        decode = self.renderer.tokenizer.decode
        ended = bool(sampled.token_ids) and sampled.token_ids[-1] in self.renderer.stop_ids
        text = decode(sampled.token_ids[: len(sampled.token_ids) - ended])
        if any(stop in text for stop in call.stops):
            length = bisect_left(
                range(len(sampled.token_ids)),
                True,
                key=lambda end: any(stop in decode(sampled.token_ids[:end]) for stop in call.stops),
            )
            sampled = replace(
                sampled,
                token_ids=sampled.token_ids[:length],
                log_probs=sampled.log_probs[:length],
                finish_reason="stop",
            )
            text = decode(sampled.token_ids)
        finish: FinishReason = sampled.finish_reason
        returned: dict[str, Any] | str = _before(text, call.stops)
        if isinstance(call.prompt, ChatPrompt):
            message = self.renderer.parse(sampled.token_ids, call.prompt.tools, call_prefix=f"call_{identity}")
            message["content"] = message["content"] and _before(message["content"], call.stops)
            if message.get("tool_calls") and finish == "stop":
                finish = "tool_calls"
            returned = message
        return AnsweredTurn(prompt.ids, sampled, finish, returned, prompt.parent, identity)


def attempt_ended() -> RequestRefused:
    """Return the error for a call whose attempt has ended."""
    return RequestRefused(
        "attempt_ended", "The attempt at this address has ended.", hint="Use the address of the current rollout."
    )


def _spent(limit: str) -> RequestRefused:
    return RequestRefused("attempt_spent", f"The attempt has used all of {limit}.", hint="End the episode.")


def _before(text: str, stops: tuple[str, ...]) -> str:
    """Return the text before the first stop string."""
    return text[: min((at for at in map(text.find, stops) if at >= 0), default=len(text))]
