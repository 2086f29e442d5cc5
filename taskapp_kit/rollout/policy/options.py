"""A request's options for its model calls: output mode, sampling, history, and what the endpoint returns with the text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from taskapp_kit.errors import FieldProblem, RequestError
from taskapp_kit.records.content import Json, NotJson, plain

if TYPE_CHECKING:
    from taskapp_kit.wire.rollout import StructuredConfig

CHARACTERS_PER_TOKEN = 4.0
"""The estimate until an endpoint has reported a token count."""
MESSAGE_CHARACTERS = 16
"""The overhead of a chat template for each message."""
PICTURE_CHARACTERS = 4000
"""The estimate for a picture, about a thousand tokens; its size in bytes does not predict its tokens."""
LEARNED = (0.02, 4.0)
"""The plausible range of tokens per character; an endpoint's count outside it is ignored."""


class EstimatedTokens:
    """Estimates the tokens of one rollout's conversation from its characters.

    Divides by 4 at first, then by the ratio in the endpoint's own count of the last prompt.
    """

    def __init__(self) -> None:
        self._per_character = 1 / CHARACTERS_PER_TOKEN

    def tokens(self, characters: int) -> float:
        """The estimate."""
        return characters * self._per_character

    def learn(self, characters: int, tokens: float) -> None:
        """Adopts the endpoint's ratio if it is plausible."""
        if characters > 0 and LEARNED[0] <= tokens / characters <= LEARNED[1]:
            self._per_character = tokens / characters


class History(Protocol):
    """Selects the exchanges that a prompt contains: the opening always, then whole ones, the oldest left out first.

    An exchange is an answer of the model with all messages that follow it, so no call is sent without its result.
    """

    def first(self, opening: int, exchanges: Sequence[int], counter: EstimatedTokens) -> int:
        """The index of the oldest exchange in the prompt. opening, exchanges: their sizes in characters."""
        ...


# The only one that keeps the token prefix: each prompt begins with the previous prompt and its answer, so an engine's
# prefix cache stays valid, and a trainer can join the turns. A window of turns breaks it in each turn once turns are
# left out, a token budget in each turn that leaves out more than the one before.
@dataclass(frozen=True, slots=True)
class FullHistory:
    """Every exchange."""

    def first(self, opening: int, exchanges: Sequence[int], counter: EstimatedTokens) -> int:
        """Always 0."""
        return 0


@dataclass(frozen=True, slots=True)
class LastTurns:
    """The last `turns` exchanges, at least 1."""

    turns: int

    def first(self, opening: int, exchanges: Sequence[int], counter: EstimatedTokens) -> int:
        """Leaves out all but the last `turns`."""
        return max(0, len(exchanges) - self.turns)


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """As many of the last exchanges as fit in `budget` tokens with the opening and the tools; always the last one."""

    budget: int

    def first(self, opening: int, exchanges: Sequence[int], counter: EstimatedTokens) -> int:
        """Adds exchanges from the newest backwards until the budget is spent."""
        at, characters = len(exchanges), opening
        while at > 0:
            characters += exchanges[at - 1]
            # the newest is always shown: without it the model would not see what its answer did
            if at < len(exchanges) and counter.tokens(characters) > self.budget:
                break
            at -= 1
        return at


def read_history(given: Json) -> History:
    """Reads `policy.config.history`: "full" (also when absent), {"turns": N} or {"tokens": N}. Raises RequestError."""
    if given is None or given == "full":
        return FullHistory()
    if isinstance(given, Mapping) and len(given) == 1:
        (word, value), *_ = given.items()
        # stored with the rollout, in 64 bits
        if type(value) is int and 1 <= value < 2**63:
            if word == "turns":
                return LastTurns(value)
            if word == "tokens":
                return TokenBudget(value)
    message = (
        f'policy.config.history is {str(given)[:80]!r}; expected "full", {{"turns": N}} or {{"tokens": N}} with a whole '
        "number N from 1."
    )
    raise RequestError(message, fields=(FieldProblem(("body", "policy", "config", "history"), message),))


def characters_of(message: Mapping[str, Any]) -> int:
    """The approximate size of a message in the prompt, in characters; a picture counts as about a thousand tokens."""
    return MESSAGE_CHARACTERS + _characters(message)


def _characters(value: Any) -> int:
    kind = type(value)
    if kind is str:
        return len(value)
    if kind is dict or isinstance(value, Mapping):
        # a picture's size in bytes says nothing about its tokens
        if value.get("type") == "image_url":
            return PICTURE_CHARACTERS
        return sum(_characters(part) for name, part in value.items() if name not in ("role", "type"))
    if isinstance(value, list):
        return sum(map(_characters, value))
    return 4


OutputMode = Literal["tool_calls", "text", "structured"]


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """The options for the model calls of one rollout.

    sampling: copied into each request. extra: further members that the endpoint defines; they override `sampling`.
    tool_choice: None derives it from the environment's actions. pictures: False sends a text in place of each.
    reasoning: False does not send back the model's reasoning of earlier turns. logprobs, token_ids: requested from the
    endpoint. structured: the schema of the answer in mode `structured`; None builds one from the actions.
    """

    mode: OutputMode = "tool_calls"
    sampling: Mapping[str, Json] = field(default_factory=dict)
    extra: Mapping[str, Json] = field(default_factory=dict)
    history: History = field(default_factory=FullHistory)
    tool_choice: Json = None
    pictures: bool = True
    reasoning: bool = True
    logprobs: bool = False
    token_ids: bool = False
    structured: StructuredConfig | None = None


_FITS: Mapping[str, Callable[[Any], bool]] = {
    # `type`, since true is an int to `isinstance`
    "a number": lambda value: type(value) in (int, float) and math.isfinite(value),
    "a whole number": lambda value: type(value) is int,
    "a whole number from 1": lambda value: type(value) is int and value >= 1,
    "true or false": lambda value: type(value) is bool,
    "a word": lambda value: isinstance(value, str),
    "words or a list of words": lambda value: all(
        isinstance(word, str) for word in (value if isinstance(value, list) else [value])
    ),
    "an object": lambda value: isinstance(value, Mapping),
}
# checked before the episode: an endpoint would refuse them at its first turn, in words of its own
SAMPLING: Mapping[str, str] = {
    "temperature": "a number",
    "top_p": "a number",
    "min_p": "a number",
    "top_k": "a whole number",
    "max_tokens": "a whole number from 1",
    "max_completion_tokens": "a whole number from 1",
    "presence_penalty": "a number",
    "frequency_penalty": "a number",
    "repetition_penalty": "a number",
    "seed": "a whole number",
    "stop": "words or a list of words",
    "logit_bias": "an object",
    "reasoning_effort": "a word",
    "parallel_tool_calls": "true or false",
}
"""The members of `policy.config` that are sent in each request, and what each has to be. No others are sent."""

OURS = frozenset(
    ("model", "messages", "tools", "tool_choice", "functions", "function_call", "response_format", "stream",
     "stream_options", "n")
)  # fmt: skip
"""Members that `extra_body` must not contain: the kit sets them and reads the answer accordingly."""


def wants_token_ids(config: Mapping[str, Any], *, record_logprobs: bool, mode: str) -> bool:
    """Whether to request token ids: `policy.config.return_token_ids`, else True when training records logprobs.

    Raises RequestError naming the field.
    """
    return _flag_of(config, "return_token_ids", record_logprobs and mode == "rl")


def read_options(
    config: Mapping[str, Any],
    *,
    output_mode: OutputMode = "tool_calls",
    structured_config: StructuredConfig | None = None,
    record_logprobs: bool = False,
    mode: str = "eval",
) -> PolicyOptions:
    """The options from `policy.config`, `output_mode`, `structured_config`, `record.logprobs` and the request's mode.

    Token ids are requested only with `policy.config.return_token_ids`, or when log-probabilities are recorded for training
    (mode `rl`), because an endpoint that does not know the member may refuse it. Raises RequestError naming the field.
    """
    sampling: dict[str, Json] = {}
    for name, expected in SAMPLING.items():
        value = config.get(name)
        if value is None:
            continue
        if not _FITS[expected](value):
            raise _refused((name,), value, expected)
        sampling[name] = value
    return PolicyOptions(
        mode=output_mode,
        sampling=sampling,
        extra=_extra(config.get("extra_body")),
        history=read_history(config.get("history")),
        tool_choice=_tool_choice(config.get("tool_choice")),
        pictures=config.get("images") is not False,
        reasoning=_flag_of(config, "keep_reasoning", True),
        logprobs=record_logprobs,
        # only for training or on request, because an endpoint that does not know the member may refuse it
        token_ids=wants_token_ids(config, record_logprobs=record_logprobs, mode=mode),
        structured=structured_config,
    )


def _extra(given: Json) -> Mapping[str, Json]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise _refused(("extra_body",), given, "an object")
    taken = sorted(OURS & set(given))
    if taken:
        # the record would say something else than what was sent
        raise _refused(("extra_body", taken[0]), given[taken[0]], "absent: that member is written by taskapp-kit")
    try:
        extra: dict[str, Json] = plain(given, "extra_body")
    except NotJson as error:
        raise _refused(("extra_body",), str(error), "plain JSON") from None
    return extra


def _tool_choice(given: Json) -> Json:
    if given is None or given in ("auto", "required", "none"):
        return given
    function = given.get("function") if isinstance(given, Mapping) and given.get("type") == "function" else None
    if isinstance(function, Mapping) and isinstance(function.get("name"), str):
        # rebuilt, so that nothing else of the caller's object is sent
        return {"type": "function", "function": {"name": function["name"]}}
    expected = '"auto", "required", "none" or {"type": "function", "function": {"name": NAME}}'
    raise _refused(("tool_choice",), given, expected)


def _flag_of(config: Mapping[str, Any], name: str, otherwise: bool) -> bool:
    value = config.get(name)
    if value is None:
        return otherwise
    if type(value) is not bool:
        raise _refused((name,), value, "true or false")
    return value


def _refused(path: tuple[str, ...], value: Any, expected: str) -> RequestError:
    message = f"policy.config.{'.'.join(path)} is {str(value)[:80]!r}; expected {expected}."
    return RequestError(message, fields=(FieldProblem(("body", "policy", "config", *path), message),))
