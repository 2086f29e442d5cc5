"""`rollout_func(app)`: episodes of an app as the rollouts of TRL's GRPOTrainer, sampled with the trainer's own model.

It was written against TRL 1.16.0. There, `GRPOTrainer(rollout_func=...)` calls `rollout_func(prompts, trainer)`, which
returns `prompt_ids`, `completion_ids`, `logprobs` and `env_mask`. The mask marks the sampled tokens of a completion.
TRL passes only the column with the prompts. Each prompt therefore identifies an episode (`episode_prompt`), and the app
creates the messages that the model receives.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import BadArgument, RolloutFailed, TrainingError
from taskapp_kit.interop.callers_model import COLUMNS, BlockingService, CallerService, env_of_row, truncating
from taskapp_kit.train.gateway.call_reader import ChatPrompt
from taskapp_kit.train.gateway.recognition import Recognition
from taskapp_kit.train.rendering.families import renderer_for
from taskapp_kit.train.rendering.tokenizer import JsonTokenizer
from taskapp_kit.train.sampler.transformers_sampler import TransformersSampler
from taskapp_kit.wire.chat.conversation import ChatReply, ModelFailed

log = logging.getLogger("taskapp_kit.trl")


def episode_prompt(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the column `prompt` for a row of `taskapp export tasks`. `rollout_func` reads this column.

        rows = load_dataset("json", data_files="tasks.jsonl", split="train").map(episode_prompt)

    Raises BadArgument if the row has no seed.
    """
    if row.get("seed") is None:
        raise BadArgument("A row has no seed, so its episode is unknown.", hint="Use rows from `taskapp export tasks`.")
    return {"prompt": json.dumps({name: row[name] for name in COLUMNS if row.get(name) is not None})}


def episode_reward(episode_reward: Sequence[float | None], **_: Any) -> list[float | None]:
    """Return the rewards of the episodes that `rollout_func` played, with None for a failure or an undefined reward.

    Pass this function to TRL's trainer as the reward function, together with `rollout_func`.
    """
    return list(episode_reward)


def rollout_func(app: TaskApp | str | Path) -> Callable[[list[Any], Any], dict[str, list[Any]]]:
    """Return the `rollout_func` of an app for TRL's GRPOTrainer.

        GRPOTrainer(model, rollout_func=rollout_func("adder.py"), reward_funcs=episode_reward, train_dataset=rows, ...)

    The model is sampled with transformers in the trainer's process, at the trainer's temperature, without top_p or
    top_k. `max_completion_length` limits each reply. The tokenizer must have the special tokens of ChatML or Llama 3.

    A failed episode has the reward None, and its tokens are not trained on. The returned function raises ConfigError if
    the tokenizer supports neither chat format, BadArgument if the trainer uses vLLM or a prompt of the data set does
    not identify an episode, RequestError if the row of an episode is invalid, and TrainingError if the model fails or
    an episode's prompt does not continue the previous prompt. Prompts must continue each other, because TRL trains on
    one sequence per episode.

    Args:
        app: The task app, or the path of its file.

    Raises:
        DiscoveryError: The file has no task app.
        DeclarationError: The app's declarations are invalid.
    """
    return TrlRollouts(app if isinstance(app, TaskApp) else find_app(str(app)))


class TrlRollouts:
    """A callable that plays one episode per prompt, all concurrently on a separate thread. `close` ends the thread."""

    def __init__(self, app: TaskApp) -> None:
        app.freeze()
        self._service = BlockingService(app, "taskapp-trl-rollouts")
        self._calls = 0

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        """Return one row for each prompt, in the order of the prompts."""
        from trl.models.utils import unwrap_model_for_generation

        if trainer.use_vllm:
            raise BadArgument(
                "rollout_func samples with transformers, but the trainer has use_vllm=True.",
                hint="Set use_vllm=False. Or pass environment_factory instead, so that TRL itself samples.",
            )
        episode_rows = [_episode_row(prompt) for prompt in prompts]
        tokenizer = trainer.processing_class
        definition = tokenizer.backend_tokenizer.to_str()
        renderer = renderer_for(JsonTokenizer(definition), tokenizer.chat_template)
        self._calls += 1
        names = f"trl/{trainer.args.seed}/{trainer.accelerator.process_index}/{self._calls}"
        with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model:
            was_training = model.training
            try:
                with TransformersSampler(model, batch_size=max(1, len(prompts))) as sampler:
                    episodes = [
                        _SampledEpisode(
                            sampler, renderer, trainer.temperature, trainer.max_completion_length, f"{names}/{at}"
                        )
                        for at in range(len(prompts))
                    ]
                    rewards = self._service.run(lambda service: _played(service, episodes, episode_rows))
            finally:
                model.train(was_training)
        end = min(renderer.stop_ids)
        rows = [
            episode.row(end) if reward is not None else episode.unused_row(end)
            for episode, reward in zip(episodes, rewards, strict=True)
        ]
        return {**{name: [row[name] for row in rows] for name in rows[0]}, "episode_reward": rewards}

    def close(self) -> None:
        """End the thread and the worker processes. The next call starts them again."""
        self._service.close()


async def _played(
    service: CallerService, episodes: Sequence[_SampledEpisode], rows: Sequence[Mapping[str, Any]]
) -> list[float | None]:
    return await asyncio.gather(*(episode.play(service, row) for episode, row in zip(episodes, rows, strict=True)))


@dataclass(slots=True)
class _SampledEpisode:
    """One episode and its tokens: the prompt of the first model call in `prompt`, and all later tokens in `completion`."""

    sampler: Any
    renderer: Any
    temperature: float
    max_tokens: int
    draw: str
    prompt: tuple[int, ...] = ()
    completion: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    turns: int = 0
    failure: Exception | None = None

    async def play(self, service: CallerService, row: Mapping[str, Any]) -> float | None:
        """Play the episode. Return its reward, or None if the episode failed or the reward is undefined.

        Raises RequestError if the row is invalid, and TrainingError if the model fails or a prompt does not continue
        the previous prompt.
        """
        recognition = Recognition(self.renderer)

        async def ask(body: dict[str, Any]) -> ChatReply | ModelFailed:
            prompt = ChatPrompt(tuple(body["messages"]), tuple(body.get("tools") or ()))
            try:
                found = recognition.prompt(prompt)
                if self.turns and found.parent != self.turns - 1:
                    raise TrainingError(
                        "A prompt does not continue the previous prompt, but TRL trains on one sequence per episode.",
                        hint="Use the default history, and do not change earlier messages in the app.",
                    )
                room = self.sampler.context_tokens - len(found.ids)
                if room < 1:
                    return truncating(
                        f"the prompt has {len(found.ids)} tokens; the model's context has {self.sampler.context_tokens}"
                    )
                sampled = await self.sampler.sample(
                    found.ids,
                    max_tokens=min(self.max_tokens, room),
                    temperature=self.temperature,
                    stop_ids=self.renderer.stop_ids,
                    draw=f"{self.draw}/{self.turns}",
                )
            except Exception as error:
                self.failure = error
                raise
            message = self.renderer.parse(sampled.token_ids, prompt.tools, call_prefix=f"call_{self.turns}")
            recognition.add(prompt, found, sampled.token_ids, message)
            self._add(found.ids, sampled.token_ids, sampled.log_probs)
            return ChatReply(message, finish_reason=sampled.finish_reason)

        try:
            mode = row.get("output_mode") or "tool_calls"
            rollout = await service.rollout(ask, env_of_row(row), output_mode=mode, label="trl")
        except RolloutFailed as failed:
            if self.failure is not None:  # the model failed and not the episode, which a reward of None would hide
                raise self.failure from failed
            log.warning("seed %s has no reward (%s): %s", row["seed"], failed.failure.code, failed.message)
            return None
        if rollout.reward is None:
            log.warning("the reward of seed %s is undefined", row["seed"])
        return None if rollout.reward is None else float(rollout.reward)

    def _add(self, prompt: tuple[int, ...], sampled: tuple[int, ...], log_probs: tuple[float, ...]) -> None:
        if not self.turns:
            self.prompt = prompt
        read = prompt[len(self.prompt) + len(self.completion) :]
        self.completion += [*read, *sampled]
        self.log_probs += [*[0.0] * len(read), *log_probs]
        self.mask += [*[0] * len(read), *[1] * len(sampled)]
        self.turns += 1

    def row(self, end: int) -> dict[str, list[Any]]:
        """Return the episode as a row for TRL, or the result of `unused_row` if the model returned no reply."""
        if not self.turns:
            return self.unused_row(end)
        return {
            "prompt_ids": list(self.prompt),
            "completion_ids": self.completion,
            "logprobs": self.log_probs,
            "env_mask": self.mask,
        }

    def unused_row(self, end: int) -> dict[str, list[Any]]:
        """Return a row without trained tokens. With a reward of None alone, TRL would still compute a KL term."""
        return {"prompt_ids": [end], "completion_ids": [end], "logprobs": [0.0], "env_mask": [0]}


def _episode_row(prompt: Any) -> dict[str, Any]:
    """Return the row in a prompt that `episode_prompt` returned. Raises BadArgument for any other prompt."""
    try:
        row = json.loads(prompt)
    except (TypeError, ValueError):
        row = None
    if not isinstance(row, dict) or "seed" not in row:
        raise BadArgument(
            "A prompt in the data set does not identify an episode, and TRL passes only prompts to a rollout_func.",
            hint="Use rows from `taskapp export tasks` with .map(episode_prompt).",
        )
    return row
