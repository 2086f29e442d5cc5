"""Selects the policy: `policy.config.policy`; else `policy_name` if known; else the model at `inference_url`; else 422."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from taskapp_kit.declare.app import Exposure
from taskapp_kit.declare.specs import AppSpec, EnvironmentSpec
from taskapp_kit.errors import FieldProblem, RequestError, closest
from taskapp_kit.records.content import Json
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

BUILT_IN = ("random", "noop", "constant", "replay")
MODEL = "model"
"""The policy's name when the model at `inference_url` acts."""

SESSION = "session"
"""The policy's name when a session's caller acts (`rollout/session.py`). No request can name it."""

PERSON = "person"
"""The same where that caller is a person, in the viewer; `taskapp play` stores this name, too."""

CALLERS = (SESSION, PERSON)

GOLD = "gold"
"""The app's example of good play, the one policy that may read a task's private fields."""

# What is stored is listed, not what is left out: a member that a caller invents may hold a key.
STORED_CONFIG = (
    "policy", "model", "sample", "action", "rollout_id", "temperature", "top_p", "top_k", "max_tokens",
    "max_completion_tokens", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "stop",
    "images", "history", "tool_choice", "parallel_tool_calls", "reasoning_effort", "logit_bias", "keep_reasoning",
    "return_token_ids", "session_id", "protocol",
)  # fmt: skip
"""The stored members of `policy.config`. The model's address is stored, too, without userinfo and query (except `cid`)."""
KNOWN_CONFIG = frozenset((*STORED_CONFIG, "inference_url", "api_key", "extra_body", "trace_correlation_id", "trace"))
"""Every member of `policy.config` that has an effect."""
MOST_UNKNOWN_NAMED = 8
LONGEST_UNKNOWN_NAME = 40


def offered(app: AppSpec, *, exposure: Exposure, gold: bool | None) -> AppSpec:
    """The app with the policies that a server offers. gold: the setting `TASKAPP_GOLD`, None when it is not set.

    Unset, a `gold` that takes the task's row is withheld under exposure "public": its actions show private fields.
    """

    def stays(name: str, parameters: Sequence[str]) -> bool:
        if name != GOLD:
            return True
        # on this machine, an author may look at the solutions anyway
        return exposure != "public" or "task" not in parameters if gold is None else gold

    policies = tuple(spec for spec in app.policies if stays(spec.name, spec.parameters))
    if len(policies) == len(app.policies):
        return app
    return replace(app, policies=policies, withheld=tuple(spec for spec in app.policies if spec not in policies))


def policy_names(app: AppSpec, environment: str) -> list[str]:
    """Every policy that can be named for this environment, the app's own first."""
    own = [spec.name for spec in app.policies if spec.applies_to(environment)]
    return own + [name for name in BUILT_IN if name not in own]


def policies_of(app: AppSpec, environment: EnvironmentSpec) -> dict[str, str | None]:
    """Maps each policy to None, or to the sentence why it is unavailable; the app's own first."""
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
            # the sentence stands in a list after the name
            found[name] = error.message.partition("is unavailable: ")[2] or error.message
    return found


def unknown_config(config: Mapping[str, Json]) -> list[str]:
    """A warning for each member of `policy.config` that has no effect, with a similar known name if there is one.

    At most `MOST_UNKNOWN_NAMED` are named, and only short identifiers (hyphens allowed); the others are counted.
    """
    unknown = [name for name in config if name not in KNOWN_CONFIG]
    # a name may be anything, also a key or a page of text, and goes into a response and a log
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
    """The policies that a request can select."""
    return [name for name, why in policies_of(app, app.environments[environment]).items() if why is None]


def chosen_name(
    app: AppSpec, environment: str, config: Mapping[str, Json], policy_name: str | None, inference_url: str | None
) -> str:
    """The name of the selected policy. Raises RequestError listing the valid names."""
    names = policy_names(app, environment)
    asked = config.get("policy")
    loc = ("body", "policy", "policy_name") if asked is None else ("body", "policy", "config", "policy")
    wanted = policy_name if asked is None else asked
    # told apart from an unknown name: a caller would look for a typing error
    if any(spec.name == wanted and spec.applies_to(environment) for spec in app.withheld):
        raise unavailable(
            str(wanted),
            "this server does not offer it, as its actions may show private fields of the task",
            "Name another policy, or have the server offer it: `taskapp serve --gold`, or TASKAPP_GOLD=on.",
            loc=loc,
        )
    if asked is not None:
        if asked not in names:
            raise _unknown(asked, _available(app, environment), loc)
        return str(asked)
    # `policy_name` is often the caller's own label, so one that we do not know is no error where a model is named
    if policy_name in names:
        return str(policy_name)
    if inference_url is not None:
        return MODEL
    raise _unknown(
        policy_name, _available(app, environment), loc, "A language model needs policy.config.inference_url."
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
    """Creates the policy of one rollout. recording: the stored rollout's answers, for `replay`. Raises RequestError."""
    sample = _sample(config)

    def rng() -> random.Random:  # created only by policies that draw: hashing and seeding cost more than a small step
        return policy_rng(environment.name, split, seed, sample)

    for spec in app.policies:
        if spec.name == name and spec.applies_to(environment.name):
            # first, so that an app may replace a built-in policy
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
        message = f"policy.config.sample is {str(sample)[:80]!r}; expected a whole number from 0."
        raise RequestError(message, fields=(FieldProblem(("body", "policy", "config", "sample"), message),))
    return sample


def _unknown(asked: object, names: list[str], loc: tuple[str | int, ...], more: str = "") -> RequestError:
    close = closest(str(asked), names)
    found = "no policy is named in the request" if asked is None else f"there is no policy {str(asked)[:80]!r}"
    message = f"{found}; the policies are {', '.join(names)}."
    hint = " ".join(filter(None, (f"Did you mean {close!r}?" if close else "", more)))
    return RequestError(
        message, fields=(FieldProblem(loc, message, "unknown_policy"),), code="unknown_policy", hint=hint
    )
