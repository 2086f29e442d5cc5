"""`taskapp replay`: play stored rollouts again with their recorded actions, and compare them with the originals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from taskapp_kit.cli import local_app
from taskapp_kit.cli.options import JSON_OBJECT, SEED, episode, json_option
from taskapp_kit.cli.output.terminal import clean, console, echo, example, one_line, print_json
from taskapp_kit.cli.rollout_selection import ROLLOUT_ID, whole_id
from taskapp_kit.config import Settings, load
from taskapp_kit.declare.app import TaskApp
from taskapp_kit.errors import ConfigError, RequestError, RolloutFailed
from taskapp_kit.evaluate import continued, directory
from taskapp_kit.evaluate import replay as replays
from taskapp_kit.evaluate import source as sources
from taskapp_kit.records.protocols import Store
from taskapp_kit.store import open_store
from taskapp_kit.wire import rollout as wire

VALUE_WIDTH = 400
FLAGS = {"env_name": "--env", "seed": "--seed", "split": "--split", "sample": "--sample"}


@click.command(
    epilog=example(
        "taskapp replay adder.py 4fd1d0d5c1f14b6f9a4a0e8f0c2b7a11 --from .taskapp/rollouts.db",
        "taskapp replay .taskapp/evals/adder-gold-20260301-110000",
        "taskapp replay .taskapp/evals/adder-gold-20260301-110000 4fd1d0d5",
        "taskapp replay crafter --from postgresql://… --store replays.db",
    )
)
@click.argument("app", metavar="[APP|DIR]", required=False)
@click.argument("rollout_id", metavar="[ID]", required=False)
@click.option(
    "--from",
    "source",
    metavar="DIR|STORE",
    help="An evaluation's directory, or a store (sqlite:///PATH, postgresql://…).  [default: DIR]",
)
@click.option("--store", metavar="URL", help="Where to store the replays.  [default: none]")
@click.option("--app", "app_option", metavar="APP", help="The app.  [default: the evaluation's app]")
@click.option("--env", "environment", metavar="NAME", help="With ID, fail if the environment differs.")
@click.option("--seed", type=SEED, metavar="S", help="With ID, fail if the seed differs.")
@click.option("--split", metavar="NAME", help="With ID, fail if the split differs.")
@click.option("--config", "env_config", type=JSON_OBJECT, metavar="JSON", help="With ID, fail if the config differs.")
@click.option("--sample", type=click.IntRange(0), metavar="N", help="With ID, fail if the sample differs.")
@json_option()
@click.pass_context
def command(
    ctx: click.Context,
    /,
    app: str | None,
    rollout_id: str | None,
    source: str | None,
    store: str | None,
    app_option: str | None,
    as_json: bool,
    **selected: Any,
) -> None:
    """Replay stored rollouts and report every difference from the originals.

    DIR is an evaluation's directory, which names its app. For rollouts in a store, pass the app and --from STORE. ID is a
    rollout's id or the beginning of the id. Without ID, every rollout of the app that did not fail is replayed.

    Environment, split, seed, config and the policy's actions are taken from each stored rollout. No model or judge is
    called. If the rollout ID failed in its environment or scoring, it fails again, and its traceback is printed. If a
    replay differs from the original, the first different step is printed with the stored value and the new value, and the
    exit status is 1.
    """
    if source is None and app is not None and continued.is_evaluation(app):
        app, source = None, app
    if app is not None and rollout_id is None and ROLLOUT_ID.fullmatch(app):
        app, rollout_id = None, app
    if source is None:
        raise click.UsageError("No rollouts were given. Pass an evaluation's directory, or the app and --from STORE.")
    if app is not None and app_option is not None:
        raise click.UsageError("The app was given twice. Pass either APP or --app.")
    if rollout_id is None and any(value is not None for value in selected.values()):
        raise click.UsageError("--env, --seed, --split, --config and --sample need the ID of a rollout.")
    address, reference = _source_of(source, app_option or app)
    if reference is None:
        raise click.UsageError("No app was given. Pass APP, because a store does not name the app.")
    settings = load()
    target = local_app.open_app(reference, settings)
    show = None if as_json else _print
    try:
        compared = asyncio.run(_replayed(target, settings, address, store, rollout_id, selected, show))
    except RequestError as error:
        raise _by_flag(error) from None
    differ = sum(not comparison.same for comparison in compared)
    if as_json:
        rollouts = [{**asdict(comparison), "same": comparison.same} for comparison in compared]
        print_json({"replayed": len(compared), "differ": differ, "rollouts": rollouts})
    else:
        echo(f"{len(compared)} replayed, {differ} differ.")
    if differ:
        ctx.exit(1)


def _by_flag(error: RequestError) -> RequestError:
    """Replace request fields with command-line flags in a `replay_differs` error. Return other errors unchanged."""
    if error.code != "replay_differs":
        return error
    flags = [f"{FLAGS.get(str(field.loc[-1]), f'--config {field.loc[-1]}')} {field.message}" for field in error.fields]
    return RequestError(
        f"The options describe a different episode than the stored one: {'; '.join(flags)}.",
        fields=error.fields,
        code=error.code,
        hint="Omit these options. A replay uses the values of the stored rollout.",
    )


def _print(compared: replays.Compared) -> None:
    out = console()
    head = f"{compared.rollout_id}  {compared.environment} {compared.split} {compared.seed}"
    out.print(clean(f"{head}  {'same' if compared.same else 'differs'}"), soft_wrap=True)
    for sentence in (compared.failed, compared.problem):
        if sentence is not None:
            out.print(clean(f"  {sentence}"), soft_wrap=True)
    if compared.difference is not None:
        difference = compared.difference
        out.print(clean(f"  {difference.where}, {difference.what}"), soft_wrap=True)
        for word, value in (("was", difference.was), ("is", difference.now)):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            out.print(clean(f"    {word:4}{one_line(text, VALUE_WIDTH)}"), soft_wrap=True)


def _source_of(source: str, app: str | None) -> tuple[str, str | None]:
    """Return the address of the store, and the app's reference. If `app` is None, use the evaluation's app.

    Raises ConfigError if an evaluation's directory contains no store.
    """
    path = Path(source)
    if not path.is_dir():
        return source, app
    config = directory.read_config(path)
    database = path / "rollouts.db"
    if not database.is_file():
        raise ConfigError(
            f"{path} contains no rollouts.db, because its rollouts are in another store or were not stored.",
            hint="Pass the store with --from sqlite:///PATH or --from postgresql://….",
        )
    return str(database), local_app.app_named(app, source, config)


async def _replayed(
    app: TaskApp,
    settings: Settings,
    source: str,
    target: str | None,
    rollout_id: str | None,
    selected: dict[str, Any],
    show: Callable[[replays.Compared], None] | None,
) -> list[replays.Compared]:
    """Replay one rollout from the store `source`, or all of the app's rollouts, and call `show` after each.

    If `rollout_id` is given and the rollout fails, its traceback is printed, unless `show` is None. `selected` contains
    values that the stored rollout must match.

    Raises RequestError (`replay_differs`) if the values do not match, UsageError if `target` is the same store as
    `source`, and ConfigError or StoreError if a store cannot be opened.
    """

    def traced(failed: RolloutFailed) -> None:
        if rollout_id is not None and show is not None:
            local_app.show_traceback(failed.__cause__)

    if rollout_id is not None:
        rows = sources.open_source(source)
        try:
            rollout_id = await whole_id(rows, rollout_id)
        finally:
            await rows.close()
    stored_in = open_store(source, create=False)
    compared = []
    try:
        async with local_app.local_service(app, settings, store=target, skip_judges=True) as service:
            _not_the_same_place(stored_in, service.store)
            async for rollout in replays.replay_all(
                service, stored_in, rollout_id, lambda name: _request(name, selected), traced
            ):
                compared.append(rollout)
                if show is not None:
                    show(rollout)
    finally:
        await stored_in.close()
    return compared


def _not_the_same_place(source: Store, target: Store | None) -> None:
    place = getattr(source, "place", None)
    if target is not None and place not in (None, "memory") and place == getattr(target, "place", None):
        raise click.UsageError("--store and --from are the same store. Choose a different --store for the replays.")


def _request(rollout_id: str, selected: dict[str, Any]) -> wire.RolloutRequest:
    policy = {"policy": "replay", "rollout_id": rollout_id}
    if selected["sample"] is not None:
        policy["sample"] = selected["sample"]
    env = episode(selected["environment"], selected["seed"], selected["env_config"], selected["split"])
    return wire.RolloutRequest.model_validate(
        {"run_id": f"replay-{rollout_id}"[:512], "env": env, "policy": {"config": policy}, "ops": [], "mode": "eval"}
    )
