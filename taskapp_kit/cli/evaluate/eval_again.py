"""`taskapp eval --seeds-from DIR`: plays again what `taskapp show DIR` lists."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from taskapp_kit.cli.evaluate.eval_options import OF_THE_LIMITS, OF_THE_LISTED, OF_THE_POLICIES
from taskapp_kit.cli.options import command_with
from taskapp_kit.cli.policy_options import chosen_model
from taskapp_kit.cli.selection import Selection, selection
from taskapp_kit.config import Settings
from taskapp_kit.errors import ConfigError
from taskapp_kit.evaluate.continued import NAMES_IN_FILE, policies_again
from taskapp_kit.evaluate.own_directories import check_own, policy_flags
from taskapp_kit.evaluate.source import DirectorySource


@dataclass(frozen=True)
class PlayedAgain:
    """Rollouts of an evaluation that are played again.

    app: its app's reference or address, None where it names none. seeds: as --seeds takes them. only: their (seed, sample)
    pairs, empty when sample 0 of each seed is all of them. policies: `policy.config` by name, with keys, and models: those
    that are in models.toml; policies is None when the command line names its own. options: others of the command, by name,
    which it had and the command line does not give.
    """

    app: str | None
    environment: str | None
    split: str | None
    env_config: dict[str, Any]
    seeds: str
    only: tuple[tuple[int, int], ...]
    policies: dict[str, dict[str, Any]] | None
    models: dict[str, str]
    options: dict[str, Any]


def played_again(ctx: click.Context, path: Path, settings: Settings, *, failed: bool, worst: int | None) -> PlayedAgain:
    """What `show PATH --failed` or `show PATH --worst N` lists, each pair of seed and sample once.

    Raises UsageError; ConfigError: there is none, or the evaluation's policy is not stored whole; StoreError.
    """
    if not failed and worst is None:
        raise click.UsageError("--seeds-from goes with --failed or --worst N.")
    typed = {name for name in ctx.params if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}
    for param in ctx.command.params:
        if param.name in typed and param.name in OF_THE_LISTED:
            raise click.UsageError(f"{param.opts[0]} is that of the rollouts in {path}; leave it out.")
    source = DirectorySource(path)
    pairs = asyncio.run(_listed(source, selection(failed=failed, worst=worst)))
    if not pairs:
        raise ConfigError(f"No rollout of {path} {'failed' if failed else 'has a reward'}.")
    config, asked = source.config, source.config["asked"]
    stored = config.get("options", {})
    policies = None
    if not (typed.intersection(OF_THE_POLICIES) and typed.intersection(("app", "app_id"))):
        named = str(stored.get("url") or config.get("app_reference") or "APP")
        app = [] if typed.intersection(("app", "app_id")) else ["--app", named]
        check_own(
            path, config, command_with([*app, *([] if typed.intersection(OF_THE_POLICIES) else policy_flags(config))])
        )
    if not typed.intersection(OF_THE_POLICIES):
        policies = policies_again(dict(config), lambda name: chosen_model(settings, name, None))
        if len(policies) > 1:
            raise click.UsageError(f"{path} has the policies {', '.join(policies)}: name the one that plays.")
    return PlayedAgain(
        app=stored.get("url") or config.get("app_reference"),
        environment=asked.get("environment"),
        split=asked.get("split"),
        env_config=dict(asked.get("config") or {}),
        seeds=",".join(str(seed) for seed in dict.fromkeys(seed for seed, _ in pairs)),
        only=tuple(pairs) if any(sample for _, sample in pairs) else (),
        policies=policies,
        models=stored.get(NAMES_IN_FILE, {}),
        options={
            name: asked[name]
            for name in (*OF_THE_LIMITS, *(() if policies is None else ("output_mode",)))
            if asked.get(name) and name not in typed
        },
    )


async def _listed(source: DirectorySource, chosen: Selection) -> list[tuple[int, int]]:
    try:
        return sorted({(row.seed, row.sample or 0) for row in await chosen.rows(source)})
    finally:
        await source.close()
