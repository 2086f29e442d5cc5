"""A declared environment as a task of Inspect (inspect-ai): `inspect_task(app)`.

Written against inspect-ai 0.3.285, which finds the task `taskapp_kit/taskapp` through the package's entry point. Each
seed of the split is a sample with the public fields of its row. The solver plays an episode with Inspect's model
(`episodes.py`). The reward and each criterion have a scorer. A failed episode is an error of the sample, which
`fail_on_error` counts, and is never a score. An undefined score is Inspect's value for unscored samples.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver

from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.declare.episode_selection import find_environment, find_instance, read_config
from taskapp_kit.declare.specs import EnvironmentSpec
from taskapp_kit.errors import ConfigError, RequestError
from taskapp_kit.interop.callers_model import env_of_row
from taskapp_kit.interop.inspect.episodes import Episodes
from taskapp_kit.records.content import Json
from taskapp_kit.records.seeds import Seeds, size
from taskapp_kit.rollout.policy.options import OutputMode

MOST_SAMPLES = 10_000
"""The maximum number of samples. Inspect stores all samples in memory."""
REWARD = "reward"
"""The name of the reward's scorer."""


def inspect_task(
    app: TaskApp | str | Path,
    *,
    environment: str | None = None,
    split: str | None = None,
    seeds: str | int | Iterable[int] | None = None,
    config: Mapping[str, Json] | None = None,
    output_mode: OutputMode = "tool_calls",
    **options: Any,
) -> Task:
    """Return an environment as an Inspect task.

        @task
        def adder() -> Task:
            return inspect_task("adder.py", split="test")

    Args:
        app: An app, a path, or the name of a bundled app.
        environment: The name of an environment. Defaults to the app's first environment.
        split: The name of a split. Defaults to the environment's first split.
        seeds: The seeds to play: integers, or a string such as `"0-9,20"`. Defaults to the whole split.
        config: `env.config` of each episode. `difficulty` and `tags` in it select rows.
        output_mode: The format of the model's replies: `tool_calls`, `text` or `structured`.
        **options: Additional arguments of Inspect's `Task`.

    Returns:
        The Inspect task.

    Raises:
        DiscoveryError: The app does not exist.
        DeclarationError: A declaration of the app is invalid.
        RequestError: The environment, split or seed does not exist, or the config is invalid.
        ConfigError: The app has its own rollout function, or the number of samples is 0 or too large.
    """
    loaded = app if isinstance(app, TaskApp) else find_app(str(app))
    frozen = loaded.freeze()
    if frozen.rollout_function is not None:
        raise ConfigError(
            f"Task app {frozen.name!r} has its own rollout function (app.rollout), which calls models itself.",
            hint="Evaluate the app with `taskapp eval`, and export a log with `taskapp export --format inspect`.",
        )
    spec = find_environment(frozen, environment)
    episode_config = {name: value for name, value in (config or {}).items() if name != "split"}
    name = find_instance(spec, split, None, random.Random(0)).split
    samples = list(_samples(spec, name, seeds, episode_config))
    if not samples:
        raise ConfigError("The task has no samples, because no seed is selected.", hint="Change seeds= or config=.")
    episodes = Episodes(loaded, output_mode)
    criteria = [item.name for item in frozen.criteria if item.applies_to(spec.name)]
    criteria += [item.name for item in frozen.judges if item.applies_to(spec.name) and not item.group]
    arguments = {
        "dataset": MemoryDataset(samples, name=f"{spec.name}-{name}"),
        "solver": _solver(episodes),
        "scorer": [_scorer(episodes), *(_scorer(episodes, item) for item in criteria)],
        "cleanup": episodes.end,
        "name": spec.name,
        "version": spec.version,
        "tags": list(spec.tags) or None,
        "metadata": {"app": frozen.name, "app_version": frozen.version, "reward": frozen.blend_for(spec.name).words()},
    }
    return Task(**{**arguments, **options})


@task(name="taskapp")
def taskapp(
    app: str,
    environment: str | None = None,
    split: str | None = None,
    seeds: str | int | list[int] | None = None,
    config: dict[str, Any] | None = None,
    output_mode: OutputMode = "tool_calls",
) -> Task:
    """Return the task for `inspect eval taskapp_kit/taskapp -T app=APP -T split=test`, as `inspect_task` does."""
    return inspect_task(app, environment=environment, split=split, seeds=seeds, config=config, output_mode=output_mode)


def _samples(
    spec: EnvironmentSpec, split: str, seeds: str | int | Iterable[int] | None, config: Mapping[str, Json]
) -> Iterator[Sample]:
    """Yield a sample for each selected seed.

    Raises RequestError if a seed or the config is invalid, and ConfigError if there are too many seeds.
    """
    selection = read_config(spec, config).wanted
    for seed in _numbers(spec, split, seeds):
        try:
            row = find_instance(spec, split, seed, random.Random(0), selection).task
        except RequestError as refused:
            if refused.code == "no_such_row" and seeds is None:  # the config's `difficulty` or `tags` exclude the row
                continue
            raise
        metadata = {"environment": spec.name, "split": split, "seed": seed, "config": json.dumps(config)}
        shown = f"environment {spec.name}, split {split}, seed {seed}"
        if spec.tasks is not None:
            metadata["row"] = spec.tasks.public(row)
        if spec.one_answer:  # in such an environment, `reset` only returns the row's prompt
            shown = str(spec.cls().reset(row))
        yield Sample(input=shown, id=f"{split}-{seed}", metadata=metadata)


def _numbers(spec: EnvironmentSpec, split: str, seeds: str | int | Iterable[int] | None) -> Iterable[int]:
    """Return the seeds in order. Raises ConfigError if there are more than MOST_SAMPLES."""
    chosen: Iterable[int]
    if seeds is None:
        whole = spec.seeds_of(split)
        chosen, count = whole, size(whole)
    else:
        listed = Seeds.read(str(seeds)) if isinstance(seeds, (str, int)) else list(islice(seeds, MOST_SAMPLES + 1))
        chosen, count = listed, len(listed)
    if count > MOST_SAMPLES:
        raise ConfigError(
            f"The task would have more than {MOST_SAMPLES} samples.",
            hint='Pass fewer seeds, such as seeds="0-999".',
        )
    return chosen


def _solver(episodes: Episodes) -> Solver:
    @solver(name="taskapp_episode")
    def made() -> Solver:
        async def solve(state: TaskState, _: Generate) -> TaskState:
            await episodes.play(state, env_of_row(state.metadata))
            return state

        return solve

    return made()


def _scorer(episodes: Episodes, criterion: str | None = None) -> Scorer:
    """Return the scorer for the reward, or for a criterion."""
    name = REWARD if criterion is None else criterion if criterion != REWARD else f"{REWARD} (criterion)"

    @scorer(metrics=[mean(), stderr()], name=name)
    def made() -> Scorer:
        async def score(state: TaskState, _: Target) -> Score | None:
            result = await episodes.result(state)
            if result["status"] == "failed":  # score_on_error also calls the scorers of failed samples
                return None
            if criterion is None:
                value, reason = result["reward"], None
            else:
                item = result["criteria"].get(criterion, {})
                value, reason = item.get("score"), item.get("reason")
            if value is None:
                return Score.unscored(reason="undefined", explanation=reason)
            return Score(value=value, explanation=reason)

        return score

    return made()
