"""`taskapp store`: measure a store, check its integrity, and remove old rollouts."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, TypeVar

import click

from taskapp_kit.cli.options import ValueKind, json_option
from taskapp_kit.cli.output.terminal import clean, console, echo, example, print_json, size_words, table
from taskapp_kit.errors import ConfigError, Unavailable
from taskapp_kit.evaluate import directory
from taskapp_kit.records.formatting import counted
from taskapp_kit.rollout import retention
from taskapp_kit.store import open_store, sql

Result = TypeVar("Result")


class Keep(ValueKind):
    """Which rollouts to keep, as (days, number): `30d` keeps the last 30 days, `1000` the newest 1000 rollouts."""

    name = "keep"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, int | None]:
        """Return (days, None) or (None, number). Fails for any other value."""
        match = re.fullmatch(r"([0-9]{1,9})(d?)", str(value).strip().lower())
        if match is None or int(match[1]) < 1:
            expected = "a number of days such as 30d, or a number of rollouts such as 1000"
            self.fail(f"{str(value)[:80]!r} is invalid. Expected {expected}.", param, ctx)
        number = int(match[1])
        return (number, None) if match[2] else (None, number)


PLACE = click.argument("place", metavar="STORE|DIR")


@click.group(
    epilog=example(
        "taskapp store size .taskapp/rollouts.db",
        "taskapp store check .taskapp/evals/adder-gold-20260301-110000",
        "taskapp store prune sqlite:///.taskapp/rollouts.db --keep 30d --dry-run",
    )
)
def command() -> None:
    """Measure, check and prune a store of rollouts.

    STORE is a path, sqlite:///PATH or postgresql://…. DIR is an evaluation's directory, which contains rollouts.db.
    """


@command.command(epilog=example("taskapp store size .taskapp/rollouts.db"))
@PLACE
@json_option()
def size(place: str, as_json: bool) -> None:
    """Show how much space each environment and each kind of data uses.

    The size of events is their compressed size. An image is stored once, but counted in each environment that shows it.
    """
    usage = _with_store(place, lambda store: store.usage())
    kinds = {
        "events": (usage.rollouts, usage.events_bytes),
        "other columns": (usage.rollouts, usage.columns_bytes),
        "pictures": (usage.pictures, usage.pictures_bytes),
        "scores of rescore": (usage.scores, usage.scores_bytes),
        "idempotency records": (usage.records, usage.records_bytes),
        "indexes, numbers, free": (None, usage.other_bytes),
    }
    if as_json:
        shown = {name: {"count": count, "bytes": taken} for name, (count, taken) in kinds.items()}
        total = {"rollouts": usage.rollouts, "size_bytes": usage.size_bytes}
        print_json({"environments": [asdict(item) for item in usage.environments], "kinds": shown, **total})
        return
    out = console()
    right = ("rollouts", "events", "other columns", "images", "per rollout")
    rows = table("environment", *right, right=right)
    for item in usage.environments:
        own = item.events_bytes + item.columns_bytes
        rows.add_row(
            clean(f"{item.app}/{item.environment}"),
            f"{item.rollouts}",
            size_words(item.events_bytes),
            size_words(item.columns_bytes),
            f"{size_words(item.pictures_bytes)} ({item.pictures})",
            size_words(own // max(1, item.rollouts)),
        )
    out.print(rows)
    out.print()
    rows = table("kind", "count", "size", right=("count", "size"))
    for name, (count, taken) in kinds.items():
        rows.add_row(name, "" if count is None else f"{count}", size_words(taken))
    rows.add_row("all", "", size_words(usage.size_bytes))
    out.print(rows)


@command.command(epilog=example("taskapp store check .taskapp/rollouts.db"))
@PLACE
@json_option()
@click.pass_context
def check(ctx: click.Context, place: str, as_json: bool) -> None:
    """Read the whole store and report damaged or missing data.

    The command runs the database's integrity check, reads every rollout, compares the hash of every image, and looks for
    missing images. The exit status is 1 if something is damaged or missing.
    """
    checked = _with_store(place, lambda store: store.check())
    if as_json:
        print_json({"ok": checked.ok, **asdict(checked)})
    else:
        out = console()
        what = f"{counted(checked.rollouts, 'rollout')}, {counted(checked.blobs, 'image')}, {size_words(checked.size_bytes)}"
        out.print(f"{what}: {'sound' if checked.ok else 'not sound'}.")
        missing = [f"image {name} is missing" for name in checked.missing_blobs]
        for line in [*checked.integrity, *checked.damaged, *missing]:
            out.print(clean(f"  {line}"), soft_wrap=True)
    if not checked.ok:
        ctx.exit(1)


@command.command(
    epilog=example(
        "taskapp store prune .taskapp/rollouts.db --keep 30d --dry-run",
        "taskapp store prune .taskapp/rollouts.db --keep 10000 --yes",
    )
)
@PLACE
@click.option(
    "--keep",
    type=Keep(),
    required=True,
    metavar="30d|N",
    help="Which rollouts of each app to keep: 30d keeps the last 30 days, N the newest N.",
)
@click.option("--app", "app", metavar="NAME", help="Only rollouts of this app.  [default: all apps]")
@click.option("--dry-run", is_flag=True, help="Only count the rollouts to remove.")
@click.option("--yes", is_flag=True, help="Remove the rollouts.")
@json_option()
def prune(
    place: str, keep: tuple[int | None, int | None], app: str | None, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Remove old rollouts, and images that no remaining rollout shows.

    Rollouts with an idempotency record from the last 24 hours are kept. Running servers can use the store at the same
    time. A SQLite file does not shrink, but its free space is reused.
    """
    if dry_run == yes:
        raise click.UsageError("Pass either --dry-run to count the rollouts, or --yes to remove them.")
    days, newest = keep
    which = {"before": None if days is None else time.time() - days * retention.DAY_SECONDS, "keep": newest}

    async def pruned(opened: sql.SqlStore) -> dict[str, int]:
        names = await opened.apps()
        if app is not None and app not in names:
            raise ConfigError(
                f"The store contains no rollouts of the app {app[:80]!r}.",
                hint=f"The apps in this store are: {', '.join(names) or '(none, the store is empty)'}.",
            )
        work: Callable[..., Awaitable[int]] = opened.prunable if dry_run else opened.prune
        return {name: await work(name, **which) for name in ([app] if app is not None else names)}

    removed = _with_store(place, pruned)
    if as_json:
        print_json({"removed": 0 if dry_run else sum(removed.values()), "apps": removed, "dry_run": dry_run})
        return
    verb = "would be removed" if dry_run else "removed"
    for name, count in removed.items():
        echo(f"{name}: {counted(count, 'rollout')} {verb}.")
    if not removed:
        echo("The store contains no rollouts.")


def _with_store(place: str, use: Callable[[sql.SqlStore], Awaitable[Result]]) -> Result:
    """Open an existing store, pass it to `use`, and return the result.

    place: The store's address, or an evaluation's directory.

    Raises ConfigError for an invalid address, StoreError if the store cannot be opened, and Unavailable if a plugin
    provides the store.
    """

    async def run() -> Result:
        store = open_store(directory.store_address(place), create=False)
        try:
            if not isinstance(store, sql.SqlStore):
                raise Unavailable("`taskapp store` supports only SQLite and Postgres. A plugin provides this store.")
            return await use(store)
        finally:
            await store.close()

    return asyncio.run(run())
