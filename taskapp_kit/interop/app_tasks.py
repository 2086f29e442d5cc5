"""Tasks, single episodes and scores of a task app, for the adapters for verifiers and Inspect."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

from taskapp_kit.client.blocking_portal import run
from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.declare.episode_selection import find_environment, find_instance
from taskapp_kit.declare.specs import EnvironmentSpec
from taskapp_kit.errors import RolloutFailed, UndefinedReward
from taskapp_kit.interop.callers_model import CallerService, LoopServices, env_of_row
from taskapp_kit.records.content import Json
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.policy.conversation import prompt_of
from taskapp_kit.rollout.policy.options import OutputMode, read_options
from taskapp_kit.wire.rollout import RolloutRequest

log = logging.getLogger("taskapp_kit.verifiers")

CHUNK = 32
"""How many episodes are begun concurrently to read their prompts."""
NO_PROMPT = "This episode could not begin; the rollout says why."
CONCURRENT = 4096
"""The maximum number of concurrent rollouts in a process. The libraries' own limits are lower."""


@dataclass(frozen=True, slots=True)
class TaskOfApp:
    """A task: the prompt and the tools of the first model call, and the fields that identify the episode.

    config: a JSON string.
    """

    prompt: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    environment: str
    split: str
    seed: int
    config: str
    output_mode: str


@dataclass
class VerifiersApp:
    """A task app for verifiers. The app is loaded on first use.

    reference: a path or the name of a bundled app. environment: the environment's name, or None for the app's first
    environment.
    """

    reference: str
    environment: str | None = None
    config: Mapping[str, Json] = field(default_factory=dict)
    output_mode: OutputMode = "tool_calls"
    _services: LoopServices = field(default_factory=lambda: LoopServices(max_concurrent=CONCURRENT))

    @cached_property
    def app(self) -> TaskApp:
        """The loaded app. Raises DiscoveryError if it cannot be found or imported."""
        return find_app(self.reference)

    @cached_property
    def spec(self) -> EnvironmentSpec:
        """The environment.

        Raises DiscoveryError or DeclarationError if the app cannot be loaded, and RequestError if it does not have this
        environment.
        """
        return find_environment(self.app.freeze(), self.environment)

    def has_split(self, split: str) -> bool:
        """Return whether the environment has this split."""
        return split in self.spec.split_names

    def seeds(self, split: str | None) -> tuple[str, range]:
        """Return a split's name and seeds. None selects the first split. Raises RequestError for an unknown split."""
        name = find_instance(self.spec, split, None, random.Random(0)).split
        return name, self.spec.seeds_of(name)

    def tasks(self, split: str | None, limit: int | None = None) -> Iterator[TaskOfApp]:
        """Yield the first `limit` tasks of a split. None yields all tasks. Raises RequestError for an unknown split.

        To read the prompts, episodes are begun in chunks while the caller iterates.
        """
        name, seeds = self.seeds(split)
        numbers = iter(seeds if limit is None else islice(seeds, limit))
        while chunk := list(islice(numbers, CHUNK)):
            yield from run(self._begun(name, chunk))

    async def _begun(self, split: str, seeds: list[int]) -> list[TaskOfApp]:
        service = CallerService(self.app, skip_judges=True)
        try:
            return [await self._task(service, split, seed) for seed in seeds]
        finally:
            await service.close()

    async def _task(self, service: CallerService, split: str, seed: int) -> TaskOfApp:
        spec, app = self.spec, service.service.spec
        config = json.dumps(dict(self.config))
        request = RolloutRequest.model_validate(
            {
                "run_id": "verifiers-tasks",
                "mode": "eval",
                "env": env_of_row({"environment": spec.name, "split": split, "seed": seed, "config": config}),
                "policy": {"output_mode": self.output_mode},
                "ops": [],
            }
        )
        prompt: list[dict[str, Any]] = [{"role": "user", "content": NO_PROMPT}]
        tools: list[dict[str, Any]] = []
        try:
            view = await service.service.first_view(request)
        except RolloutFailed as failed:
            log.warning("seed %d of environment %s has no prompt: %s", seed, spec.name, failed.message)
        else:
            body = prompt_of(app, spec, read_options({}, output_mode=self.output_mode), view)
            prompt, tools = body["messages"], body.get("tools") or []
        return TaskOfApp(prompt, tools, spec.name, split, seed, config, self.output_mode)

    def service(self) -> CallerService:
        """Return the service for the running event loop. Raises Unavailable if a judge has no model."""
        return self._services.of(self.app)

    async def close(self) -> None:
        """Close the service of the running event loop."""
        await self._services.close()


def scores_of(rollout: Rollout) -> tuple[float, dict[str, float]]:
    """Return a rollout's reward and its other scores: scored criteria, metrics, `steps`, and `truncated` as 0 or 1.

    Raises UndefinedReward if the rollout has no reward.
    """
    if rollout.reward is None:
        raise UndefinedReward(rollout_id=rollout.rollout_id)
    card = rollout.scorecard
    numbers: dict[str, float | None] = {
        **{item.name: item.score for item in card.criteria},
        **card.metrics,
        **rollout.metrics,
        "steps": float(rollout.length),
        "truncated": float(rollout.status == "truncated"),
    }
    return float(rollout.reward), {name: float(value) for name, value in numbers.items() if value is not None}


def sentence(failed: RolloutFailed) -> str:
    """Return the message for another library's error: a failure's boundary, code and message."""
    failure = failed.failure
    return f"{failure.boundary} ({failure.code}): {failed.message}"
