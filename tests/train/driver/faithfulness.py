"""Whether the rows of a job have the tokens that were sampled, whatever its clients do to the conversation.

Four kinds of clients play in equal shares: one sends answers back as they came, one strips them, one rewrites its history
before the last turn, and one gives up each call after a short time and sends it again, also through a pause of the sampler.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import httpx
import torch

from taskapp_kit.train.driver.driver_settings import DriverSettings
from taskapp_kit.train.gateway.attempt import AttemptSettings
from taskapp_kit.train.rendering.renderer import Renderer
from taskapp_kit.train.sampler.transformers_sampler import TransformersSampler
from taskapp_kit.train.turns import Sampled, TrainingRow
from tests.train.driver.peers import PLAN, CountingLearner, drive
from tests.train.driver.scripted_app import Answer, CallingApp, RolloutAsked
from tests.train.tiny_models import tiny_model
from tests.train.update.rows import largest_difference

Kind = Literal["plain", "strips", "rewrites", "repeats"]
KINDS: tuple[Kind, ...] = ("plain", "strips", "rewrites", "repeats")
PATIENCE_SECONDS = 1800.0
"""Of the clients that do not repeat, and of the iteration with a rollout: a large model on a busy machine is slow."""
LOG_PROB_LIMIT = 1e-3
"""Between the recorded log-probabilities and those of a forward pass over the row, in fp32."""


class PausingSampler:
    """A sampler that stops once, as during an update of the weights: from the call with this number, for some seconds."""

    def __init__(self, sampler: TransformersSampler, *, call: int, seconds: float) -> None:
        self._sampler, self._call, self._seconds = sampler, call, seconds
        self._calls = 0
        self._until = 0.0
        self.version = sampler.version

    async def sample(self, prompt_ids: Sequence[int], **options: Any) -> Sampled:
        self._calls += 1
        if self._calls == self._call:
            self._until = time.monotonic() + self._seconds
        while time.monotonic() < self._until:
            await asyncio.sleep(0.02)
        return await self._sampler.sample(prompt_ids, **options)


@dataclass
class Played:
    """What the clients saw. received: texts of answers, by the rollout's key."""

    received: dict[str, list[str]] = field(default_factory=dict)
    kinds: dict[str, Kind] = field(default_factory=dict)
    sent_again: int = 0


@dataclass
class Agent:
    """Plays the rollouts of a task app, each as one kind of client."""

    turns: int
    timeout_seconds: float
    played: Played = field(default_factory=Played)

    async def play(self, asked: RolloutAsked) -> Answer:
        kind = KINDS[asked.sample % len(KINDS)]
        received = self.played.received[asked.key] = []
        self.played.kinds[asked.key] = kind
        messages: list[dict[str, Any]] = [{"role": "user", "content": f"Room {asked.body['env']['seed']}. Go on."}]
        for turn in range(self.turns):
            if kind == "rewrites" and turn == self.turns - 1:
                messages[1] = {"role": "assistant", "content": "I went on."}
            message = await self._call(asked, kind, messages)
            received.append(message["content"])
            content = message["content"].strip() if kind == "strips" else message["content"]
            messages += [{**message, "content": content}, {"role": "user", "content": f"Step {turn + 1}. Go on."}]
        return asked.scored(float(asked.sample % 2))

    async def _call(self, asked: RolloutAsked, kind: Kind, messages: list[dict[str, Any]]) -> dict[str, Any]:
        url = f"{asked.body['policy']['config']['inference_url']}/chat/completions"
        for _ in range(2000):
            try:
                response = await asked.http.post(
                    url,
                    json={"model": "policy", "messages": messages},
                    timeout=self.timeout_seconds if kind == "repeats" else PATIENCE_SECONDS,
                )
            except httpx.TimeoutException:
                self.played.sent_again += 1
                continue
            response.raise_for_status()
            message: dict[str, Any] = response.json()["choices"][0]["message"]
            return message
        raise httpx.ReadTimeout("no answer")


@dataclass
class Report:
    """Counts of a run. rows_checked: recomputed by a forward pass. drifted: answers that, encoded again from their text,
    would have other ids. discarded: answers beyond those that were received, of clients that gave up with the bytes already
    in their hands: no server can see it. largest_difference: of a token's log-probability.
    """

    rollouts: int = 0
    answers: int = 0
    trained_turns: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    sent_again: int = 0
    rows: int = 0
    rows_by_kind: dict[str, int] = field(default_factory=dict)
    drifted: int = 0
    discarded: int = 0
    rows_checked: int = 0
    largest_difference: float = 0.0
    problems: list[str] = field(default_factory=list)


def measured(
    model: Any,
    renderer: Renderer,
    *,
    rollouts: int,
    turns: int = 4,
    max_tokens: int = 24,
    at_once: int = 64,
    pause_seconds: float = 5.0,
    timeout_seconds: float = 1.5,
    checked: int | None = None,
) -> Report:
    """Play the rollouts and compare. checked: rows that are recomputed; None for all."""
    agent = Agent(turns, timeout_seconds)
    groups = rollouts // (2 * len(KINDS))
    plan = replace(
        PLAN, iterations=1, per_epoch=1, groups=groups, samples=2 * len(KINDS), at_once=at_once, ops=["agent"] * turns
    )
    settings = DriverSettings(
        AttemptSettings(temperature=1.0, max_tokens=max_tokens, context_tokens=model.config.max_position_embeddings),
        attempts=1,
        straggler_seconds=PATIENCE_SECONDS,
    )
    gateways: list[Any] = []
    app = CallingApp(agent.play)
    with (
        app.serving() as url,
        TransformersSampler(
            model, open_attempts=lambda: gateways[0].open_attempts if gateways else 1
        ) as transformers_sampler,
    ):
        sampler: Any = PausingSampler(transformers_sampler, call=rollouts * turns // 2, seconds=pause_seconds)
        learner = CountingLearner(sampler)
        job = asyncio.run(
            drive(url, sampler, learner, plan=plan, settings=settings, renderer=renderer, with_gateway=gateways.append)
        )
    assert job.error is None, job.error
    names = ("exact", "continued", "forked", "refused", "repeated")
    report = Report(
        rollouts=len(agent.played.received),
        answers=sum(map(len, agent.played.received.values())),
        trained_turns=int(job.ledger.curve("turns")[0] * len(agent.played.received)),
        calls={name: int(sum(job.ledger.curve(f"calls_{name}"))) for name in names},
        sent_again=agent.played.sent_again,
    )
    _compare(report, learner.batches[0], agent.played, renderer, turns)
    _recompute(report, learner.batches[0][:checked], model)
    return report


def _compare(report: Report, rows: Sequence[TrainingRow], played: Played, renderer: Renderer, turns: int) -> None:
    """Compare the texts of the trained tokens with what the clients received."""
    keys = {
        ".".join(key.split(".")[3:6]): key for key in played.received
    }  # job.incarnation.train.ITERATION.PLACE.SAMPLE
    by_rollout: dict[str, list[TrainingRow]] = {}
    for row in rows:
        by_rollout.setdefault(row.rollout, []).append(row)
    report.rows = len(rows)
    kinds: Counter[str] = Counter()
    for name, mine in by_rollout.items():
        key = keys[name]
        kind = played.kinds[key]
        kinds[kind] += len(mine)
        spans = [span for row in mine for span in trained_spans(row)]
        texts = [renderer.parse(span)["content"] for span in spans]
        received = played.received[key]
        discarded = len(texts) - len(received) if kind == "repeats" else 0
        report.discarded += discarded
        if Counter(received) - Counter(texts) or len(texts) != len(received) + discarded:
            report.problems.append(f"{key} ({kind}): trained on {len(texts)} answers, not those that were received")
        if len(mine) != (2 if kind == "rewrites" else 1 + discarded):
            report.problems.append(f"{key} ({kind}): {len(mine)} rows")
        report.drifted += sum(
            tuple(renderer.tokenizer.encode(text)) != tuple(each for each in span if each not in renderer.stop_ids)
            for span, text in zip(spans, texts, strict=True)
        )
    report.rows_by_kind = dict(kinds)
    if len(by_rollout) != len(played.received):
        report.problems.append(f"{len(by_rollout)} of {len(played.received)} rollouts have rows")


def trained_spans(row: TrainingRow) -> list[tuple[int, ...]]:
    """Return the tokens of each turn that a row trains on."""
    spans: list[list[int]] = []
    for at, (token, on) in enumerate(zip(row.ids, row.mask, strict=True)):
        if on and not row.mask[at - 1]:
            spans.append([])
        if on:
            spans[-1].append(token)
    return [tuple(span) for span in spans]


def _recompute(report: Report, rows: Sequence[TrainingRow], model: Any) -> None:
    """Compare the recorded log-probabilities with those of a forward pass over each row."""
    report.largest_difference = max(largest_difference(model, row) for row in rows)
    report.rows_checked = len(rows)
    if report.largest_difference > LOG_PROB_LIMIT:
        report.problems.append(f"log-probabilities differ by up to {report.largest_difference:.2g}")


def random_model() -> Any:
    """A small model with random weights for the tokens of tests/train/byte_tokenizer.py, which often samples blanks."""
    model = tiny_model(spread=0.05, vocab_size=259, max_position_embeddings=1024)
    bias = torch.zeros(259)
    bias[[ord(" "), ord("\n")]] = 3.5
    model.lm_head.bias = torch.nn.Parameter(bias)
    return model
