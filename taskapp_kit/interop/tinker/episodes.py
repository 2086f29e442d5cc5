"""An app's episodes as `Env`, `EnvGroupBuilder` and `RLDataset` of the Tinker cookbook.

Written against tinker-cookbook 0.5.8 (`tinker_cookbook/rl/types.py`, which is the same at commit 9dfcc3a). The cookbook
samples and trains the model. Prompts, tools, limits, rubrics and judges are the same as for `POST /rollout`.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tinker
from tinker_cookbook.renderers import Message, Renderer, ToolCall
from tinker_cookbook.rl.types import ActionExtra, Env, EnvGroupBuilder, RLDataset, StepResult

from taskapp_kit.declare.discovery import find_app
from taskapp_kit.declare.episode_selection import find_environment, find_instance
from taskapp_kit.errors import BadArgument, UndefinedReward
from taskapp_kit.interop.callers_model import LoopServices, SteppedRollout
from taskapp_kit.records.content import Json
from taskapp_kit.wire.chat.conversation import ChatReply
from taskapp_kit.wire.chat.dialect_body import chat_call

_services = LoopServices()
"""The services of this process. A builder that was sent to another process uses the services of that process."""


class TinkerEpisode(Env):
    """An episode for one rollout. The reward of the last step is the reward of the whole episode.

    If the episode fails, the method that is running raises RolloutFailed, UndefinedReward or RequestError.
    """

    def __init__(self, app: str, env: Mapping[str, Json], renderer: Renderer, output_mode: str) -> None:
        self._app, self._env, self._renderer, self._output_mode = app, env, renderer, output_mode
        self._rollout: SteppedRollout | None = None
        self._answers: list[Message] = []
        self._examples = 0

    async def initial_observation(self) -> tuple[tinker.ModelInput, Any]:
        """Begin the episode. Return the prompt and the stop condition."""
        if self._rollout is not None:
            raise BadArgument("This Env has already begun its only rollout.", hint="Call make_envs() again.")
        self._rollout = SteppedRollout(
            _services.of(self._app), self._env, output_mode=self._output_mode, label="tinker"
        )
        body = await self._rollout.next()
        if body is None:
            raise BadArgument(
                "The episode ended before the model's first turn.", hint="Exclude this seed from the data set."
            )
        self._examples = sum(message["role"] == "assistant" for message in body["messages"])
        return self._prompt(body), self._renderer.get_stop_sequences()

    async def step(self, action: list[int], *, extra: ActionExtra | None = None) -> StepResult:
        """Pass the sampled tokens to the episode, and return the next prompt or the end of the episode."""
        assert self._rollout is not None, "initial_observation comes first"
        message, _ = self._renderer.parse_response(action)
        finish = "length" if extra and extra.get("stop_reason") == "length" else "stop"
        self._answers.append(message)
        body = await self._rollout.next(ChatReply(self._reply(message), finish_reason=finish))
        if body is not None:
            return StepResult(0.0, False, self._prompt(body), self._renderer.get_stop_sequences())
        scored = self._rollout.result()
        if scored.reward is None:
            raise UndefinedReward(rollout_id=scored.rollout_id)
        return StepResult(
            float(scored.reward),
            True,
            tinker.ModelInput.empty(),
            self._renderer.get_stop_sequences(),
            metrics={"turns": len(self._answers), "truncated": float(scored.status == "truncated")},
        )

    async def cancel(self) -> None:
        """Cancel the episode, without a score."""
        if self._rollout is not None and not self._rollout.ended:
            await self._rollout.cancel()

    def _prompt(self, body: Mapping[str, Any]) -> tinker.ModelInput:
        messages: list[Message] = []
        answered = -self._examples
        for message in body["messages"]:
            if message["role"] == "assistant":
                answered += 1
                if answered > 0:  # the message as the renderer parsed it, so that no sampled text is lost
                    messages.append(self._answers[answered - 1])
                    continue
            messages.append(_cookbook_message(message))
        if body.get("tools"):
            system = messages.pop(0)["content"] if messages[0]["role"] == "system" else ""
            tools = [tool["function"] for tool in body["tools"]]
            messages = [*self._renderer.create_conversation_prefix_with_tools(tools, system), *messages]
        return self._renderer.build_generation_prompt(messages)

    def _reply(self, message: Message) -> dict[str, Json]:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        texts = [part["text"] for part in parts if part["type"] == "text"]
        texts += [each.raw_text for each in message.get("unparsed_tool_calls", ())]
        reply: dict[str, Json] = {"role": "assistant", "content": "".join(texts)}
        if calls := message.get("tool_calls"):
            turn = len(self._answers)
            reply["tool_calls"] = [
                chat_call(call.id or f"call_{turn}_{number}", call.function.name, call.function.arguments)
                for number, call in enumerate(calls)
            ]
        return reply


@dataclass
class TaskAppGroupBuilder(EnvGroupBuilder):
    """Builds a group of rollouts with the same seed. app: a path or a name, so that the builder can be pickled."""

    app: str
    env: Mapping[str, Json]
    renderer: Renderer
    group_size: int
    output_mode: str = "tool_calls"
    _made: list[TinkerEpisode] = field(default_factory=list, repr=False)

    async def make_envs(self) -> Sequence[Env]:
        """Return new environments, whose rollouts have not begun."""
        made = [TinkerEpisode(self.app, self.env, self.renderer, self.output_mode) for _ in range(self.group_size)]
        self._made += made
        return made

    async def cleanup(self) -> None:
        """Cancel the running episodes."""
        made, self._made = self._made, []
        await asyncio.gather(*(env.cancel() for env in made), return_exceptions=True)

    def logging_tags(self) -> list[str]:
        """Return the name of the environment, as the only tag."""
        return [str(self.env["env_name"])]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": []}


class TaskAppDataset(RLDataset):
    """A data set of batches. A batch contains one group of rollouts for each of its seeds, in the order of the seeds."""

    def __init__(
        self,
        app: str,
        renderer: Renderer,
        *,
        groups_per_batch: int,
        group_size: int,
        environment: str | None = None,
        split: str | None = None,
        seeds: Iterable[int] | None = None,
        config: Mapping[str, Json] | None = None,
        output_mode: str = "tool_calls",
    ) -> None:
        """Load the app and select the seeds.

        Args:
            app: The path of the app's file, or the name of a bundled app.
            renderer: The cookbook's renderer for the model.
            groups_per_batch: The number of groups in a batch.
            group_size: The number of rollouts in a group.
            environment: The name of an environment. Defaults to the app's first.
            split: The name of a split. Defaults to the first.
            seeds: Seeds of the split. Defaults to all seeds.
            config: `env.config` of each episode.
            output_mode: The format of the model's replies: `tool_calls`, `text` or `structured`.

        Raises:
            DiscoveryError, DeclarationError, RequestError: The app or the selection is invalid.
            BadArgument: There are fewer seeds than groups in a batch.
        """
        spec = find_environment(find_app(app).freeze(), environment)
        chosen = find_instance(spec, split, None, random.Random(0)).split
        if seeds is None:
            seeds = spec.seeds_of(chosen)
        self._seeds = list(seeds)
        if len(self._seeds) < groups_per_batch:
            raise BadArgument(
                f"A batch has {groups_per_batch} groups, but only {len(self._seeds)} seeds of split {chosen!r} are available.",
                hint="Lower groups_per_batch.",
            )
        self._groups_per_batch, self._group_size = groups_per_batch, group_size
        self._app, self._renderer, self._output_mode = app, renderer, output_mode
        self._env: dict[str, Json] = {
            "env_name": spec.name,
            "config": {**json.loads(json.dumps(config or {})), "split": chosen},
        }

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        """Return the groups of a batch. index: from 0 to the number of batches minus 1."""
        start = index * self._groups_per_batch
        return [
            TaskAppGroupBuilder(
                self._app, {**self._env, "seed": seed}, self._renderer, self._group_size, self._output_mode
            )
            for seed in self._seeds[start : start + self._groups_per_batch]
        ]

    def __len__(self) -> int:
        return len(self._seeds) // self._groups_per_batch


async def close_services() -> None:
    """Close the services of the running event loop. They are also closed when the process ends."""
    await _services.close()


def _cookbook_message(message: Mapping[str, Any]) -> Message:
    content = message["content"] or ""
    if not isinstance(content, str):
        content = [
            part if part["type"] == "text" else {"type": "image", "image": part["image_url"]["url"]} for part in content
        ]
    made = Message(role=message["role"], content=content)
    for name in ("tool_call_id", "name"):
        if name in message:
            made[name] = message[name]
    if message.get("tool_calls"):
        made["tool_calls"] = [ToolCall.model_validate(call) for call in message["tool_calls"]]
    return made
