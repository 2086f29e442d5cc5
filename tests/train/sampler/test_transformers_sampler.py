"""The sampler: batches, named draws, swaps of weights, cancelled and refused calls."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
import torch

from taskapp_kit.errors import BadArgument, TrainingError
from taskapp_kit.train.sampler.transformers_sampler import TransformersSampler
from taskapp_kit.train.turns import Sampled
from tests.train.tiny_models import CONTEXT, VOCABULARY, same_model, tiny_model
from tests.train.update.rows import log_probs_of
from tests.waiting import until_async

pytestmark = [pytest.mark.train, pytest.mark.anyio]

PROMPTS = [tuple(Random(seed).choices(range(VOCABULARY), k=length)) for seed, length in enumerate((1, 3, 12, 7, 20))]


@contextmanager
def batches(model: Any) -> Iterator[list[int]]:
    rows: list[int] = []
    handle = model.register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    yield rows
    handle.remove()


async def sample(sampler: TransformersSampler, prompt: tuple[int, ...], draw: str, **named: Any) -> Sampled:
    chosen = {"max_tokens": 6, "temperature": 1.0, "stop_ids": frozenset({5, 6, 7})} | named
    return await sampler.sample(prompt, draw=draw, **chosen)


def assert_model_agrees(model: Any, prompt: tuple[int, ...], sampled: Sampled, temperature: float = 1.0) -> None:
    """The log-probabilities of the tokens are those of one forward pass over the whole."""
    log_probs = log_probs_of(model, (*prompt, *sampled.token_ids), temperature)
    assert log_probs[len(prompt) :] == pytest.approx(sampled.log_probs, abs=1e-4)


@contextmanager
def held(model: Any) -> Iterator[Gate]:
    """A gate before each forward pass of the model."""
    gate = Gate()
    handle = model.register_forward_pre_hook(lambda *_: gate.wait())
    yield gate
    handle.remove()


class Gate:
    """Stops a thread until it is opened. reached: that one has come."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def wait(self) -> None:
        self.reached.set()
        self.opened.wait()


@pytest.mark.parametrize("family", ["qwen2", "llama"])
async def test_log_probabilities_are_those_of_a_pass_over_the_whole_whatever_the_batch(family: str) -> None:
    model = tiny_model(family=family)
    temperatures = (1.0, 0.5, 1.7, 1.0, 1.0)
    with TransformersSampler(same_model(model), open_attempts=lambda: len(PROMPTS)) as sampler:
        answers = await asyncio.gather(
            *[
                sample(sampler, prompt, f"job/{place}", temperature=temperature, max_tokens=9 + place)
                for place, (prompt, temperature) in enumerate(zip(PROMPTS, temperatures, strict=True))
            ]
        )
    for prompt, temperature, answer in zip(PROMPTS, temperatures, answers, strict=True):
        assert_model_agrees(model, prompt, answer, temperature)


async def test_an_answer_ends_at_a_stop_token_which_it_holds_or_at_max_tokens() -> None:
    with TransformersSampler(tiny_model()) as sampler:
        answers = await asyncio.gather(*[sample(sampler, PROMPTS[1], str(draw), max_tokens=8) for draw in range(40)])
    assert {answer.finish_reason for answer in answers} == {"stop", "length"}
    for answer in answers:
        stops = [place for place, token in enumerate(answer.token_ids) if token in {5, 6, 7}]
        assert stops == ([len(answer.token_ids) - 1] if answer.finish_reason == "stop" else [])
        assert answer.finish_reason == "stop" or len(answer.token_ids) == 8
        assert len(answer.log_probs) == len(answer.token_ids)
        assert answer.seconds > 0


def test_a_draw_names_its_tokens_whatever_else_is_drawn() -> None:
    """Alone, among others, in another order, and after draws from torch's own generator."""

    async def together(names: list[str], **options: Any) -> dict[str, tuple[int, ...]]:
        with TransformersSampler(tiny_model(), **options) as sampler:
            answers = await asyncio.gather(*[sample(sampler, PROMPTS[len(name)], name) for name in names])
        return {name: answer.token_ids for name, answer in zip(names, answers, strict=True)}

    names = ["a", "b", "bb", "ccc", "ddd"]
    one = asyncio.run(together(names, open_attempts=lambda: 5))
    torch.manual_seed(99)
    other = asyncio.run(together(names[::-1], batch_size=2))
    alone = asyncio.run(together(["bb"], deterministic=True))
    assert one == other
    assert alone["bb"] == one["bb"]
    assert one["a"] != one["b"]


def test_deterministic_gives_equal_log_probabilities_to_the_last_bit() -> None:
    async def main(order: list[int]) -> dict[int, Sampled]:
        model = tiny_model()
        with batches(model) as rows, TransformersSampler(model, deterministic=True) as sampler:
            answers = await asyncio.gather(*[sample(sampler, PROMPTS[place], f"job/{place}") for place in order])
        assert set(rows) == {1}
        return dict(zip(order, answers, strict=True))

    one, other = asyncio.run(main([0, 1, 2, 3, 4])), asyncio.run(main([3, 1, 4, 0, 2]))
    assert {place: (each.token_ids, each.log_probs) for place, each in one.items()} == {
        place: (each.token_ids, each.log_probs) for place, each in other.items()
    }


def test_a_batch_starts_when_it_is_full_or_when_all_open_attempts_wait() -> None:
    async def main(**options: Any) -> list[int]:
        model = tiny_model()
        with batches(model) as rows, TransformersSampler(model, **options) as sampler:
            await asyncio.gather(*[sample(sampler, PROMPTS[1], str(draw), max_tokens=1) for draw in range(6)])
        return rows

    assert asyncio.run(main(batch_size=8, flush_seconds=600.0, open_attempts=lambda: 6)) == [6]
    assert asyncio.run(main(batch_size=3, flush_seconds=600.0)) == [3, 3]


async def test_an_incomplete_batch_starts_after_a_while() -> None:
    with TransformersSampler(tiny_model(), open_attempts=lambda: 100) as sampler:
        answer = await asyncio.wait_for(sample(sampler, PROMPTS[0], "a"), 60)
    assert answer.token_ids


async def test_rows_that_ended_leave_the_batch_and_are_answered_at_once() -> None:
    ended: list[int] = []

    async def one(sampler: TransformersSampler, tokens: int) -> None:
        await sample(sampler, PROMPTS[2], str(tokens), max_tokens=tokens, stop_ids=frozenset())
        ended.append(tokens)

    model = tiny_model()
    with batches(model) as rows, TransformersSampler(model, open_attempts=lambda: 4) as sampler:
        await asyncio.gather(*[one(sampler, tokens) for tokens in (2, 2, 2, 40)])
    assert rows == [4, 4, *[1] * 38]
    assert ended[-1] == 40


def test_no_name_that_transformers_will_remove_is_used() -> None:
    """Releases from 5.24 warn of `past_key_values`, and 5.40 will not have it."""

    async def main() -> Sampled:
        with TransformersSampler(tiny_model()) as sampler:
            return await sample(sampler, PROMPTS[2], "a", stop_ids=frozenset())

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        asyncio.run(main())
    assert [str(each.message) for each in warned if issubclass(each.category, FutureWarning)] == []


async def test_weights_are_swapped_between_batches_and_every_answer_has_one_version() -> None:
    old, new = tiny_model(seed=0), tiny_model(seed=1)
    model = same_model(old)
    with held(model) as gate, TransformersSampler(model, open_attempts=lambda: 2, version=7) as sampler:
        first = [asyncio.create_task(sample(sampler, PROMPTS[3], f"old/{draw}")) for draw in range(2)]
        await asyncio.to_thread(gate.reached.wait)
        swap = asyncio.create_task(sampler.swap(new.state_dict(), 8))
        second = [asyncio.create_task(sample(sampler, PROMPTS[3], f"new/{draw}")) for draw in range(2)]
        await asyncio.sleep(0)
        assert sampler.version == 7
        gate.opened.set()
        await swap
        first, second, version = await asyncio.gather(*first), await asyncio.gather(*second), sampler.version
    assert ({each.version for each in first}, {each.version for each in second}, version) == ({7}, {8}, 8)
    for model, answers in ((old, first), (new, second)):
        for answer in answers:
            assert_model_agrees(model, PROMPTS[3], answer)


async def test_weights_that_do_not_fit_are_refused_and_change_nothing() -> None:
    model = tiny_model()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    with TransformersSampler(model, version=3) as sampler:
        fitting = tiny_model(seed=1).state_dict()
        with pytest.raises(TrainingError, match="differ in name or shape"):
            await sampler.swap(tiny_model(seed=1, hidden_size=16).state_dict(), 4)
        with pytest.raises(TrainingError, match="differ in name or shape"):
            await sampler.swap({name: each for name, each in fitting.items() if "norm" not in name}, 4)
        with pytest.raises(TrainingError, match="version 3"):
            await sampler.swap(fitting, 3)
        assert (await sample(sampler, PROMPTS[0], "a")).version == 3
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


async def test_a_caller_that_gives_up_frees_its_slot() -> None:
    """Waiting, it is never generated for; generating, its batch ends without it."""
    model = tiny_model()
    with (
        held(model) as gate,
        batches(model) as rows,
        TransformersSampler(model, open_attempts=lambda: 2, batch_size=2) as sampler,
    ):
        running = [
            asyncio.create_task(sample(sampler, PROMPTS[0], str(tokens), max_tokens=tokens, stop_ids=frozenset()))
            for tokens in (2, 50)
        ]
        await asyncio.to_thread(gate.reached.wait)
        waiting = [asyncio.create_task(sample(sampler, PROMPTS[0], "x", max_tokens=1)) for _ in range(3)]
        await asyncio.sleep(0)
        running[1].cancel()
        waiting[0].cancel()
        await asyncio.wait([running[1], waiting[0]])
        gate.opened.set()
        await asyncio.gather(running[0], *waiting[1:])
    assert rows == [2, 1, 2]


async def test_a_closed_sampler_refuses_and_leaves_nobody_waiting() -> None:
    model = tiny_model()
    with held(model) as gate:
        sampler = TransformersSampler(model, batch_size=1)
        running = asyncio.create_task(sample(sampler, PROMPTS[0], "a"))
        await asyncio.to_thread(gate.reached.wait)
        waiting = asyncio.create_task(sample(sampler, PROMPTS[0], "b"))
        swap = asyncio.create_task(sampler.swap(model.state_dict(), 1))
        await asyncio.sleep(0)
        closing = asyncio.create_task(asyncio.to_thread(sampler.close))
        await until_async(lambda: sampler.closed)
        gate.opened.set()
        await closing
        assert (await running).token_ids
    for refused in (waiting, swap, sample(sampler, PROMPTS[0], "c"), sampler.swap({}, 2)):
        with pytest.raises(TrainingError, match="closed"):
            await refused


async def test_a_model_that_fails_fails_its_batch_and_not_the_next_one() -> None:
    model = tiny_model()
    broken = {name: torch.full_like(each, torch.nan) for name, each in model.state_dict().items()}
    whole = {name: each.clone() for name, each in model.state_dict().items()}
    with TransformersSampler(model, open_attempts=lambda: 2) as sampler:
        await sampler.swap(broken, 1)
        answers = await asyncio.gather(*[sample(sampler, PROMPTS[0], name) for name in "ab"], return_exceptions=True)
        assert [type(answer) for answer in answers] == [TrainingError, TrainingError]
        await sampler.swap(whole, 2)
        assert (await sample(sampler, PROMPTS[0], "a")).version == 2


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        ((), {}),
        ((1,) * CONTEXT, {"max_tokens": 1}),
        ((1, VOCABULARY), {}),
        ((1, -1), {}),
        ((1,), {"max_tokens": 0}),
        ((1,), {"temperature": -1.0}),
        ((1,), {"temperature": float("nan")}),
        ((1,), {"temperature": float("inf")}),
    ],
)
async def test_what_cannot_be_sampled_is_refused(prompt: tuple[int, ...], named: dict[str, Any]) -> None:
    with TransformersSampler(tiny_model()) as sampler:
        with pytest.raises(BadArgument):
            await sample(sampler, prompt, "a", **named)
        assert len((await sample(sampler, (1,) * (CONTEXT - 1), "a", max_tokens=1)).token_ids) == 1
