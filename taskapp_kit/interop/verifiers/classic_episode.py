"""An episode of verifiers' classic environments (`load_environment`): SingleTurnEnv, MultiTurnEnv, ToolEnv.

Written against verifiers 0.3.1, the last release with this API. This module calls the hooks of an environment in the
order of `MultiTurnEnv.rollout`: `init_state`, `setup_state`, `get_prompt_messages`, `add_model_response`,
`is_completed`, `cleanup`, then the rubric's functions. The policy takes the place of verifiers' client.
`Rubric.score_rollout` is not used, because it only logs exceptions and continues with 0.0.
"""

from __future__ import annotations

import inspect
import json
import logging
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import verifiers as vf
from verifiers.clients import Client
from verifiers.types import Response, ResponseMessage, ToolCall
from verifiers.utils.async_utils import maybe_await
from verifiers.utils.message_utils import maybe_normalize_messages

from taskapp_kit.interop.chat_content import observation_of
from taskapp_kit.interop.class_parts import ClassParts
from taskapp_kit.interop.schema_tools import tool_methods
from taskapp_kit.interop.verifiers.episode import PAID_BY_NAME, VerifiersEnvironment, VerifiersFailed
from taskapp_kit.records.content import Json
from taskapp_kit.records.trajectory import Step

log = logging.getLogger("taskapp_kit.interop.verifiers")

PLAYED = frozenset({
    "environment.Environment", "multiturn_env.MultiTurnEnv", "singleturn_env.SingleTurnEnv", "tool_env.ToolEnv",
    "reasoninggym_env.ReasoningGymEnv", "textarena_env.TextArenaEnv", "gym_env.GymEnv",
})  # fmt: skip
"""The classes of verifiers that can be played. Other classes need a sandbox, a program or several parts."""
LIMITS = frozenset({"max_turns_reached", "max_total_completion_tokens_reached", "prompt_too_long", "timeout_reached"})
"""The stop conditions that truncate an episode."""


class PolicysClient(Client):
    """A placeholder for verifiers' client. An environment cannot call the policy's model itself."""

    def __init__(self) -> None:
        super().__init__(None)

    async def get_response(self, *_: Any, **__: Any) -> Any:
        """Raise VerifiersFailed, because an environment must not call the policy's model."""
        raise VerifiersFailed("The environment called the policy's model itself, which is not supported.")

    setup_client = to_native_tool = to_native_prompt = get_native_response = get_response
    raise_from_native_response = from_native_response = get_response

    async def close(self) -> None:
        """Do nothing, because no connection is open."""


def members_of(parts: ClassParts, env: Any, rewarded: bool, samples: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that the class adds to `VerifiersEnvironment`.

    Raises DeclarationError if the environment cannot be played.
    """
    for cls in type(env).__mro__:
        place, _, module = cls.__module__.rpartition(".")
        if place.startswith("verifiers") and ".envs" in f".{place}" and f"{module}.{cls.__name__}" not in PLAYED:
            raise parts.wrong(
                f"cannot play {parts.name!r}: it is a {cls.__name__}",
                "a SingleTurnEnv, MultiTurnEnv or ToolEnv of verifiers",
                "play it with verifiers itself",
            )
    if not isinstance(env, vf.MultiTurnEnv):
        raise parts.wrong(
            f"is called with {parts.name!r}, whose load_environment returned a {type(env).__name__}",
            "a MultiTurnEnv of verifiers",
            "return a MultiTurnEnv from load_environment",
        )
    leaves = list(_leaves(env.rubric))
    for rubric in leaves:
        if type(rubric).score_rollout is not vf.Rubric.score_rollout:
            raise parts.wrong(
                f"cannot score {parts.name!r}: {type(rubric).__name__} overrides score_rollout",
                "reward functions",
                "use vf.Rubric(funcs=…)",
            )
        for function in rubric._get_group_reward_funcs():
            raise parts.wrong(
                f"cannot score {parts.name!r}: {_name(function)} scores several rollouts together",
                "functions that score one rollout",
                "score groups in the trainer",
            )
    if rewarded and not any(weight for rubric in leaves for weight in rubric.weights):
        raise parts.wrong(f"found no reward function with a weight in {parts.name!r}", "at least one", PAID_BY_NAME)
    splits, begin = {}, 0
    for split, source in (("train", env.dataset_source), ("eval", env.eval_dataset_source)):
        if source is not None:
            rows = env.get_dataset() if split == "train" else env.get_eval_dataset()
            splits[split] = range(begin, begin + len(rows))
            begin += len(rows)
    tools = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
        for tool in env.tool_defs or ()
    ]
    methods = tool_methods(parts, tools, ClassicEnvironment.call_tool, samples)
    return {"env": env, "splits": splits, "max_turns": env.max_turns if env.max_turns > 0 else None, **methods}


class ClassicEnvironment(VerifiersEnvironment):
    """A rollout of a classic environment. state: verifiers' state of the rollout, which `reset` sets."""

    env: Any
    max_turns: int | None
    """The environment's own turn limit, which truncates the episode."""

    async def reset(self, seed: int, split: str) -> Any:
        """Begin the rollout of a row and return its prompt. Exceptions of the environment are not caught."""
        rows = self.env.get_dataset() if split == "train" else self.env.get_eval_dataset()
        row = {"example_id": seed, **rows[seed - self.splits[split].start]}
        self.state = await self.env.init_state(row, PolicysClient(), "policy", {})
        timing = self.state["timing"]
        timing.generation.start = timing.setup.start = time.time()
        changed = await self.env.setup_state(self.state)
        self.state = self.state if changed is None else changed
        timing.setup.end = time.time()
        declared = {tool.name for tool in self.env.tool_defs or ()}
        unknown = [tool.name for tool in self.state["tool_defs"] if tool.name not in declared]
        if unknown:
            raise VerifiersFailed(
                f"A row of the data set has the tool {unknown[0]}, which the environment did not declare."
            )
        if await self._over():
            raise VerifiersFailed("The rollout ended before the policy's first turn.")
        self.prompt: list[Any] = await self._next_prompt()
        return observation_of(self.prompt)

    async def call_tool(self, name: str, arguments: dict[str, Json]) -> Step:
        """Play a turn with a tool call."""
        call = ToolCall(id=f"call_{len(self.state['trajectory'])}", name=name, arguments=json.dumps(arguments))
        return await self._answered(None, [call])

    async def speak(self, text: str) -> Step:
        """Play a turn with a text reply."""
        return await self._answered(text, [])

    async def _answered(self, text: str | None, calls: list[Any]) -> Step:
        message = ResponseMessage(
            role="assistant",
            content=text,
            tool_calls=calls or None,
            finish_reason="tool_calls" if calls else "stop",
            is_truncated=False,
        )
        self.begun = True
        count = len(self.state["trajectory"])
        response = Response(id=f"turn_{count}", created=0, model="policy", message=message)
        await self.env.add_model_response(self.state, self.prompt, response)
        shown = [*self.prompt, *self.state["trajectory"][-1]["completion"]]
        while not await self._over():
            prompt = await self._next_prompt()
            if self.state.get("final_env_response") is not None:
                continue
            repeated = prompt[: len(shown)] == shown
            self.prompt = prompt
            return Step(observation_of(prompt[len(shown) :] if repeated else prompt))
        final = maybe_normalize_messages(self.state.get("final_env_response") or [], field_name="final_env_response")
        stop = str(self.state.get("stop_condition"))
        reward, numbers = await self._scored()
        truncated = stop in LIMITS and not (stop == "max_turns_reached" and self.max_turns == 1)
        return Step(
            observation_of(final) if final else None,
            reward if self.rewarded else None,
            terminated=not truncated,
            truncated=truncated,
            info={"stop_condition": stop},
            metrics=numbers,
        )

    async def close(self) -> None:
        """Run the environment's cleanup handlers, unless they have already run."""
        if getattr(self, "state", None) is not None and not self.ended:
            self.ended = True
            await self.env.cleanup(self.state)
            await self.env.rubric.cleanup(self.state)

    async def _over(self) -> bool:
        """Return whether a stop condition is met. Raises the error that the environment stored in the state, if any."""
        over: bool = await self.env.is_completed(self.state)
        if isinstance(self.state.get("error"), BaseException):
            raise self.state["error"]
        return over

    async def _next_prompt(self) -> list[Any]:
        prompt = await self.env.get_prompt_messages(self.state)
        messages: list[Any] = maybe_normalize_messages(prompt, field_name="prompt")
        return messages

    async def _scored(self) -> tuple[float, dict[str, float]]:
        """Return the reward, and the functions' values by name.

        Raises VerifiersFailed if a function with a weight raises an exception.
        """
        self.ended = True
        await self.env.cleanup(self.state)
        reward = 0.0
        numbers: dict[str, float] = {}
        for rubric in _leaves(self.env.rubric):
            for function, weight in zip(rubric.funcs, rubric.weights, strict=True):
                try:
                    value = await _called(rubric, function, self.state)
                except Exception as error:
                    if weight:
                        raise VerifiersFailed(
                            f"The reward function {_name(function)!r} raised {type(error).__name__}.",
                            hint="The log contains the exception's message.",
                        ) from error
                    log.warning("the metric %s of %s raised %r", _name(function), type(self).__name__, error)
                    continue
                reward += weight * value
                if math.isfinite(value):
                    numbers[_name(function)] = numbers.get(_name(function), 0.0) + value
        self.state["reward"], self.state["metrics"] = reward, numbers
        await self.env.rubric.cleanup(self.state)
        return reward, numbers


async def _called(rubric: Any, function: Any, state: Any) -> float:
    """Call a reward function with the arguments that its parameters name.

    Raises TypeError if the result is not a number.
    """
    arguments = rubric.score_objects(state)
    parameters = inspect.signature(function).parameters.values()
    if not any(item.kind is item.VAR_KEYWORD for item in parameters):
        arguments = {item.name: arguments[item.name] for item in parameters if item.name in arguments}
    value = await maybe_await(function, **arguments)
    if isinstance(value, str | bytes):
        raise TypeError(f"the function returned {value!r:.80}; expected a number")
    return float(value)


def _leaves(rubric: Any) -> Iterator[Any]:
    """Yield the rubrics of a group, including nested groups."""
    inner = getattr(rubric, "rubrics", None)
    if inner is None:
        yield rubric
        return
    for part in inner:
        yield from _leaves(part)


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", function))
