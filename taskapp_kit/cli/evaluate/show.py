"""`taskapp show`: list stored rollouts, or print one rollout turn by turn."""

from __future__ import annotations

import asyncio
import random
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import click

from taskapp_kit.cli.options import ENV_FILES, SERVER_KEY, WIDTH, is_url, json_option, shown_source
from taskapp_kit.cli.output import show_output
from taskapp_kit.cli.output.terminal import example, print_json, shown_from, write_file
from taskapp_kit.cli.rollout_selection import CHOICE, FILTERS, LIMIT, Selection, selection, whole_id
from taskapp_kit.config import Settings, load
from taskapp_kit.declare.episode_selection import find_instance
from taskapp_kit.declare.tasks import row_hash, row_json
from taskapp_kit.errors import ConfigError
from taskapp_kit.evaluate import own_directories, scored_source
from taskapp_kit.evaluate import source as sources
from taskapp_kit.records.content import Json
from taskapp_kit.records.protocols import RolloutRow, RowOrder, StoredRollout
from taskapp_kit.rollout import details as rollout_details
from taskapp_kit.rollout import source as rollout_source
from taskapp_kit.rollout.policy import options as policies

SORTS = tuple(name for name in get_args(RowOrder) if name not in ("worst", "best"))


@click.command(
    epilog=example(
        "taskapp show r1 --worst 5",
        "taskapp show r1 4fd1d0d5",
        "taskapp show r1 --failed --boundary policy",
        "taskapp show .taskapp/rollouts.db --sort cost --limit 3",
        "taskapp show http://127.0.0.1:8001 --reward-below 0.5 --json",
        "taskapp show r1 4fd1d0d5 --html rollout.html",
    )
)
@click.argument("source", metavar="DIR|STORE|URL")
@click.argument("rollout_id", metavar="[ID]", required=False)
@CHOICE
@FILTERS
@click.option(
    "--sort",
    type=click.Choice(SORTS),
    help="List the newest or largest first.  [default: seed for an evaluation, otherwise newest first]",
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help=f"List at most N rollouts.  [default: {LIMIT}]")
@click.option("--scores", "scorer", metavar="VERSION", help="Use the scores of this version; see `taskapp rescore`.")
@click.option("--app", metavar="APP", help="With --private, the app that has the private fields.")
@click.option("--private", is_flag=True, help="With --app and one rollout, also show its task's private fields.")
@SERVER_KEY
@ENV_FILES
@click.option("--full", is_flag=True, help="Print every turn, prompt and metric in full.")
@WIDTH
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the rollout to an HTML file with its images, instead of printing it.",
)
@json_option("Print the rows, or the rollout, as JSON.")
def command(
    source: str,
    rollout_id: str | None,
    scorer: str | None,
    app: str | None,
    private: bool,
    key: str | None,
    env_files: tuple[str, ...],
    full: bool,
    width: int | None,
    html: Path | None,
    as_json: bool,
    **selected: Any,
) -> None:
    """List stored rollouts, or show one of them turn by turn.

    DIR is an evaluation's directory, STORE the address of a store (a path, sqlite:///PATH, postgresql://…), and URL a
    running task app. ID is a rollout's id or the beginning of the id. --worst 1 and --best 1 also show one rollout turn by
    turn.

    --worst and --best ignore rollouts that failed or whose reward is undefined.
    """
    chosen = selection(**selected)
    if rollout_id is not None and chosen != Selection():
        raise click.UsageError(
            "An ID selects one rollout. Omit --worst, --best, --failed, --sort, --limit and all filters."
        )
    if private and app is None:
        raise click.UsageError("--private needs --app APP, because stores contain no private fields.")
    if private and (as_json or html is not None or is_url(source)):
        raise click.UsageError("--private cannot be combined with --json, --html or a URL.")
    settings = load(env_files=env_files)
    key = key or settings.environment_api_key
    with shown_from(shown_source(source)):
        rows, rollout = asyncio.run(_read(source, key, scorer, rollout_id, chosen, images=html is not None))
        if rollout is None:
            if private or html is not None:
                raise click.UsageError("--private and --html need exactly one rollout. Pass its ID, or --worst 1.")
            _show_list(rows, source, chosen, full=full, width=width, as_json=as_json)
            return
        if as_json:
            print_json(rollout.details.to_json())
        if html is not None:
            _write_page(rollout, html)
        elif not as_json:
            fields = _private_fields(rollout.stored, str(app), settings) if private else None
            show_output.print_rollout(rollout.details, private=fields, again=rollout.again, full=full, width=width)


def _show_list(
    rows: list[RolloutRow], source: str, chosen: Selection, *, full: bool, width: int | None, as_json: bool
) -> None:
    """Print the rows up to the limit. One row beyond the limit means that more rollouts exist."""
    shown, most = shown_source(source), chosen.limit or LIMIT
    more, rows = len(rows) > most, rows[:most]
    if as_json:
        print_json({"source": shown, "more": more, "rollouts": [asdict(row) for row in rows]})
    else:
        show_output.print_list(rows, more=more, source=shown, order=chosen.order, full=full, width=width)


@dataclass(frozen=True, slots=True)
class _Rollout:
    """A rollout to show.

    Attributes:
        images: PNG bytes by SHA-256. Empty if no images are needed.
        again: The command line that plays the rollout again, or None if it is not known.
    """

    stored: StoredRollout
    details: rollout_details.RolloutDetails
    images: dict[str, bytes]
    again: str | None


async def _read(
    reference: str, key: str | None, scorer: str | None, rollout_id: str | None, chosen: Selection, *, images: bool
) -> tuple[list[RolloutRow], _Rollout | None]:
    """Return the selected rows, or an empty list and the rollout if a single rollout is selected.

    The list has one row beyond the limit if more rollouts exist.
    """
    source = sources.open_source(reference, key=key)
    try:
        if scorer is not None:
            source = await scored_source.with_scores(source, scorer)
        if rollout_id is not None:
            return [], await _rollout(source, await whole_id(source, rollout_id), images=images)
        rows = await chosen.rows(source, (chosen.limit or LIMIT) + 1)
        if chosen.limit == 1 and rows:
            return [], await _rollout(source, rows[0].rollout_id, images=images)
        return rows, None
    finally:
        await source.close()


async def _rollout(source: rollout_source.RolloutSource, rollout_id: str, *, images: bool) -> _Rollout:
    stored = await source.load(rollout_id)
    details = rollout_details.details_of(stored)
    names = details.pictures if images else ()
    loaded = {name: png for name in names if (png := await source.blob(name)) is not None}
    return _Rollout(stored, details, loaded, _again(details, source))


def _again(details: rollout_details.RolloutDetails, source: rollout_source.RolloutSource) -> str | None:
    """Return the command that plays a rollout again, or None if it is not known.

    If a model played the rollout and the source is an evaluation's directory, the command is `taskapp replay`.
    """
    if isinstance(source, sources.DirectorySource) and not own_directories.is_own(Path(source.place), source.config):
        return None  # the printed command would import an app that another user chose
    line = show_output.rollout_line(details, source.config)
    if line is None or details.policy != policies.MODEL or not isinstance(source, sources.DirectorySource):
        return line
    return shlex.join(["taskapp", "replay", source.place, details.stored.rollout_id[: show_output.ID_WIDTH]])


def _write_page(rollout: _Rollout, path: Path) -> None:
    """Write the rollout as an HTML page. Raises ConfigError if the file cannot be written."""
    from taskapp_kit.viewer.pages import standalone_rollout

    write_file(path, standalone_rollout(rollout.details, rollout.images).encode())


def _private_fields(stored: StoredRollout, reference: str, settings: Settings) -> dict[str, Json]:
    """Return the private fields of a rollout's task, read from the app's row.

    Raises ConfigError if the app has no rows, or if the row has changed since the rollout.
    """
    from taskapp_kit.cli.local_app import open_app

    spec = open_app(reference, settings).freeze()
    environment = spec.environments.get(stored.environment)
    if environment is None or environment.tasks is None or stored.row_hash is None:
        raise ConfigError(f"Environment {stored.environment} of {reference} has no private fields. Omit --private.")
    task = find_instance(environment, stored.split, stored.seed, random.Random(0)).task
    if row_hash(task) != stored.row_hash:
        raise ConfigError(
            f"The row of split {stored.split}, seed {stored.seed} in {reference} has changed since the rollout.",
            hint="Use the version of the app that played the rollout.",
        )
    whole, public = row_json(task), environment.tasks.public(task)
    return {name: value for name, value in whole.items() if name not in public or public[name] != value}
