"""What `taskapp show` does: reads the rows or one rollout, and prints them."""

from __future__ import annotations

import asyncio
import random
import re
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from taskapp_kit.cli.options import is_url, shown_source
from taskapp_kit.cli.selection import LIMIT, Selection
from taskapp_kit.cli.show_output import ID_WIDTH, print_list, print_rollout, rollout_line
from taskapp_kit.cli.terminal import clean, echo, print_json
from taskapp_kit.config import Settings, load
from taskapp_kit.contract.content import Json
from taskapp_kit.contract.protocols import RolloutRow, StoredRollout
from taskapp_kit.declare.episode_selection import find_instance
from taskapp_kit.declare.tasks import row_hash, row_json
from taskapp_kit.errors import ConfigError
from taskapp_kit.evaluate.own_directories import is_own
from taskapp_kit.evaluate.scored_source import with_scores
from taskapp_kit.evaluate.source import DirectorySource, open_source
from taskapp_kit.rollout.details import RolloutDetails, details_of
from taskapp_kit.rollout.policy.select import MODEL
from taskapp_kit.rollout.source import RolloutSource
from taskapp_kit.system.private_files import write_private

SHORTEST_PREFIX = 4
"""Of an id, in characters."""
ROLLOUT_ID = re.compile(r"[0-9a-f]{32}")


def run(source: str, rollout_id: str | None, chosen: Selection, options: dict[str, Any]) -> None:
    """Show what is chosen of a source, or the rollout with the id. Raises UsageError, and every error of a source."""
    app, private, html, as_json = (options[name] for name in ("app", "private", "html", "as_json"))
    shape = {"full": options["full"], "width": options["width"]}
    if rollout_id is not None and chosen != Selection():
        raise click.UsageError(
            "An ID names one rollout: leave out --worst, --best, --failed, --sort, --limit and filters."
        )
    if private and app is None:
        raise click.UsageError("--private needs --app APP: private fields are in the app's rows, never in a store.")
    if private and (as_json or html is not None or is_url(source)):
        raise click.UsageError("--private is for the terminal, and for rollouts that are stored on this machine.")
    settings = load(env_files=options["env_files"])
    key = options["key"] or settings.environment_api_key
    rows, one = asyncio.run(_read(source, key, options["scorer"], rollout_id, chosen, pictures=html is not None))
    if one is None and (private or html is not None):
        raise click.UsageError("--private and --html are for one rollout: name its ID, or choose one with --worst 1.")
    if one is not None:
        if as_json:
            print_json(one.details.to_json())
        if html is not None:
            _write_page(one, html)
        elif not as_json:
            answer = private_fields_of(one.stored, app, settings) if private else None
            print_rollout(one.details, private=answer, again=one.again, **shape)
        return
    shown = shown_source(source)
    most = chosen.limit or LIMIT
    more = len(rows) > most
    if as_json:
        print_json({"source": shown, "more": more, "rollouts": [asdict(row) for row in rows[:most]]})
    else:
        print_list(rows[:most], more=more, source=shown, order=chosen.order, **shape)


@dataclass(frozen=True, slots=True)
class _One:
    """A rollout to be shown.

    pictures: PNG bytes by SHA-256, where they are needed. again: the command line that plays it again, if known.
    """

    stored: StoredRollout
    details: RolloutDetails
    pictures: dict[str, bytes]
    again: str | None


async def _read(
    reference: str, key: str | None, scorer: str | None, rollout_id: str | None, chosen: Selection, *, pictures: bool
) -> tuple[list[RolloutRow], _One | None]:
    """The rows, one more than requested where there are more; or the one rollout."""
    source = open_source(reference, key=key)
    try:
        if scorer is not None:
            source = await with_scores(source, scorer)
        if rollout_id is not None:
            return [], await _one(source, await whole_id(source, rollout_id), pictures)
        rows = await chosen.rows(source, (chosen.limit or LIMIT) + 1)
        if chosen.limit == 1 and rows:
            return [], await _one(source, rows[0].rollout_id, pictures)
        return rows, None
    finally:
        await source.close()


async def _one(source: RolloutSource, rollout_id: str, pictures: bool) -> _One:
    stored = await source.load(rollout_id)
    details = details_of(stored)
    wanted = details.pictures if pictures else ()
    found = {name: png for name in wanted if (png := await source.blob(name)) is not None}
    return _One(stored, details, found, _again(details, source))


def _again(details: RolloutDetails, source: RolloutSource) -> str | None:
    """The command that plays a rollout again, if known. A model is not asked again where its answers are at hand."""
    if isinstance(source, DirectorySource) and not is_own(Path(source.place), source.config):
        return None  # a line to paste would import what somebody else named
    line = rollout_line(details, source.config)
    if line is None or details.policy != MODEL or not isinstance(source, DirectorySource):
        return line
    return shlex.join(["taskapp", "replay", source.place, details.stored.rollout_id[:ID_WIDTH]])


def _write_page(one: _One, path: Path) -> None:
    """Raises ConfigError when the file cannot be written."""
    from taskapp_kit.serve.viewer.pages import standalone_rollout

    try:
        write_private(path, standalone_rollout(one.details, one.pictures).encode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.", hint="Give another --html.") from None
    echo(f"Written to {clean(str(path))}", err=True)


async def whole_id(source: RolloutSource, given: str) -> str:
    """The id that begins like this. Raises ConfigError when none does, or several do."""
    if ROLLOUT_ID.fullmatch(given):
        return given
    if len(given) < SHORTEST_PREFIX:
        raise ConfigError(
            f"{given!r} is too short for an id.", hint=f"Give at least {SHORTEST_PREFIX} characters of it."
        )
    found = [row.rollout_id async for row in source.rows() if row.rollout_id.startswith(given)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{len(found)} rollouts have an id that begins with {given!r}.", hint="Give more of it.")
    raise ConfigError(
        f"There is no rollout whose id begins with {given[:80]!r} in {source.place}.",
        hint="`taskapp show` without an id lists those that are there.",
    )


def private_fields_of(stored: StoredRollout, reference: str, settings: Settings) -> dict[str, Json]:
    """The fields of a rollout's task that hold something private, from the app's own row.

    Raises ConfigError: the app has no rows, or other ones than the one that was played.
    """
    from taskapp_kit.cli.local_app import open_app

    spec = open_app(reference, settings).freeze()
    environment = spec.environments.get(stored.environment)
    if environment is None or environment.tasks is None or stored.row_hash is None:
        raise ConfigError(f"The environment {stored.environment} of {reference} has no rows with private fields.")
    task = find_instance(environment, stored.split, stored.seed, random.Random(0)).task
    if row_hash(task) != stored.row_hash:
        raise ConfigError(
            f"The row of split {stored.split}, seed {stored.seed} in {reference} is not the one that was played.",
            hint="Show it with the version of the app that played it.",
        )
    whole, public = row_json(task), environment.tasks.public(task)
    return {name: value for name, value in whole.items() if name not in public or public[name] != value}
