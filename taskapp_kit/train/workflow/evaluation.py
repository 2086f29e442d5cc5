"""The success rate of a policy on rows that it is not trained on: `evaluate`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from taskapp_kit.errors import ServiceError
from taskapp_kit.services import ServiceHandle
from taskapp_kit.train.workflow.data_loader import DataRow, Difficulty, read_rows
from taskapp_kit.train.workflow.episode import Response

log = logging.getLogger("taskapp_kit.train")


async def evaluate(
    policy: ServiceHandle,
    difficulty: Difficulty = None,
    *,
    rows: Sequence[Any],
    reward: ServiceHandle | None = None,
    success: float = 1.0,
    temperature: float | None = 0.0,
) -> float:
    """Return the share of rows, from 0 to 1, whose answer has a reward of at least `success`.

    policy: a service of `Policy`. difficulty: of the rows, None for all. rows: held out, as those of `DataLoader`. reward: a
    service of `RewardActor`; None compares answer and target, without the space around them. temperature: 0 takes the most
    probable token, None that of the policy. A row whose reward is undefined does not count, and is logged. Raises
    BadArgument for no rows; ServiceError if no reward is defined; what the services raise.
    """

    async def rewarded(row: DataRow) -> float | None:
        response: Response = await policy.generate.route(row.prompt, temperature=temperature)
        if reward is None:
            return float(response.text.strip() == str(row.target).strip())
        value: float | None = await reward.evaluate_response.route(row.prompt, response.text, row.target)
        return value

    found = await asyncio.gather(*map(rewarded, read_rows(rows, difficulty)))
    defined = [each for each in found if each is not None]
    if not defined:
        raise ServiceError(f"None of {len(found)} answers has a reward; expected a number for at least one.")
    if len(defined) < len(found):
        log.warning(
            "evaluation: %d of %d answers have no reward, and do not count", len(found) - len(defined), len(found)
        )
    return sum(each >= success for each in defined) / len(defined)
