"""The selection of stored rollouts: the worst, the best, the failed, or all that match filters."""

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
"""The minimum length of an id's beginning, in characters."""
LIMIT = 50
"""The number of listed rows if --limit is not given."""
CHOICE = options(
    click.option("--worst", type=click.IntRange(1), metavar="N", help="The N rollouts with the lowest rewards."),
    click.option("--best", type=click.IntRange(1), metavar="N", help="The N rollouts with the highest rewards."),
    click.option("--failed", is_flag=True, help="The rollouts that failed."),
)
FILTERS = options(
    click.option("--env", "environment", metavar="NAME", help="Only rollouts in this environment."),
    click.option("--policy", metavar="P", help="Only rollouts of this policy or model."),
    click.option(
        "--status", type=click.Choice(["terminated", "truncated", "failed"]), help="Only rollouts with this status."
    ),
    click.option("--boundary", type=click.Choice(get_args(Boundary)), help="Only failures at this boundary."),
    click.option("--reward-below", type=float, metavar="X", help="Only rollouts with a reward below X."),
    click.option("--reward-above", type=float, metavar="X", help="Only rollouts with a reward above X."),
)
"""The filters of `GET /rollouts`."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of stored rollouts.

    If `order` is None, they are in the source's order. If `limit` is None, all are selected.
    """

    query: RolloutQuery = field(default_factory=RolloutQuery)
    order: RowOrder | None = None
    limit: int | None = None

    async def rows(self, source: RolloutSource, most: int | None = None) -> list[RolloutRow]:
        """Return the selected rows of a source. most: A limit that replaces the selection's limit."""
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
    """Return the selection for the options in `CHOICE` and `FILTERS`. Raises UsageError if they contradict each other."""
    if sum((worst is not None, best is not None, failed)) > 1:
        raise click.UsageError("Pass only one of --worst, --best and --failed.")
    if worst is not None or best is not None:
        if sort is not None or limit is not None:
            raise click.UsageError("--worst and --best set the order and the limit. Omit --sort and --limit.")
        sort, limit = ("worst", worst) if worst is not None else ("best", best)
    if failed:
        if filters.get("status") not in (None, "failed"):
            raise click.UsageError("--failed contradicts this --status. Omit one of them.")
        filters["status"] = "failed"
    return Selection(RolloutQuery(**filters), sort, limit)


async def whole_id(source: RolloutSource, prefix: str) -> str:
    """Return the id that begins with `prefix`.

    Raises ConfigError if it is too short, or if no id or several ids match.
    """
    if ROLLOUT_ID.fullmatch(prefix):
        return prefix
    if len(prefix) < SHORTEST_PREFIX:
        raise ConfigError(
            f"The id {prefix!r} is too short.", hint=f"Pass at least the first {SHORTEST_PREFIX} characters."
        )
    names = [row.rollout_id async for row in source.rows() if row.rollout_id.startswith(prefix)]
    if len(names) == 1:
        return names[0]
    if names:
        raise ConfigError(f"{len(names)} rollout ids begin with {prefix!r}.", hint="Pass more characters of the id.")
    raise ConfigError(
        f"No rollout id in {source.place} begins with {prefix[:80]!r}.",
        hint="`taskapp show` without an id lists the rollouts.",
    )
