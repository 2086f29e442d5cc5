"""`DataLoader`, which returns prompts with targets, and `evaluate`, which measures a policy's success rate on them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from taskapp_kit.errors import BadArgument, ServiceError
from taskapp_kit.records.seeds import derived_rng
from taskapp_kit.services import Actor, ServiceHandle, endpoint
from taskapp_kit.train.workflow.episode import Prompt, Response

Difficulty = int | str | None


@dataclass(frozen=True, slots=True)
class DataRow:
    """A row of data. `alone` is whether the row is a prompt without a target."""

    prompt: Prompt
    target: Any = None
    difficulty: Difficulty = None
    alone: bool = False

    @classmethod
    def read(cls, row: Any, index: int) -> Self:
        """Convert (prompt, target), (prompt, target, difficulty), or a prompt to a row. Raises BadArgument for other values."""
        if _is_prompt(row):
            return cls(row, alone=True)
        if isinstance(row, list | tuple) and len(row) in (2, 3) and _is_prompt(row[0]):
            return cls(*row)
        raise BadArgument(
            f"Row {index} of the data is {repr(row)[:80]}. Expected (prompt, target), (prompt, target, difficulty), or "
            "a prompt. A prompt is a string or a list of chat messages."
        )


def read_rows(rows: Sequence[Any], difficulty: Difficulty = None) -> list[DataRow]:
    """Return the rows of this difficulty, or all rows for None. Raises BadArgument if a row is invalid or none remains."""
    every = [DataRow.read(row, index) for index, row in enumerate(rows)]
    if not every:
        raise BadArgument("The data has no rows. Expected at least one (prompt, target).")
    chosen = [row for row in every if difficulty is None or row.difficulty == difficulty]
    if not chosen:
        difficulties = ", ".join(sorted({repr(row.difficulty) for row in every}))
        raise BadArgument(f"No row of the data has the difficulty {difficulty!r}. The difficulties are {difficulties}.")
    return chosen


class DataLoader(Actor):
    """Returns rows in random order: `DataLoader.as_service(rows, seed=1)`. No row is repeated before all were returned.

    Every replica starts at the beginning of the same order, also after a restart.

    Args:
        rows: A list of (prompt, target), (prompt, target, difficulty), or prompts without targets.
        seed: Determines the random order.

    Raises:
        BadArgument: The data has no rows, or a row is invalid. This is raised before a process starts.
    """

    def __init__(self, rows: Sequence[Any], *, seed: int | str = 0) -> None:
        self._rows: dict[Difficulty, list[DataRow]] = {None: read_rows(rows)}
        for row in self._rows[None]:
            if row.difficulty not in self._rows:
                self._rows[row.difficulty] = read_rows(rows, row.difficulty)
        self._seed = seed
        self._passes: dict[Difficulty, int] = {}
        self._waiting: dict[Difficulty, list[DataRow]] = {}

    @classmethod
    def sent_arguments(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Check the rows before a process starts. Raises BadArgument if a row is invalid."""
        rows = args[0] if args else kwargs.get("rows")
        if rows is not None:
            read_rows(rows)
        return args, kwargs

    @endpoint
    def sample(self, difficulty: Difficulty = None) -> Any:
        """Return the next row.

        Args:
            difficulty: The required difficulty of the row. None accepts every difficulty.

        Returns:
            (prompt, target), or only the prompt if the row has no target.

        Raises:
            BadArgument: No row has this difficulty.
        """
        if difficulty not in self._rows:
            difficulties = ", ".join(map(repr, self._rows))
            raise BadArgument(f"No row of the data has the difficulty {difficulty!r}. Expected one of {difficulties}.")
        waiting = self._waiting.get(difficulty)
        if not waiting:
            number = self._passes.get(difficulty, 0)
            self._passes[difficulty] = number + 1
            waiting = self._waiting[difficulty] = list(self._rows[difficulty])
            derived_rng("data_loader", self._seed, repr(difficulty), number).shuffle(waiting)
        row = waiting.pop()
        return row.prompt if row.alone else (row.prompt, row.target)


def _is_prompt(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list | tuple) and bool(value) and all(isinstance(each, dict) for each in value)
    )


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
    """Measure the success rate of a policy on rows. Rows with an undefined reward do not count, and a warning is logged.

    Args:
        policy: A service of `Policy`.
        difficulty: The difficulty of the rows. None uses all rows.
        rows: Held-out rows, in the format of `DataLoader`.
        reward: A service of `RewardActor`. None compares the reply with the target, without outer whitespace.
        success: The lowest reward that counts as a success.
        temperature: The temperature of the replies. 0 selects the most probable token. None selects the policy's
            default.

    Returns:
        The share of rows whose reply has a reward of at least `success`, from 0 to 1.

    Raises:
        BadArgument: `rows` is empty, or contains no row with this difficulty.
        ServiceError: No reply has a reward, or a service failed.
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
        raise ServiceError(
            f"None of {len(found)} replies has a reward. At least one reply must have a number as its reward."
        )
    if len(defined) < len(found):
        log.warning(
            "evaluation: %d of %d replies have no reward and do not count", len(found) - len(defined), len(found)
        )
    return sum(each >= success for each in defined) / len(defined)
