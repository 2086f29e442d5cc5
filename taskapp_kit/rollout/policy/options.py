"""Reads `policy.config`, which selects the policy and contains the options of a model's conversation.

The policy is `policy.config.policy` if it is set, then `policy_name` if that is a known policy, then the model at
`inference_url`. Otherwise the request gets a 422.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from taskapp_kit.declare.app import Exposure
from taskapp_kit.declare.specs import AppSpec, EnvironmentSpec
from taskapp_kit.errors import FieldProblem, RequestError, closest
from taskapp_kit.records.content import Json, NotJson, plain
from taskapp_kit.records.protocols import LocalPolicy
from taskapp_kit.records.trajectory import Recording
from taskapp_kit.rollout.policy.builtin import (
    AuthorPolicy,
    PolicyError,
    ReplayPolicy,
    constant_policy,
    noop_policy,
    policy_rng,
    random_policy,
    unavailable,
)

if TYPE_CHECKING:
    from taskapp_kit.wire.rollout import StructuredConfig

BUILT_IN = ("random", "noop", "constant", "replay")
MODEL = "model"
"""The policy's name when the model at `inference_url` acts."""

SESSION = "session"
"""The policy's name when a session's caller acts (`rollout/session.py`). No request can name it."""

PERSON = "person"
"""The policy's name when the session's caller is a person in the viewer. `taskapp play` also stores this name."""

CALLERS = (SESSION, PERSON)

GOLD = "gold"
"""The policy with the app's example of good play. Only this policy may read a task's private fields."""

# a list of the fields that are stored, not of the omitted fields, because an unknown field may contain a key
STORED_CONFIG = tuple(
    """policy model sample action rollout_id temperature top_p top_k max_tokens max_completion_tokens min_p
    presence_penalty frequency_penalty repetition_penalty seed stop images history tool_choice
    parallel_tool_calls reasoning_effort logit_bias keep_reasoning return_token_ids session_id protocol""".split()
)
"""The stored fields of `policy.config`. The model's address is also stored, without userinfo and query (except `cid`)."""
KNOWN_CONFIG = frozenset((*STORED_CONFIG, "inference_url", "api_key", "extra_body", "trace_correlation_id", "trace"))
"""All fields of `policy.config` that have an effect."""
MOST_UNKNOWN_NAMED = 8
LONGEST_UNKNOWN_NAME = 40


def offered(app: AppSpec, *, exposure: Exposure, gold: bool | None) -> AppSpec:
    """Return the app with only the policies that a server offers. gold: the setting `TASKAPP_GOLD`, or None if it is not set.

    By default, a policy `gold` that reads the task's row is withheld under exposure "public", because its actions reveal private
    fields.
    """

    def stays(name: str, parameters: Sequence[str]) -> bool:
        if name != GOLD:
            return True
        # on the same machine, an author can read the solutions anyway
        return exposure != "public" or "task" not in parameters if gold is None else gold

    policies = tuple(spec for spec in app.policies if stays(spec.name, spec.parameters))
    if len(policies) == len(app.policies):
        return app
    return replace(app, policies=policies, withheld=tuple(spec for spec in app.policies if spec not in policies))


def policy_names(app: AppSpec, environment: str) -> list[str]:
    """Return the names of all policies for this environment, the app's own policies first."""
    own = [spec.name for spec in app.policies if spec.applies_to(environment)]
    return own + [name for name in BUILT_IN if name not in own]


def policies_of(app: AppSpec, environment: EnvironmentSpec) -> dict[str, str | None]:
    """Map the name of each policy to None, or to the reason why it is unavailable. The app's own policies come first."""
    own = {spec.name for spec in app.policies if spec.applies_to(environment.name)}
    found: dict[str, str | None] = {}
    for name in policy_names(app, environment.name):
        found[name] = None
        try:
            if name == "random" and name not in own:
                random_policy(environment, random.Random(0))
            elif name == "noop" and name not in own:
                noop_policy(environment)
        except RequestError as error:
            # the reason follows the name in a list
            found[name] = error.message.partition("is unavailable: ")[2] or error.message
    return found


def unknown_config(config: Mapping[str, Json]) -> list[str]:
    """Return a warning for each field of `policy.config` that has no effect, with a similar known name, if any.

    At most `MOST_UNKNOWN_NAMED` fields are named, and only if the name is a short identifier (hyphens are allowed). All other
    fields are only counted.
    """
    unknown = [name for name in config if name not in KNOWN_CONFIG]
    # a name may be any string, even a key or a page of text, and the warning goes into a response and a log
    named = [name for name in unknown if len(name) <= LONGEST_UNKNOWN_NAME and name.replace("-", "_").isidentifier()]
    warnings = []
    for name in named[:MOST_UNKNOWN_NAMED]:
        close = closest(name, sorted(KNOWN_CONFIG))
        meant = f"; did you mean {close!r}?" if close else ""
        warnings.append(f"policy.config.{name} is not known here and was ignored{meant}")
    if more := len(unknown) - len(warnings):
        count = f"{more} more" if warnings else f"{more}"
        warnings.append(f"{count} of the members of policy.config are not known here and were ignored")
    return warnings


def _available(app: AppSpec, environment: str) -> list[str]:
    """Return the names of the policies that a request can select."""
    return [name for name, why in policies_of(app, app.environments[environment]).items() if why is None]


def chosen_name(
    app: AppSpec, environment: str, config: Mapping[str, Json], policy_name: str | None, inference_url: str | None
) -> str:
    """Return the name of the selected policy. Raises RequestError with the valid names for an unknown policy."""
    names = policy_names(app, environment)
    asked = config.get("policy")
    loc = ("body", "policy", "policy_name") if asked is None else ("body", "policy", "config", "policy")
    wanted = policy_name if asked is None else asked
    # a separate error, or the caller would look for a misspelling
    if any(spec.name == wanted and spec.applies_to(environment) for spec in app.withheld):
        raise unavailable(
            str(wanted),
            "this server does not offer it, because its actions may reveal private fields of the task",
            "Choose another policy, or start the server with `taskapp serve --gold` or TASKAPP_GOLD=on.",
            loc=loc,
        )
    if asked is not None:
        if asked not in names:
            raise _unknown(asked, _available(app, environment), loc)
        return str(asked)
    # `policy_name` is often the caller's own label, so an unknown name is not an error if there is a model
    if policy_name in names:
        return str(policy_name)
    if inference_url is not None:
        return MODEL
    raise _unknown(
        policy_name, _available(app, environment), loc, "To use a language model, set policy.config.inference_url."
    )


def make_policy(
    app: AppSpec,
    environment: EnvironmentSpec,
    name: str,
    config: Mapping[str, Json],
    *,
    split: str,
    seed: int,
    recording: Recording | None = None,
) -> LocalPolicy:
    """Create the policy of one rollout. recording: the stored answers for `replay`. Raises RequestError for a bad config."""
    sample = _sample(config)

    def rng() -> random.Random:  # created on demand, because hashing and seeding cost more than a small step
        return policy_rng(environment.name, split, seed, sample)

    for spec in app.policies:
        if spec.name == name and spec.applies_to(environment.name):
            # first, so that an app can replace a built-in policy
            return AuthorPolicy(spec, rng)
    if name == "random":
        return random_policy(environment, rng())
    if name == "noop":
        return noop_policy(environment)
    if name == "replay":
        return ReplayPolicy(recording or Recording([]))
    try:
        return constant_policy(environment, config)
    except PolicyError as error:
        raise RequestError(
            error.message, fields=(FieldProblem(("body", "policy", "config", "action"), error.message),)
        ) from None


def _sample(config: Mapping[str, Json]) -> int:
    sample = config.get("sample", 0)
    if type(sample) is not int or not 0 <= sample < 2**63:
        message = f"policy.config.sample is {str(sample)[:80]!r}; expected an integer of at least 0."
        raise RequestError(message, fields=(FieldProblem(("body", "policy", "config", "sample"), message),))
    return sample


def _unknown(asked: object, names: list[str], loc: tuple[str | int, ...], more: str = "") -> RequestError:
    close = closest(str(asked), names)
    found = "The request names no policy" if asked is None else f"There is no policy {str(asked)[:80]!r}"
    message = f"{found}; the policies are {', '.join(names)}."
    hint = " ".join(filter(None, (f"Did you mean {close!r}?" if close else "", more)))
    return RequestError(
        message, fields=(FieldProblem(loc, message, "unknown_policy"),), code="unknown_policy", hint=hint
    )


CHARACTERS_PER_TOKEN = 4.0
"""The estimated characters per token until an endpoint has reported a token count."""
MESSAGE_CHARACTERS = 16
"""The estimated characters that a chat template adds to each message."""
PICTURE_CHARACTERS = 4000
"""The estimated characters of an image, about a thousand tokens. An image's bytes do not predict its tokens."""
LEARNED = (0.02, 4.0)
"""The plausible range of tokens per character. Counts of an endpoint outside this range are ignored."""


class EstimatedTokens:
    """Estimates the tokens in one rollout's conversation from the number of characters.

    At first, a token is assumed to have 4 characters. Later, the ratio comes from the endpoint's token count for the last
    prompt.
    """

    def __init__(self) -> None:
        self._per_character = 1 / CHARACTERS_PER_TOKEN

    def tokens(self, characters: int) -> float:
        """Return the estimated number of tokens."""
        return characters * self._per_character

    def learn(self, characters: int, tokens: float) -> None:
        """Use the endpoint's ratio of tokens to characters from now on if the ratio is plausible."""
        if characters > 0 and LEARNED[0] <= tokens / characters <= LEARNED[1]:
            self._per_character = tokens / characters


class History(Protocol):
    """Selects the exchanges in a prompt. The oldest exchanges are omitted first.

    An exchange is a reply of the model with all messages that follow it, so no call is sent without its result. The opening
    (the system prompt and the first observation) is always included.
    """

    def first(self, opening: int, exchanges: Sequence[int], counter: EstimatedTokens) -> int:
        """Return the index of the oldest exchange in the prompt. opening, exchanges: sizes in characters."""
        ...


# Only this history preserves the token prefix: each prompt begins with the previous prompt and reply, so an engine's
# prefix cache stays valid, and a trainer can join the turns. LastTurns changes the prefix in each turn after it begins to
# omit turns, and TokenBudget in each turn that omits more than the previous turn.
@dataclass(frozen=True, slots=True)
class FullHistory:
    """A history with every exchange."""

    def first(self, opening: int, exchanges: Sequence[int], counter: EstimatedTokens) -> int:
        """Return 0."""
        return 0


@dataclass(frozen=True, slots=True)
class LastTurns:
    """A history with the last `turns` exchanges. `turns` is at least 1."""

    turns: int

    def first(self, opening: int, exchanges: Sequence[int], counter: EstimatedTokens) -> int:
        """Return the index that omits all exchanges except the last `turns`."""
        return max(0, len(exchanges) - self.turns)


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """A history with the latest exchanges that, with the opening and the tools, fit in `budget` tokens."""

    budget: int

    def first(self, opening: int, exchanges: Sequence[int], counter: EstimatedTokens) -> int:
        """Return the index of the oldest exchange that fits the budget. The latest exchange is always included."""
        at, characters = len(exchanges), opening
        while at > 0:
            characters += exchanges[at - 1]
            # the latest exchange is always included, or the model would not see the result of its reply
            if at < len(exchanges) and counter.tokens(characters) > self.budget:
                break
            at -= 1
        return at


def read_history(given: Json) -> History:
    """Convert `policy.config.history` to a History. Raises RequestError for invalid values."""
    if given is None or given == "full":
        return FullHistory()
    if isinstance(given, Mapping) and len(given) == 1:
        (word, value), *_ = given.items()
        # stored with the rollout as a 64-bit integer
        if type(value) is int and 1 <= value < 2**63:
            if word == "turns":
                return LastTurns(value)
            if word == "tokens":
                return TokenBudget(value)
    message = (
        f'policy.config.history is {str(given)[:80]!r}; expected "full", {{"turns": N}} or {{"tokens": N}} with an '
        "integer N of at least 1."
    )
    raise RequestError(message, fields=(FieldProblem(("body", "policy", "config", "history"), message),))


def characters_of(message: Mapping[str, Any]) -> int:
    """Return the approximate size of a message in characters. An image counts as PICTURE_CHARACTERS."""
    return MESSAGE_CHARACTERS + _characters(message)


def _characters(value: Any) -> int:
    kind = type(value)
    if kind is str:
        return len(value)
    if kind is dict or isinstance(value, Mapping):
        # the number of bytes of an image does not predict its tokens
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

    sampling: fields that are copied into each request. extra: additional fields that the endpoint defines, which override
    `sampling`. tool_choice: None means `auto` or `required`, depending on the actions. pictures: whether to send images.
    Otherwise a string replaces each image. reasoning: whether to send back the model's reasoning of earlier turns.
    logprobs, token_ids: whether to request them from the endpoint. structured: the schema of the reply in mode
    `structured`, or None to build a schema from the actions.
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
    # `type`, because `isinstance(True, int)` is true
    "a number": lambda value: type(value) in (int, float) and math.isfinite(value),
    "an integer": lambda value: type(value) is int,
    "an integer of at least 1": lambda value: type(value) is int and value >= 1,
    "true or false": lambda value: type(value) is bool,
    "a string": lambda value: isinstance(value, str),
    "a string or a list of strings": lambda value: all(
        isinstance(word, str) for word in (value if isinstance(value, list) else [value])
    ),
    "an object": lambda value: isinstance(value, Mapping),
}
# checked before the episode, because an endpoint would only reject them in the first turn
SAMPLING: Mapping[str, str] = {
    "temperature": "a number",
    "top_p": "a number",
    "min_p": "a number",
    "top_k": "an integer",
    "max_tokens": "an integer of at least 1",
    "max_completion_tokens": "an integer of at least 1",
    "presence_penalty": "a number",
    "frequency_penalty": "a number",
    "repetition_penalty": "a number",
    "seed": "an integer",
    "stop": "a string or a list of strings",
    "logit_bias": "an object",
    "reasoning_effort": "a string",
    "parallel_tool_calls": "true or false",
}
"""The fields of `policy.config` that are sent in each request, with the expected values. No other fields are sent."""

OURS = frozenset(
    """model messages tools tool_choice functions function_call response_format stream stream_options n""".split()
)
"""Fields that `extra_body` must not contain, because the kit sets them and parses the reply accordingly."""


def wants_token_ids(config: Mapping[str, Any], *, record_logprobs: bool, mode: str) -> bool:
    """Return whether to request token ids. Defaults to True if training (mode `rl`) records log-probabilities.

    Raises RequestError if `policy.config.return_token_ids` is not a boolean.
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
    """Return the options for a request's `policy.config`, output mode, structured output, log-probabilities and mode.

    Raises RequestError, which names the field, for an invalid value.
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
        # only for training or on request, because an endpoint may reject an unknown field
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
        # otherwise the record would differ from the request that was sent
        raise _refused(("extra_body", taken[0]), given[taken[0]], "no value, because taskapp-kit sets this field")
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
        # rebuilt, so that no other field of the caller's object is sent
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
