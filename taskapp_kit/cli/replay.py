"""`taskapp replay`: stored rollouts, played again from their recorded answers and compared with the originals."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskapp_kit.cli.options import JSON_OBJECT, SEED, json_option
from taskapp_kit.cli.terminal import clean, console, example, one_line, print_json
from taskapp_kit.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from taskapp_kit.config import Settings
    from taskapp_kit.contract.protocols import Store
    from taskapp_kit.contract.wire import RolloutRequest
    from taskapp_kit.declare.app import TaskApp
    from taskapp_kit.evaluate.replay import Compared

ROLLOUT_ID = re.compile(r"[0-9a-f]{32}")
VALUE_WIDTH = 400
FLAGS = {"env_name": "--env", "seed": "--seed", "split": "--split", "sample": "--sample"}


@click.command(
    epilog=example(
        "taskapp replay adder.py 4fd1d0d5c1f14b6f9a4a0e8f0c2b7a11 --from .taskapp/rollouts.db",
        "taskapp replay --from .taskapp/evals/adder-gold-20260301-110000",
        "taskapp replay crafter --from postgresql://… --store replays.db",
    )
)
@click.argument("app", required=False)
@click.argument("rollout_id", metavar="[ID]", required=False)
@click.option(
    "--from", "source", metavar="DIR|STORE", required=True,
    help="Where the rollouts are: an evaluation's directory, or a store (sqlite:///PATH, postgresql://…).",
)  # fmt: skip
@click.option("--store", metavar="URL", help="Keep the replays there.  [default: none]")
@click.option("--app", "app_option", metavar="APP", help="The app, in place of the one that the evaluation names.")
@click.option("--env", "environment", metavar="NAME", help="With ID: has to be the rollout's environment.")
@click.option("--seed", type=SEED, metavar="S", help="With ID: has to be its seed.")
@click.option("--split", metavar="NAME", help="With ID: has to be its split.")
@click.option("--config", "env_config", type=JSON_OBJECT, metavar="JSON", help="With ID: has to agree with its config.")
@click.option("--sample", type=click.IntRange(0), metavar="N", help="With ID: has to be its policy's sample.")
@json_option()
@click.pass_context
def command(
    ctx: click.Context,
    /,
    app: str | None,
    rollout_id: str | None,
    source: str,
    store: str | None,
    app_option: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Play stored rollouts again, and say whether the same happened.

    Environment, split, seed, config and sample are taken from each stored rollout, and what its policy answered is
    answered again; no model and no judge is asked. Without ID every rollout of the app that did not fail is replayed.
    Where something differs, the first difference is printed: the step, the stored value and the new one. Exit status 1 then.
    """
    import asyncio

    from taskapp_kit.cli.local_app import open_app
    from taskapp_kit.config import load

    if app is not None and rollout_id is None and ROLLOUT_ID.fullmatch(app):
        app, rollout_id = None, app
    if app is not None and app_option is not None:
        raise click.UsageError("The app is given twice, as APP and by --app.")
    if rollout_id is None and any(value is not None for value in given.values()):
        raise click.UsageError("--env, --seed, --split, --config and --sample go with the ID of one rollout.")
    address, reference = _source(source)
    named = app_option or app or reference
    if named is None:
        raise click.UsageError("Which app? Give APP; only an evaluation's directory can name it.")
    settings = load()
    found = open_app(named, settings)
    try:
        compared = asyncio.run(_replayed(found, settings, address, store, rollout_id, given, quiet=as_json))
    except RequestError as error:
        raise _by_flag(error) from None
    differ = [one for one in compared if not one.same]
    if as_json:
        print_json({"replayed": len(compared), "differ": len(differ), "rollouts": [_as_json(one) for one in compared]})
    else:
        click.echo(f"{len(compared)} replayed, {len(differ)} differ.")
    if differ:
        ctx.exit(1)


def _source(source: str) -> tuple[str, str | None]:
    """The address of the store, and the app that an evaluation's directory names. Raises ConfigError."""
    from taskapp_kit.evaluate.directory import read_config

    path = Path(source)
    if not path.is_dir():
        return source, None
    config = read_config(path)
    database = path / "rollouts.db"
    if not database.is_file():
        raise ConfigError(
            f"{path} has no rollouts.db: its rollouts are stored elsewhere, or nowhere.",
            hint="Give their store: --from sqlite:///PATH or postgresql://…",
        )
    reference = config.get("app_reference")
    return str(database), reference if isinstance(reference, str) else None


async def _replayed(
    app: TaskApp,
    settings: Settings,
    source: str,
    target: str | None,
    rollout_id: str | None,
    given: dict[str, Any],
    *,
    quiet: bool,
) -> list[Compared]:
    from taskapp_kit.cli.local_app import local_service
    from taskapp_kit.evaluate.replay import replay_all
    from taskapp_kit.store import open_store

    stored_in = open_store(source, create=False)
    compared = []
    try:
        async with local_service(app, settings, store=target, skip_judges=True) as service:
            _not_the_same_place(stored_in, service.store)
            async for one in replay_all(service, stored_in, rollout_id, lambda name: _request(name, given)):
                compared.append(one)
                if not quiet:
                    _print(one)
    finally:
        await stored_in.close()
    return compared


def _not_the_same_place(source: Store, target: Store | None) -> None:
    place = getattr(source, "place", None)
    if target is not None and place not in (None, "memory") and place == getattr(target, "place", None):
        raise click.UsageError("--store is the store that --from reads; a replay adds nothing to what it looks at.")


def _request(rollout_id: str, given: dict[str, Any]) -> RolloutRequest:
    from taskapp_kit.cli.local_app import episode
    from taskapp_kit.contract.wire import RolloutRequest

    policy = {"policy": "replay", "rollout_id": rollout_id}
    if given["sample"] is not None:
        policy["sample"] = given["sample"]
    env = episode(given["environment"], given["seed"], given["env_config"], given["split"])
    return RolloutRequest.model_validate(
        {"run_id": f"replay-{rollout_id}"[:512], "env": env, "policy": {"config": policy}, "ops": [], "mode": "eval"}
    )


def _by_flag(error: RequestError) -> RequestError:
    """`replay_differs` as the command line names things; any other error as it is."""
    if error.code != "replay_differs":
        return error
    named = [f"{FLAGS.get(str(field.loc[-1]), f'--config {field.loc[-1]}')} {field.message}" for field in error.fields]
    return RequestError(
        f"That is another episode than the stored one: {'; '.join(named)}.",
        fields=error.fields,
        code=error.code,
        hint="Leave them out: a replay takes them from the stored rollout.",
    )


def _print(one: Compared) -> None:
    out = console()
    head = f"{one.rollout_id}  {one.environment} {one.split} {one.seed}"
    out.print(clean(f"{head}  {'same' if one.same else 'differs'}"), soft_wrap=True)
    if one.problem is not None:
        out.print(clean(f"  {one.problem}"), soft_wrap=True)
    if one.difference is not None:
        difference = one.difference
        out.print(clean(f"  {difference.where}, {difference.what}"), soft_wrap=True)
        for word, value in (("was", difference.was), ("is", difference.now)):
            out.print(clean(f"    {word:4}{_short(value)}"), soft_wrap=True)


def _short(value: Any) -> str:
    import json

    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), VALUE_WIDTH)


def _as_json(one: Compared) -> dict[str, Any]:
    return {**asdict(one), "same": one.same}
