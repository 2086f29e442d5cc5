"""`to_reward_function(app)` turns an app's reward into a reward function for TRL and verl.

Written against TRL 1.16.0 (`GRPOTrainer(reward_funcs=...)`, which masks None) and verl at commit b178a3c
(`custom_reward_function`: `compute_score(data_source, solution_str, ground_truth, extra_info)`). This module imports
neither library.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.declare.episode_selection import find_environment
from taskapp_kit.declare.specs import EnvironmentSpec
from taskapp_kit.errors import BadArgument, ConfigError, RolloutFailed, UndefinedReward
from taskapp_kit.interop.callers_model import COLUMNS, BlockingService, CallerService, env_of_row
from taskapp_kit.records.content import Json
from taskapp_kit.wire.chat.conversation import ChatReply

log = logging.getLogger("taskapp_kit.reward_function")


def to_reward_function(app: TaskApp | str | Path, *, first_answer: bool = False) -> RewardFunction:
    """Return a reward function that scores a model's answers with the app.

        reward = to_reward_function("capitals.py")
        GRPOTrainer(reward_funcs=reward, train_dataset=load_dataset("json", data_files="tasks.jsonl", split="train"), ...)

    Args:
        app: An app, a path, or the name of a bundled app. An episode must have one turn: `app.tasks`, `max_turns=1` or
            `max_steps=1`.
        first_answer: Also accept environments with several turns. Their episodes are truncated and scored after the
            first answer.

    Returns:
        A reward function for TRL. Its method `compute_score` is a reward function for verl.

    Raises:
        ConfigError: No environment has episodes with a single turn.
        DiscoveryError: The app does not exist.
        DeclarationError: A declaration of the app is invalid.
    """
    return RewardFunction(app, first_answer=first_answer)


class RewardFunction:
    """A reward function that plays an episode with each answer. It has its own threads.

    TRL calls the object, which returns the reward of each completion, or None if the episode failed or the reward is
    undefined. verl calls `compute_score`. The object can be pickled if it was created from a path or name.
    """

    def __init__(self, app: TaskApp | str | Path, *, first_answer: bool) -> None:
        self._reference, self._first_answer = app, first_answer
        self._app = app if isinstance(app, TaskApp) else find_app(str(app))
        spec = self._app.freeze()
        if not first_answer and not any(_one_turn(environment) for environment in spec.environments.values()):
            raise ConfigError(_several_turns(spec.default_environment), hint=HINT)
        self.__name__ = spec.name  # the name under which TRL logs it
        self._service = BlockingService(self._app, "taskapp-reward")

    def __call__(
        self, prompts: Sequence[Any] = (), completions: Sequence[Any] = (), log_metric: Any = None, **columns: Any
    ) -> list[float | None]:
        """Return the rewards of completions, in order.

        Args:
            prompts: Ignored.
            completions: Strings, or lists with one assistant message.
            log_metric: TRL's function that logs a metric. It is called with the share of failed episodes.
            **columns: Lists with one value per completion: `seed`, and optionally `environment`, `split`, `config` (a
                JSON string) and `output_mode`.

        Raises:
            BadArgument: A completion has another type, or the column `seed` is missing.
            RequestError: The app does not have the episode that a row identifies.
        """
        if "seed" not in columns:
            raise BadArgument(
                "The reward function was called without the column `seed`, which identifies each completion's episode.",
                hint="Train on the rows that `taskapp export tasks` writes.",
            )
        rows = [
            {name: columns[name][index] for name in COLUMNS if name in columns} for index in range(len(completions))
        ]
        answers = [_message(completion) for completion in completions]
        rewards: list[float | None] = []
        for row, outcome in zip(rows, self._rewards(rows, answers), strict=True):
            if isinstance(outcome, RolloutFailed):
                log.warning("seed %s has no reward (%s): %s", row["seed"], outcome.failure.code, outcome.message)
            rewards.append(None if isinstance(outcome, RolloutFailed) else outcome)
        if log_metric is not None and rewards:
            log_metric(f"{self.__name__}/failed", sum(reward is None for reward in rewards) / len(rewards))
        return rewards

    def compute_score(
        self,
        data_source: str = "",
        solution_str: str = "",
        ground_truth: Any = None,
        extra_info: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> float:
        """Return the reward of one answer, as verl calls it.

        Args:
            data_source: Ignored.
            solution_str: The answer.
            ground_truth: Ignored.
            extra_info: The field `extra_info` of a row that `taskapp export tasks --format verl` wrote.

        Raises:
            RolloutFailed: The episode failed.
            UndefinedReward: The reward is undefined.
            BadArgument: `extra_info` has no seed.
            RequestError: The app does not have the episode that `extra_info` identifies.
        """
        if not extra_info or "seed" not in extra_info:
            raise BadArgument(
                "compute_score was called without `extra_info['seed']`, which identifies the episode.",
                hint="Train on the rows that `taskapp export tasks --format verl` writes.",
            )
        row = {name: extra_info[name] for name in COLUMNS if name in extra_info}
        (outcome,) = self._rewards([row], [_message(solution_str)])
        if isinstance(outcome, RolloutFailed):
            raise outcome
        return outcome

    def _rewards(
        self, rows: Sequence[Mapping[str, Any]], answers: Sequence[dict[str, Json]]
    ) -> list[float | RolloutFailed]:
        spec = self._app.freeze()
        for row in rows:
            environment = find_environment(spec, row.get("environment"))
            if not self._first_answer and not _one_turn(environment):
                raise ConfigError(_several_turns(environment), hint=HINT)

        async def played(service: CallerService) -> list[float | RolloutFailed]:
            return await asyncio.gather(
                *(self._reward(service, row, message) for row, message in zip(rows, answers, strict=True))
            )

        return self._service.run(played)

    async def _reward(
        self, service: CallerService, row: Mapping[str, Any], message: dict[str, Json]
    ) -> float | RolloutFailed:
        async def answer(_: dict[str, Json]) -> ChatReply:
            return ChatReply(message)

        environment = find_environment(service.service.spec, row.get("environment"))
        try:
            rollout = await service.rollout(
                answer,
                env_of_row(row),
                output_mode=row.get("output_mode") or "tool_calls",
                turns=None if environment.most_turns == 1 else 1,
                label="reward-function",
            )
        except RolloutFailed as failed:
            return failed
        if rollout.reward is None:
            return UndefinedReward(rollout_id=rollout.rollout_id)
        return float(rollout.reward)

    def close(self) -> None:
        """Stop the threads and worker processes. Another call of the reward function starts them again."""
        self._service.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(self._reference, TaskApp):
            raise BadArgument(
                "A reward function that was created from a TaskApp object cannot be sent to another process.",
                hint='Create it from a path or name: to_reward_function("my_app.py").',
            )
        return _again, (str(self._reference), self._first_answer)


def _again(reference: str, first_answer: bool) -> RewardFunction:
    return to_reward_function(reference, first_answer=first_answer)


HINT = "Collect rollouts (docs/connect/trainers.md), or pass first_answer=True to score only the first answer."


def _one_turn(environment: EnvironmentSpec) -> bool:
    """Return whether the first answer ends the episode. Every answer uses at least one step, even if it is rejected."""
    return environment.most_turns == 1 or environment.max_steps == 1


def _several_turns(environment: EnvironmentSpec) -> str:
    return (
        f"An episode of environment {environment.name!r} may have {environment.most_turns or 'any number of'} turns, but a "
        "reward function receives only one answer."
    )


def _message(completion: Any) -> dict[str, Json]:
    """Return the assistant's message of a completion. Raises BadArgument unless there is exactly one."""
    if isinstance(completion, str):
        return {"role": "assistant", "content": completion}
    if (
        isinstance(completion, Sequence)
        and len(completion) == 1
        and isinstance(completion[0], Mapping)
        and completion[0].get("role") == "assistant"
    ):
        return dict(completion[0])
    raise BadArgument(
        f"A completion is neither a string nor a list with one assistant message: {completion!r:.200}.",
        hint="Reward functions score environments with one turn.",
    )
