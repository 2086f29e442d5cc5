"""Rendered, sampled, recorded and made into rows: the log-probabilities in a row are those of its ids."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

torch = pytest.importorskip("torch", reason="needs the train extra (make test-train)")
pytest.importorskip("transformers", reason="needs the train extra (make test-train)")

from taskapp_kit.train.rendering.chatml import ChatMl  # noqa: E402
from taskapp_kit.train.rows import RowOptions, TrainingEpisode, training_batch  # noqa: E402
from taskapp_kit.train.sampler.transformers_sampler import TransformersSampler  # noqa: E402
from taskapp_kit.train.turns import RecordedTurn, TrainingRow  # noqa: E402
from tests.train.byte_tokenizer import CHATML, ByteTokenizer  # noqa: E402
from tests.train.tiny_models import same_model, tiny_model  # noqa: E402

pytestmark = pytest.mark.train

RENDERER = ChatMl(ByteTokenizer(CHATML), "Be brief.")
MODEL = tiny_model(vocab_size=256 + len(CHATML), max_position_embeddings=512)
TEMPERATURE = 0.7


async def played(sampler: TransformersSampler, name: str) -> list[RecordedTurn]:
    """Two turns after each other, a second sample of the second, a turn that was lost, and a history that was rewritten."""
    turns: list[RecordedTurn] = []

    async def turn(prompt_ids: tuple[int, ...], parent: int | None, delivered: bool = True) -> tuple[int, ...]:
        sampled = await sampler.sample(
            prompt_ids, max_tokens=12, temperature=TEMPERATURE, stop_ids=RENDERER.stop_ids, draw=f"{name}/{len(turns)}"
        )
        turns.append(
            RecordedTurn(
                prompt_ids=prompt_ids,
                token_ids=sampled.token_ids,
                log_probs=sampled.log_probs,
                version=sampled.version,
                finish_reason=sampled.finish_reason,
                seconds=sampled.seconds,
                delivered=delivered,
                parent=parent,
            )
        )
        return prompt_ids + sampled.token_ids

    first = await turn(RENDERER.prompt([{"role": "user", "content": f"Look, {name}."}]), None)
    after = RENDERER.extend(first, [{"role": "user", "content": "And now?"}])
    await turn(after, 0)
    second = await turn(after, 0)
    await turn(RENDERER.extend(second, [{"role": "tool", "content": "a tree"}]), 2, delivered=False)
    await turn(RENDERER.prompt([{"role": "user", "content": "In short: a tree."}]), None)
    return turns


def recomputed(row: TrainingRow) -> list[float]:
    """The log-probabilities of a row's ids, 0.0 for the first, by one forward pass."""
    with torch.no_grad():
        log_probs = torch.log_softmax(MODEL(torch.tensor([row.ids])).logits[0] / TEMPERATURE, dim=-1)
    return [0.0, *(float(log_probs[place, token]) for place, token in enumerate(row.ids[1:]))]


def largest_difference(row: TrainingRow) -> float:
    """Between a row's log-probabilities and the recomputed ones, where it is trained on."""
    return max(abs(ours - row.log_probs[place]) for place, ours in enumerate(recomputed(row)) if row.mask[place])


def test_the_log_probabilities_of_rows_are_those_of_their_ids() -> None:
    async def main() -> list[TrainingEpisode]:
        with TransformersSampler(same_model(MODEL)) as sampler:
            return [
                TrainingEpisode(f"{sample}", "g", tuple(await played(sampler, f"{sample}")), float(sample))
                for sample in range(2)
            ]

    batch = training_batch(asyncio.run(main()), RowOptions())
    assert (len(batch.rows), batch.forks, batch.turns, batch.excluded) == (6, 4, 8, {"not_delivered": 2})
    for row in batch.rows:
        assert largest_difference(row) < 1e-4
        later = dataclasses.replace(row, ids=(row.ids[0], *row.ids[:-1]))
        assert largest_difference(later) > 1e-2, "the control: ids that are shifted by one token"
