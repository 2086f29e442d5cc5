"""Exports tasks as rows for trainers. Each seed's row has the first prompt, the tools and the identity of the episode.

A row contains only what the environment shows to the model, so it has no private fields. The field `config` is a JSON
string in every format, because tables have no type for an empty object.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import orjson

from taskapp_kit.declare.episode_selection import find_environment, find_instance, read_config
from taskapp_kit.declare.specs import EnvironmentSpec
from taskapp_kit.errors import ConfigError, RequestError, RolloutFailed
from taskapp_kit.evaluate.export.parquet import write_table
from taskapp_kit.records.content import Json
from taskapp_kit.records.seeds import size
from taskapp_kit.rollout.policy.conversation import prompt_of
from taskapp_kit.rollout.policy.options import OutputMode, read_options
from taskapp_kit.rollout.service import Service
from taskapp_kit.system.private_files import make_private_folder, replaced, write_private
from taskapp_kit.wire.rollout import RolloutRequest

TaskFormat = Literal["jsonl", "parquet", "hf", "verl", "nemo"]
MOST_TASKS = 10_000
"""The maximum number of tasks in one file. Each task starts an episode."""

IDENTITY = ("environment", "split", "seed", "config", "output_mode")
"""The fields of a row that identify its episode and its output mode. `to_reward_function` needs them."""


async def task_rows(
    service: Service,
    *,
    environment: str | None = None,
    split: str | None = None,
    seeds: Iterable[int] | None = None,
    config: Mapping[str, Json] | None = None,
    output_mode: OutputMode = "tool_calls",
) -> AsyncIterator[dict[str, Any]]:
    """Yield one row for each seed of a split, in order. The episodes are started, but no turn is played.

    A row has `prompt` (the messages of the first request), `tools` (as in a chat request, or None if the request
    has no tools), `environment`, `split`, `seed`, `config`, `output_mode`, `app` and `app_version`.

    Args:
        service: The service of the app.
        environment: Defaults to the first environment.
        split: Defaults to the first split.
        seeds: Defaults to all seeds of the split. If the environment has rows, a seed is the index of a row.
        config: `env.config` of every episode. Its `difficulty` and `tags` select rows.
        output_mode: The format of the model's replies.

    Raises:
        ConfigError: There are more than MOST_TASKS tasks, or the app has a custom rollout function.
        RequestError: The environment, split or seed does not exist, or the config is invalid.
        RolloutFailed: An episode could not start.
    """
    app = service.spec
    if app.rollout_function is not None:
        raise ConfigError(
            f"The tasks of {app.name!r} cannot be exported: its rollout function (app.rollout) writes the prompts during play.",
            hint="Run `taskapp eval`, then `taskapp export --format sft` or `--format jsonl`.",
        )
    spec = find_environment(app, environment)
    given = {name: value for name, value in (config or {}).items() if name not in ("split", "index")}
    chosen = find_instance(spec, split, None, random.Random(0)).split
    numbers = _seeds(spec, chosen, seeds)
    spec = spec.configured(read_config(spec, given).arguments)
    options = read_options({}, output_mode=output_mode)
    for seed in numbers:
        request = RolloutRequest.model_validate(
            {
                "run_id": "export-tasks",
                "env": {"env_name": spec.name, "seed": seed, "config": {**given, "split": chosen}},
                "policy": {"output_mode": output_mode},
                "ops": [],
                "mode": "eval",
            }
        )
        try:
            view = await service.first_view(request)
        except RequestError as refused:
            if refused.code == "no_such_row" and seeds is None:  # the config's `difficulty` or `tags` select rows
                continue
            raise
        except RolloutFailed as failed:
            raise _named(failed, spec, seed) from failed.__cause__
        body = prompt_of(app, spec, options, view)
        yield {
            "prompt": body["messages"],
            "tools": body.get("tools"),
            "environment": spec.name,
            "split": chosen,
            "seed": seed,
            "config": json.dumps(given),
            "output_mode": output_mode,
            "app": app.name,
            "app_version": app.version,
        }


def _seeds(spec: EnvironmentSpec, split: str, seeds: Iterable[int] | None) -> Iterable[int]:
    """Return the seeds to export. Raises ConfigError if there are more than MOST_TASKS."""
    if seeds is None:
        seeds = spec.seeds_of(split)
        many = size(seeds)
        if many > MOST_TASKS:
            raise ConfigError(
                f"Split {split!r} of environment {spec.name!r} has {many} tasks, but one file has at most {MOST_TASKS}.",
                hint=f"Select a part of them, for example with --seeds {seeds[0]}-{seeds[999]}.",
            )
        return seeds
    chosen = []
    for seed in seeds:
        chosen.append(seed)
        if len(chosen) > MOST_TASKS:
            raise ConfigError(f"One file can have at most {MOST_TASKS} seeds.", hint="Pass fewer --seeds per file.")
    return chosen


def _named(failed: RolloutFailed, spec: EnvironmentSpec, seed: int) -> RolloutFailed:
    """Return the failure with the episode's seed and environment added to its message."""
    message = f"seed {seed} of environment {spec.name!r}: {failed.failure.message}"
    return RolloutFailed(replace(failed.failure, message=message), rollout_id=failed.rollout_id)


async def export_tasks(rows: AsyncIterator[dict[str, Any]], kind: TaskFormat, out: Path) -> int:
    """Write the rows to `out` atomically, and return their number. `out` is a directory for `hf`, and otherwise a file.

    Raises ConfigError if `rows` is empty, if `out` cannot be written, or if a table would contain images. Raises
    Unavailable for Parquet if pyarrow is not installed, and the errors of `rows`.
    """
    whole = [row async for row in rows]
    if not whole:
        raise ConfigError("No tasks were selected, so nothing was written.", hint="Change --seeds or --config.")
    try:
        if kind == "hf":
            _write_folder(whole, out)
        else:
            with replaced(out) as new:
                _write_file(whole, kind, new)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}.", hint="Pass another --out.") from None
    return len(whole)


def _write_file(rows: list[dict[str, Any]], kind: TaskFormat, path: Path) -> None:
    if kind in ("parquet", "verl"):
        write_table(path, [_flat(row) if kind == "parquet" else _verl(row) for row in rows])
        return
    written = rows if kind == "jsonl" else [_nemo(row) for row in rows]
    path.write_bytes(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in written))


CARD = """# Tasks of {app} {app_version}

Written by `taskapp export tasks`. A row has the first messages for a model (`prompt`), its tools as JSON, and the identity
of the episode. It contains no answers, because the task app computes the reward.
"""


def _write_folder(rows: list[dict[str, Any]], out: Path) -> None:
    """Write a directory for `datasets.load_dataset`, which can be uploaded to the Hugging Face Hub as a dataset."""
    make_private_folder(out / "data")
    table = out / "data" / f"{rows[0]['split']}-00000-of-00001.parquet"
    with replaced(table) as new:
        _write_file(rows, "parquet", new)
    write_private(out / "README.md", CARD.format(app=rows[0]["app"], app_version=rows[0]["app_version"]).encode())


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Convert a row for a table: the messages contain only text, and `tools` is a JSON string.

    Raises ConfigError if a message has an image.
    """
    return {**row, "prompt": _texts(row), "tools": None if row["tools"] is None else json.dumps(row["tools"])}


def _texts(row: dict[str, Any]) -> list[dict[str, str]]:
    messages = [{"role": message["role"], "content": message["content"]} for message in row["prompt"]]
    if not all(isinstance(message["content"], str) for message in messages):
        raise ConfigError(
            f"The prompt of environment {row['environment']!r}, seed {row['seed']} has images, but this format only "
            "supports text.",
            hint="Use --format jsonl, or a --config that turns images off.",
        )
    return messages


def _verl(row: dict[str, Any]) -> dict[str, Any]:
    """Convert a row for verl.

    verl requires `ground_truth`, which is empty, because the task app computes the reward from `extra_info` only.
    """
    return {
        "data_source": f"{row['app']}/{row['environment']}",
        "prompt": _texts(row),
        "ability": row["environment"],
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": row["seed"], "app": row["app"], **{name: row[name] for name in IDENTITY}},
    }


def _nemo(row: dict[str, Any]) -> dict[str, Any]:
    """Convert a row for NeMo Gym: a request of the Responses API, and the fields for NeMo Gym's resources server."""
    tools = [{"type": "function", "strict": False, **tool["function"]} for tool in row["tools"] or ()]
    inputs = [{"role": message["role"], "content": _response_parts(message["content"])} for message in row["prompt"]]
    params: dict[str, Any] = {"input": inputs, **({"tools": tools} if tools else {})}
    return {
        "responses_create_params": params,
        "agent_ref": {"type": "responses_api_agents", "name": f"{row['environment']}_agent"},
        "app": row["app"],
        "app_version": row["app_version"],
        **{name: row[name] for name in IDENTITY},
    }


def _response_parts(content: Any) -> Any:
    """Convert a message's content to the format of the Responses API."""
    if isinstance(content, str):
        return content
    return [
        {"type": "input_text", "text": part["text"]}
        if part["type"] == "text"
        else {"type": "input_image", "image_url": part["image_url"]["url"], "detail": "auto"}
        for part in content
    ]
