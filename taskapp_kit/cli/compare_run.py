"""What `taskapp compare` does: reads the rollouts of each place and compares them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from taskapp_kit.cli.compare_output import print_comparisons
from taskapp_kit.cli.options import shown_source
from taskapp_kit.cli.terminal import shown_from
from taskapp_kit.config import load
from taskapp_kit.contract.protocols import RolloutQuery
from taskapp_kit.evaluate.compare import Comparison, ComparisonSettings, Side, chosen_sides, compare, read_sides
from taskapp_kit.evaluate.source import open_source

__all__ = ["compared", "print_comparisons"]


def compared(
    references: Sequence[str],
    env_files: Sequence[str],
    environment: str | None,
    policy: str | None,
    baseline: str | None,
    key: str | None,
    given: Mapping[str, Any],
) -> tuple[list[Comparison], ComparisonSettings]:
    """Compare the policies of the places. given: members of ComparisonSettings.

    Raises ConfigError: nothing can be compared; StoreError, TaskAppError.
    """
    settings, how = load({}, env_files=env_files), ComparisonSettings(**given)

    async def read() -> list[Side]:
        sides = []
        for reference in references:
            source = open_source(reference, key=key or settings.environment_api_key)
            try:
                sides += await read_sides(source, shown_source(reference), wanted=RolloutQuery(environment=environment))
            finally:
                await source.close()
        return sides

    with shown_from(", ".join(map(shown_source, references))):
        return compare(chosen_sides(asyncio.run(read()), policy, baseline), how), how
