"""`taskapp rollout`: one scored episode, here or at a server."""

from __future__ import annotations

import uuid
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import orjson

from taskapp_kit.cli.options import (
    CACHE,
    ENV_CONFIG,
    ENV_FILES,
    EPISODE,
    FULL,
    JUDGES,
    LIMITS,
    SERVER_KEY,
    WIDTH,
    episode,
    is_url,
    json_option,
    policy_options,
)
from taskapp_kit.cli.rollout_output import print_result, print_steps
from taskapp_kit.cli.terminal import console, example, print_json, shown_from
from taskapp_kit.config import load
from taskapp_kit.system.private_files import write_private


@click.command(
    epilog=example(
        "taskapp rollout adder.py --policy gold --seed 3",
        """taskapp rollout adder.py --action '{"add": {"amount": 3}}' --config '{"high": 30}'""",
        "taskapp rollout adder.py --model m --inference-url http://127.0.0.1:8100/v1",
        "taskapp rollout http://127.0.0.1:8001 --policy random --json",
    )
)
@click.argument("app", metavar="APP|URL")
@EPISODE
@policy_options("random, noop, constant, replay")
@CACHE
@ENV_CONFIG
@LIMITS
@JUDGES
@SERVER_KEY
@ENV_FILES
@click.option("--store", metavar="URL", help="Keep the rollout: sqlite:///PATH.  [default: none]")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write the answer as JSON."
)
@WIDTH
@FULL
@json_option("Print the answer of POST /rollout, and nothing else.")
def command(
    app: str,
    environment: str | None,
    seed: int | None,
    split: str | None,
    output_mode: str,
    cache: Path | None,
    env_config: dict[str, Any] | None,
    ops: int | None,
    max_time_seconds: float,
    judges: str,
    max_refusals: int | None,
    max_rollout_tokens: int | None,
    key: str | None,
    env_files: tuple[str, ...],
    store: str | None,
    out: Path | None,
    width: int | None,
    full: bool,
    as_json: bool,
    **policy: Any,
) -> None:
    """Play and score one episode, in this process or (with a URL) at a server.

    With --inference-url a language model plays; with --model alone one that models.toml names. Otherwise, without
    --policy, the random policy plays; with --action the constant one.
    """
    from taskapp_kit.cli import rollout_run
    from taskapp_kit.cli.policy_options import chosen_policy

    settings = load({"store": store, "cache": cache}, env_files=env_files)
    given, note = chosen_policy(settings, app=app, **policy)
    body: dict[str, Any] = {
        "run_id": f"cli-{uuid.uuid4().hex[:12]}",
        "env": episode(environment, seed, env_config, split),
        "policy": {"policy_name": given.get("policy"), "config": given, "output_mode": output_mode},
        "ops": ["agent"] * (ops or 0),
        "safety": {"max_time_s": max_time_seconds},
        "mode": "eval",
    }
    limits = {"max_refusals": max_refusals, "max_rollout_tokens": max_rollout_tokens}
    body["safety"] |= {name: limit for name, limit in limits.items() if limit is not None}
    _writable(out)
    if is_url(app):
        if store is not None:
            raise click.UsageError("--store keeps local rollouts; a server has a store of its own.")
        if judges == "skip":
            raise click.UsageError("--judges skip is for an app in this process; a server asks its own judges.")
        answer = rollout_run.remote(app, key or settings.environment_api_key, body, max_time_seconds)
        if not as_json:
            with shown_from(app):
                print_steps(answer, width=width, full=full)
    else:
        answer = rollout_run.local(
            app, settings, body, skip_judges=judges == "skip", hint=note, printed=not as_json, width=width, full=full
        )
    if out is not None:
        write_private(out, orjson.dumps(answer, option=orjson.OPT_INDENT_2))
    if as_json:
        print_json(answer)
        return
    with shown_from(app) if is_url(app) else nullcontext():
        print_result(answer, policy_note=note, width=width, full=full)
    if out is not None:
        console().print(f"\nWritten to {out}")


def _writable(out: Path | None) -> None:
    """Before a long rollout, not after."""
    if out is not None and not out.parent.is_dir():
        raise click.BadParameter(f"there is no directory {out.parent}.", param_hint="--out")
