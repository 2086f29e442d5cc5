"""Which stored rollouts a command means: the worst, the best, those that failed, or those that match filters."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

import click

from taskapp_kit.cli.options import options
from taskapp_kit.errors import Boundary, ConfigError
from taskapp_kit.records.protocols import RolloutQuery, RowOrder

if TYPE_CHECKING:
    from taskapp_kit.records.protocols import RolloutRow
    from taskapp_kit.rollout.source import RolloutSource

ROLLOUT_ID = re.compile(r"[0-9a-f]{32}")
SHORTEST_PREFIX = 4
"""Of an id, in characters."""
LIMIT = 50
"""Rows of a list, unless another number is requested."""
CHOICE = options(
    click.option("--worst", type=click.IntRange(1), metavar="N", help="The N with the lowest reward."),
    click.option("--best", type=click.IntRange(1), metavar="N", help="The N with the highest reward."),
    click.option("--failed", is_flag=True, help="Those that failed."),
)
FILTERS = options(
    click.option("--env", "environment", metavar="NAME", help="Only of this environment."),
    click.option("--policy", metavar="P", help="Only of this policy, or of the model of this name."),
    click.option(
        "--status", type=click.Choice(["terminated", "truncated", "failed"]), help="Only those that ended like this."
    ),
    click.option("--boundary", type=click.Choice(get_args(Boundary)), help="Only those that failed there."),
    click.option("--reward-below", type=float, metavar="X", help="Only those whose reward is less."),
    click.option("--reward-above", type=float, metavar="X", help="Only those whose reward is greater."),
)
"""The filters of `GET /rollouts`."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which stored rollouts, in which order (None: the source's own), and how many at most (None: all)."""

    query: RolloutQuery = field(default_factory=RolloutQuery)
    order: RowOrder | None = None
    limit: int | None = None

    async def rows(self, source: RolloutSource, most: int | None = None) -> list[RolloutRow]:
        """The rows of a source. most: at most so many, in place of the selection's own limit."""
        return [row async for row in source.rows(self.query, self.order, limit=most or self.limit)]


def selection(
    *,
    worst: int | None = None,
    best: int | None = None,
    failed: bool = False,
    sort: RowOrder | None = None,
    limit: int | None = None,
    **filters: Any,
) -> Selection:
    """The selection that the options of `CHOICE` and `FILTERS` ask for. Raises UsageError for options that exclude others."""
    if sum((worst is not None, best is not None, failed)) > 1:
        raise click.UsageError("Give one of --worst, --best and --failed.")
    if worst is not None or best is not None:
        if sort is not None or limit is not None:
            raise click.UsageError(
                "--worst and --best have an order and a number of their own; leave out --sort and --limit."
            )
        sort, limit = ("worst", worst) if worst is not None else ("best", best)
    if failed:
        if filters.get("status") not in (None, "failed"):
            raise click.UsageError("--failed and --status exclude each other.")
        filters["status"] = "failed"
    return Selection(RolloutQuery(**filters), sort, limit)


async def whole_id(source: RolloutSource, prefix: str) -> str:
    """The id that begins like this. Raises ConfigError when none does, or several do."""
    if ROLLOUT_ID.fullmatch(prefix):
        return prefix
    if len(prefix) < SHORTEST_PREFIX:
        raise ConfigError(
            f"{prefix!r} is too short for an id.", hint=f"Give at least {SHORTEST_PREFIX} characters of it."
        )
    names = [row.rollout_id async for row in source.rows() if row.rollout_id.startswith(prefix)]
    if len(names) == 1:
        return names[0]
    if names:
        raise ConfigError(f"{len(names)} rollouts have an id that begins with {prefix!r}.", hint="Give more of it.")
    raise ConfigError(
        f"There is no rollout whose id begins with {prefix[:80]!r} in {source.place}.",
        hint="`taskapp show` without an id lists those that are there.",
    )
