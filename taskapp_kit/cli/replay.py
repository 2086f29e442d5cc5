"""`taskapp replay`: stored rollouts, played again from their recorded answers and compared with the originals."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from taskapp_kit.cli.options import JSON_OBJECT, SEED, json_option
from taskapp_kit.cli.terminal import clean, console, echo, example, one_line, print_json
from taskapp_kit.errors import RequestError

if TYPE_CHECKING:
    from taskapp_kit.evaluate.replay import Compared

ROLLOUT_ID = re.compile(r"[0-9a-f]{32}")
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
    "--from", "source", metavar="DIR|STORE",
    help="Where the rollouts are: an evaluation's directory, or a store (sqlite:///PATH, postgresql://…).  [default: DIR]",
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
    source: str | None,
    store: str | None,
    app_option: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Play stored rollouts again, and say whether the same happened.

    DIR is an evaluation's directory, which names its app; rollouts of other places are named by --from, after the app.
    Environment, split, seed, config and sample are taken from each stored rollout, and what its policy answered is
    answered again; no model and no judge is asked. ID is a rollout's id or the beginning of one. One that failed in its
    environment or its scoring fails again, with its traceback. Without ID every rollout of the app that did not fail is
    replayed. Where something differs, the first difference is printed: the step, the stored value and the new one. Exit
    status 1 then.
    """
    from taskapp_kit.cli import replay_run

    if source is None and app is not None and replay_run.is_evaluation(app):
        app, source = None, app
    if app is not None and rollout_id is None and ROLLOUT_ID.fullmatch(app):
        app, rollout_id = None, app
    if source is None:
        raise click.UsageError("Where are the rollouts? Give an evaluation's directory, or the app and --from STORE.")
    if app is not None and app_option is not None:
        raise click.UsageError("The app is given twice, as APP and by --app.")
    if rollout_id is None and any(value is not None for value in given.values()):
        raise click.UsageError("--env, --seed, --split, --config and --sample go with the ID of one rollout.")
    address, named = replay_run.source_of(source, app_option or app)
    if named is None:
        raise click.UsageError("Which app? Give APP; only an evaluation's directory can name it.")
    show = None if as_json else _print
    try:
        compared = replay_run.replay(named, address, store, rollout_id, given, show=show)
    except RequestError as error:
        raise _by_flag(error) from None
    differ = [one for one in compared if not one.same]
    if as_json:
        print_json({"replayed": len(compared), "differ": len(differ), "rollouts": [_as_json(one) for one in compared]})
    else:
        echo(f"{len(compared)} replayed, {len(differ)} differ.")
    if differ:
        ctx.exit(1)


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
    for sentence in (one.failed, one.problem):
        if sentence is not None:
            out.print(clean(f"  {sentence}"), soft_wrap=True)
    if one.difference is not None:
        difference = one.difference
        out.print(clean(f"  {difference.where}, {difference.what}"), soft_wrap=True)
        for word, value in (("was", difference.was), ("is", difference.now)):
            out.print(clean(f"    {word:4}{_short(value)}"), soft_wrap=True)


def _short(value: Any) -> str:
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), VALUE_WIDTH)


def _as_json(one: Compared) -> dict[str, Any]:
    return {**asdict(one), "same": one.same}
