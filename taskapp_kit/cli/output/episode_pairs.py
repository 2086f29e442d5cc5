"""Print episodes with the same seed from before and after training, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from taskapp_kit.cli.output.rollout_output import action_words
from taskapp_kit.cli.output.terminal import clean, number
from taskapp_kit.records.formatting import counted, cut
from taskapp_kit.rollout.details import RolloutDetails, TurnDetails, words

if TYPE_CHECKING:
    from rich.console import Console

MOST_TURNS = 6
MOST_CHARACTERS = 300
"""The maximum length of one text, in characters."""
COLUMN_GAP = 2


@dataclass(frozen=True, slots=True)
class EpisodePair:
    """Two episodes with the same seed.

    An episode is None if it failed or was not stored. A reward is None if it is undefined.
    """

    seed: int
    before: RolloutDetails | None
    after: RolloutDetails | None
    rewards: tuple[float | None, float | None]


def print_pairs(pairs: Sequence[EpisodePair], out: Console) -> None:
    """Print the seed, the rewards and the first observation of each pair, and the turns of both episodes in two columns."""
    for pair in pairs:
        before, after = map(number, pair.rewards)
        out.print(Text(f"\nseed {pair.seed}: reward {before} before, {after} after", style="bold"))
        details = pair.before or pair.after
        if details is not None:
            out.print(Text(_text(words(details.initial)), style="dim"))
        columns = Table(box=None, pad_edge=False, padding=(0, COLUMN_GAP, 0, 0), expand=True, header_style="bold")
        for heading in ("before", "after"):
            columns.add_column(heading, ratio=1, overflow="fold")
        columns.add_row(_course(pair.before), _course(pair.after))
        out.print(columns)


def _course(details: RolloutDetails | None) -> Text:
    """Return the first turns of an episode, and the stop reason if a limit or a failure ended it."""
    if details is None:
        return Text("(failed or not stored)", style="dim")
    shown = Text()
    for turn in details.turns[:MOST_TURNS]:
        shown.append(f"> {_answer(turn)}\n", style="bold")
        for step in turn.steps:
            if observed := _text(words(step.observation)):
                shown.append(f"{observed}\n", style="yellow" if step.refused is not None else "")
    left = len(details.turns) - MOST_TURNS
    if left > 0:
        shown.append(f"… {counted(left, 'more turn')}\n", style="dim")
    if details.failure is not None or details.stored.stop_reason not in ("", "environment"):
        why = details.stored.stop_reason if details.failure is None else details.failure.code
        shown.append(clean(f"{details.stored.status}: {why}"), style="dim")
    return shown


def _answer(turn: TurnDetails) -> str:
    """Return the model's text, or its tool calls if it wrote no text."""
    calls = " ".join(action_words(call.tool, call.args) for call in turn.calls)
    return _text(turn.words) or _text(calls) or "(nothing)"


def _text(text: str) -> str:
    return clean(cut(text.strip(), MOST_CHARACTERS))
