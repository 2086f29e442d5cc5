"""Policies that do not call a model: random, noop, constant, replay, and an app's own functions."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from taskapp_kit.declare.signature import finished
from taskapp_kit.declare.source_location import without_folder
from taskapp_kit.declare.specs import AuthorPolicySpec, EnvironmentSpec
from taskapp_kit.errors import FieldProblem, KitError, RequestError
from taskapp_kit.records.content import Json, NotJson, plain, without_images
from taskapp_kit.records.protocols import PolicyStops, Tool, View
from taskapp_kit.records.seeds import derived_rng
from taskapp_kit.records.trajectory import Decision, Recording, ToolCall
from taskapp_kit.rollout.policy.sampling import Draw, Unbounded, compile_sampler


class PolicyError(KitError):
    """A policy returned an invalid value. The message contains the value and what was expected."""


def policy_rng(environment: str, split: str, seed: int, sample: int) -> random.Random:
    """Return the policy's random generator, which is independent of the environment's. sample: the rollout's sample number."""
    # not the environment's generator, because a policy's draws must not change the environment
    return derived_rng("policy", environment, split, seed, sample)


class RandomPolicy:
    """A policy that draws a tool uniformly in each turn, and then each of the tool's fields uniformly."""

    name = "random"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def decide(self, view: View) -> Decision:
        """Return one uniformly drawn action."""
        tools = view.tools
        tool = self._rng.choice(tools) if len(tools) > 1 else tools[0]
        return Decision([ToolCall(tool.name, sampler_of(tool)(self._rng))])


_compiled: dict[int, tuple[Tool, Draw]] = {}


def sampler_of(tool: Tool) -> Draw:
    """Return the author's `sample` for a tool's arguments, or else a sampler for their schema.

    Raises Unbounded if the schema has no bounds.
    """
    known = _compiled.get(id(tool))
    # an id may belong to another object after the first was collected
    if known is not None and known[0] is tool:
        return known[1]
    draw = compile_sampler(tool.parameters, tool.name) if tool.sample is None else _author_sampler(tool, tool.sample)
    if len(_compiled) > 4096:  # limited, because an environment may create new tools in each episode
        _compiled.clear()
    _compiled[id(tool)] = (tool, draw)
    return draw


def _author_sampler(tool: Tool, sample: Callable[[random.Random], Any]) -> Draw:
    return lambda rng: _arguments(finished(sample(rng)), tool)


def _arguments(drawn: Any, tool: Tool) -> Json:
    value = plain(drawn, f"{tool.name}.sample")
    # the sampler of an action for plain text may return a string
    if tool.text and isinstance(value, str):
        return {next(iter(tool.parameters.get("properties", {"text": None}))): value}
    return value


def random_policy(environment: EnvironmentSpec, rng: random.Random) -> RandomPolicy:
    """Return the policy `random`. Raises RequestError, which names the action's line, if a field of an action has no bounds."""
    for action in environment.actions.values():
        try:
            sampler_of(action.tool)
        except Unbounded as error:
            raise unavailable(
                "random",
                f"action {action.name!r} at {without_folder(action.place)}: {error}",
                "Bound the action's fields (Literal, Field(ge=, le=), a maximum length), or declare a sampler with "
                "@action(sample=fn).",
            ) from None
    return RandomPolicy(rng)


class ConstantPolicy:
    """A policy that returns the same answer in every turn."""

    def __init__(self, name: str, answer: Decision) -> None:
        self.name = name
        self._answer = answer

    def decide(self, view: View) -> Decision:
        """Return a copy of the answer."""
        return Decision([ToolCall(call.tool, call.args) for call in self._answer.tool_calls], self._answer.output)


def noop_policy(environment: EnvironmentSpec) -> ConstantPolicy:
    """Return the policy that repeats the action marked `@action(noop={…})`. Raises RequestError if no action is marked."""
    for action in environment.actions.values():
        if action.tool.noop is not None:
            return ConstantPolicy("noop", Decision([ToolCall(action.name, plain(action.tool.noop, "noop"))]))
    raise unavailable(
        "noop",
        f"environment {environment.name!r} at {without_folder(environment.place)} has no action marked "
        "@action(noop={…})",
        "Mark the action that changes nothing, or choose another policy.",
    )


def constant_policy(environment: EnvironmentSpec, config: Mapping[str, Json]) -> ConstantPolicy:
    """Return the policy that repeats `policy.config.action`: `{"tool": {args}}`, a list of such objects, or plain text.

    Raises RequestError if the action is missing, or invalid in every state of the environment. Raises PolicyError for
    values of another type.
    """
    if "action" not in config:
        raise unavailable(
            "constant",
            "policy.config has no 'action'",
            'Set policy.config to {"action": {TOOL: {ARGUMENTS}}} or {"action": "TEXT"}.',
        )
    answer = answer_from(config["action"], "policy.config.action")
    # checked before anything runs, because an episode of refusals costs time and shows nothing
    problems = [_never(environment, call) for call in answer.tool_calls] or [_never_words(environment, answer)]
    # one valid call is enough, because a call that one state refuses may be accepted in another state
    if problems[0] is not None and None not in problems:
        message = f"The policy 'constant' can never act: {problems[0]}."
        words = ', or {"action": "TEXT"}' if environment.text_action is not None else ""
        raise RequestError(
            message,
            fields=(FieldProblem(("body", "policy", "config", "action"), message, "policy_unavailable"),),
            code="policy_unavailable",
            hint=f'Set {{"action": {{TOOL: {{ARGUMENTS}}}}}} with a tool of the environment{words}.',
        )
    return ConstantPolicy("constant", answer)


def _never(environment: EnvironmentSpec, call: ToolCall) -> str | None:
    """Return why the environment can never accept this call, or None if it may accept the call."""
    if call.tool not in environment.actions:
        return (
            f"policy.config.action names the unknown tool {call.tool[:80]!r}; the tools of {environment.name!r} are "
            f"{', '.join(environment.actions)}"
        )
    if not isinstance(call.args, Mapping):
        kind = type(call.args).__name__
        return f"the arguments of {call.tool} in policy.config.action are a {kind}, expected an object"
    return None


def _never_words(environment: EnvironmentSpec, answer: Decision) -> str | None:
    """Return why the environment can never accept this plain-text answer, or None if it may accept the answer."""
    if environment.text_action is None:
        return (
            "policy.config.action is plain text, which no action of environment "
            f"{environment.name!r} accepts; its tools are {', '.join(environment.actions)}"
        )
    if not answer.output and not environment.one_answer:
        return f"policy.config.action is empty, which environment {environment.name!r} always refuses"
    return None


class ReplayPolicy:
    """A policy that repeats a stored rollout's answers.

    After the last answer, it stops at the limit that ended the stored rollout, or raises PolicyError if no limit ended it.
    """

    name = "replay"

    def __init__(self, recording: Recording) -> None:
        self._answers = recording.answers
        self._given = 0
        self._stops = recording.stops

    def decide(self, view: View) -> Decision:
        """Return the next stored answer. Turns that the caller scripted do not count."""
        if self._given >= len(self._answers):
            # a limit of the original request is not in the environment, so the recording contains it
            if self._stops is not None:
                raise PolicyStops(self._stops)
            raise PolicyError(
                f"The stored rollout ended after turn {len(self._answers)}, but this episode reached turn {self._given + 1}, so "
                "the episodes differ.",
                hint="Replay with the same environment version, split, seed and env.config.",
            )
        self._given += 1
        return self._answers[self._given - 1]


class AuthorPolicy:
    """An app's `@app.policy` function. It receives the observation without its images."""

    def __init__(self, spec: AuthorPolicySpec, rng: Callable[[], random.Random]) -> None:
        self.name = spec.name
        self._function: Callable[..., Any] = spec.function
        self._wants = spec.parameters
        # created once, because the whole episode draws from one generator
        self._given: dict[str, Any] = {"rng": rng()} if "rng" in spec.parameters else {}

    def decide(self, view: View) -> Decision:
        """Return the function's answer. Raises the function's exceptions, and PolicyError if the answer is invalid."""
        given = self._given
        observation = without_images(view.observation)
        # a copy, so that a policy cannot change the record
        given["observation"] = observation if isinstance(observation, str) else plain(observation, "")
        given["task"] = view.task
        returned = finished(self._function(**{name: given[name] for name in self._wants}))
        return answer_from(returned, f"policy {self.name!r}")


def answer_from(value: Any, who: str) -> Decision:
    """Convert `{"tool": {args}}`, a list of such objects, or a string to a Decision. Raises PolicyError for other values.

    `{"tool": NAME, "args": {…}}` is also accepted if the value of `tool` is a string.
    """
    if isinstance(value, str):
        return Decision(output=value)
    if (type(value) is dict or isinstance(value, Mapping)) and value:
        if set(value) == {"tool", "args"} and isinstance(value["tool"], str):
            return Decision([ToolCall(value["tool"], _plain(value["args"], who))])
        return Decision([ToolCall(str(tool), _plain(args, who)) for tool, args in value.items()])
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, Mapping) for item in value):
        return Decision([call for item in value for call in answer_from(item, who).tool_calls])
    raise PolicyError(f"{who}: got {str(value)[:80]!r}, expected {{TOOL: {{ARGUMENTS}}}}, a list of these, or text.")


def _plain(args: Any, who: str) -> Json:
    try:
        return plain(args if args is not None else {}, "args")
    except NotJson as error:
        raise PolicyError(f"{who}: {error}; arguments must be JSON.") from None


def unavailable(
    name: str, why: str, hint: str, *, loc: tuple[str, ...] = ("body", "policy", "policy_name")
) -> RequestError:
    """Return the error for a known policy that cannot be used. loc: the field of the request that names the policy."""
    message = f"policy {name!r} is unavailable: {why}."
    return RequestError(
        message,
        hint=hint,
        code="policy_unavailable",
        fields=(FieldProblem(loc, message, "policy_unavailable"),),
    )
