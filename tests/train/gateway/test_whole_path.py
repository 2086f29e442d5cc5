"""From HTTP to the rows of an update with a real model: every trained token has the log-probability that the model gives it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

torch = pytest.importorskip("torch", reason="needs the train extra: make test-train")
pytest.importorskip("transformers", reason="needs the train extra: make test-train")

from taskapp_kit.train.gateway.attempt import AttemptRecord, AttemptSettings  # noqa: E402
from taskapp_kit.train.gateway.server import Gateway  # noqa: E402
from taskapp_kit.train.rendering.chatml import ChatMl  # noqa: E402
from taskapp_kit.train.rows import RowOptions, TrainingEpisode, training_batch  # noqa: E402
from taskapp_kit.train.sampler.transformers_sampler import TransformersSampler  # noqa: E402
from taskapp_kit.train.turns import TrainingRow  # noqa: E402
from tests.train.byte_tokenizer import ByteTokenizer  # noqa: E402
from tests.train.tiny_models import tiny_model  # noqa: E402
from tests.train.update.rows import log_probs_of  # noqa: E402

pytestmark = [pytest.mark.train, pytest.mark.server]

TEMPERATURE = 0.8
SETTINGS = AttemptSettings(temperature=TEMPERATURE, max_tokens=12, context_tokens=1024)
RENDERER = ChatMl(ByteTokenizer())
ATTEMPTS, TURNS = 6, 3


def largest_difference(row: TrainingRow, log_probs: Sequence[float]) -> float:
    pairs = zip(row.log_probs, log_probs, row.mask, strict=True)
    return max(abs(recorded - computed) for recorded, computed, trained in pairs if trained)


@pytest.mark.parametrize("deterministic", [False, True])
def test_what_is_trained_on_is_what_was_sampled(deterministic: bool) -> None:
    model = tiny_model(vocab_size=259, max_position_embeddings=1024)

    async def talk(gateway: Gateway, http: httpx.AsyncClient, number: int) -> AttemptRecord:
        """Three turns; every second client strips, every third asks twice at the second turn."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": f"Number {number}."}]
        async with gateway.attempt(f"cid-{number}", draw=f"job/{number}/0", settings=SETTINGS) as attempt:
            for turn in range(TURNS):
                for _ in range(2 if turn == 1 and number % 3 == 0 else 1):
                    response = await http.post(f"{attempt.url}/chat/completions", json={"messages": messages})
                    assert response.status_code == 200, response.text
                answer = response.json()["choices"][0]["message"]
                if number % 2:
                    answer["content"] = answer["content"].strip()
                messages += [answer, {"role": "user", "content": "And then?"}]
        return attempt.record()

    async def scenario() -> list[AttemptRecord]:
        with (
            TransformersSampler(model, deterministic=deterministic) as sampler,
            Gateway(sampler, RENDERER, max_open_attempts=4) as gateway,
        ):
            async with httpx.AsyncClient(timeout=60) as http:
                return await asyncio.gather(*(talk(gateway, http, number) for number in range(ATTEMPTS)))

    threads = torch.get_num_threads()
    records = asyncio.run(scenario())
    torch.set_num_threads(threads)
    episodes = [
        TrainingEpisode(record.correlation_id, "group", record.turns, reward=float(number))
        for number, record in enumerate(records)
    ]
    batch = training_batch(episodes, RowOptions())
    assert (batch.detached, batch.excluded, batch.forks) == (0, {}, 2)
    assert batch.turns == ATTEMPTS * TURNS + 2
    for row in batch.rows:
        again = log_probs_of(model, row.ids, TEMPERATURE)
        assert largest_difference(row, again) < 1e-4
        shifted = log_probs_of(model, (row.ids[0], *row.ids[:-1]), TEMPERATURE)
        assert largest_difference(row, shifted) > 1e-2, "the control: ids that are shifted by one token"
    if deterministic:
        repeated = asyncio.run(scenario())
        torch.set_num_threads(threads)
        assert [_timeless(record) for record in repeated] == [_timeless(record) for record in records]


def _timeless(record: AttemptRecord) -> list[Any]:
    return [dataclasses.replace(turn, seconds=0.0) for turn in record.turns]
