"""Generates tokens for a batch of prompts with a transformers causal language model.

Prompts are padded on the left, and earlier keys and values are cached. A row leaves the batch when it ends or its call is
cancelled. Each row has a separate random stream, so the other rows of a batch never change its tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from random import Random
from time import perf_counter
from typing import Any

import torch

from taskapp_kit.errors import BadArgument, TrainingError
from taskapp_kit.train.turns import Sampled


def check_prompt(prompt_ids: Sequence[int], max_tokens: int, context_tokens: int, vocabulary: int) -> tuple[int, ...]:
    """Return the prompt. Raises BadArgument.

    context_tokens: the limit of prompt and answer together. vocabulary: the number of token ids.
    """
    if max_tokens < 1:
        raise BadArgument(f"max_tokens is {max_tokens}; expected at least 1.")
    if not prompt_ids:
        raise BadArgument("The prompt has no token; expected at least one.")
    if len(prompt_ids) + max_tokens > context_tokens:
        raise BadArgument(
            f"A prompt of {len(prompt_ids)} tokens and an answer of {max_tokens} do not fit into the model's context; "
            f"expected at most {context_tokens} together."
        )
    if min(prompt_ids) < 0 or max(prompt_ids) >= vocabulary:
        raise BadArgument(f"The prompt has a token id outside the model's vocabulary, 0 to {vocabulary - 1}.")
    return tuple(prompt_ids)


def check_temperature(temperature: float) -> float:
    """Return the temperature. Raises BadArgument."""
    if not 0 <= temperature < float("inf"):
        raise BadArgument(f"temperature is {temperature}; expected a number of at least 0.")
    return temperature


def check_version(version: int, present: int) -> None:
    """Raise TrainingError unless new weights have a version above the sampler's."""
    if version <= present:
        raise TrainingError(
            f"New weights have the version {version}; expected more than the sampler's version, {present}."
        )


def closed_error() -> TrainingError:
    """Return the error of a call to a closed sampler."""
    return TrainingError("The sampler is closed and generates no more tokens.")


PADDING_ID = 0
"""Any id of the vocabulary: the attention mask hides it."""

SHRINK_BELOW = 0.5
"""Ended rows are dropped when at most this share of the rows is still generating, because dropping copies the cache."""


@dataclass(slots=True, eq=False)
class GenerationRequest:
    """One prompt and the tokens that were generated for it so far.

    Attributes:
        uniforms: The random stream of its draws.
        called: `perf_counter` at the request.
        result: The result, cancelled if the call was.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    stop_ids: frozenset[int]
    uniforms: Random
    called: float
    result: Future[Sampled] = field(default_factory=Future)
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether the generation, which has at least one token, is finished or cancelled."""
        return len(self.token_ids) >= self.max_tokens or self.token_ids[-1] in self.stop_ids or self.result.cancelled()

    def sampled(self, version: int) -> Sampled:
        """Return the finished generation."""
        return Sampled(
            token_ids=tuple(self.token_ids),
            log_probs=tuple(self.log_probs),
            finish_reason="stop" if self.token_ids[-1] in self.stop_ids else "length",
            version=version,
            seconds=perf_counter() - self.called,
        )


def draw_tokens(
    logits: torch.Tensor, temperatures: Sequence[float], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Return one token per row and its log-probability, by inversion of the cumulative distribution.

    logits: (rows, vocabulary). temperatures: 0 takes the most probable token, with its log-probability at temperature 1.
    uniforms: one number in [0, 1) per row. Raises TrainingError if the logits are not finite.
    """
    divisors = torch.tensor([temperature or 1.0 for temperature in temperatures], device=logits.device)
    log_probs = torch.log_softmax(logits.float() / divisors[:, None], dim=-1)
    cumulative = log_probs.double().exp().cumsum(dim=-1)
    numbers = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None]
    target = numbers * cumulative[:, -1:]  # below the sum, as each number is below 1
    chosen = torch.searchsorted(cumulative, target, right=True)
    chosen = chosen.clamp(max=logits.shape[-1] - 1)  # if the sum is NaN
    greedy = torch.tensor([temperature == 0 for temperature in temperatures], device=logits.device)[:, None]
    chosen = torch.where(greedy, log_probs.argmax(dim=-1, keepdim=True), chosen)
    tokens: list[int] = chosen[:, 0].tolist()
    chances: list[float] = log_probs.gather(1, chosen)[:, 0].tolist()
    if not all(math.isfinite(chance) for chance in chances):
        raise TrainingError(
            "The model returned an infinite log-probability or NaN; expected finite logits.",
            hint="Its weights have diverged: return to a checkpoint and lower the learning rate.",
        )
    return tokens, chances


def generate(model: Any, requests: Sequence[GenerationRequest], ended: Callable[[GenerationRequest], None]) -> None:
    """Generate until every request has ended, and call `ended` for each one when it ends or is cancelled.

    model: a causal language model of transformers in eval mode, on the device to use.
    """
    with torch.inference_mode():
        device = model.device
        longest = max(len(request.prompt_ids) for request in requests)
        paddings = [longest - len(request.prompt_ids) for request in requests]
        ids = torch.tensor(
            [[PADDING_ID] * padding + list(row.prompt_ids) for padding, row in zip(paddings, requests, strict=True)],
            device=device,
        )
        mask = torch.tensor([[0] * padding + [1] * (longest - padding) for padding in paddings], device=device)
        positions = (mask.cumsum(dim=-1) - 1).clamp(min=0)
        rows = list(requests)
        going = set(rows)
        cache: dict[str, Any] = {}
        while going:
            output = model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                logits_to_keep=1,
                **cache,
            )
            name = "cache" if "cache" in output else "past_key_values"  # before transformers 5.24
            cache = {name: output[name]}
            tokens, chances = draw_tokens(
                output.logits[:, -1],
                [row.temperature for row in rows],
                [row.uniforms.random() for row in rows],
            )
            for row, token, chance in zip(rows, tokens, chances, strict=True):
                if row not in going:
                    continue
                row.token_ids.append(token)
                row.log_probs.append(chance)
                if row.ended:
                    going.discard(row)
                    ended(row)
            if not going:
                return
            ids = torch.tensor(tokens, device=device)[:, None]
            positions = positions[:, -1:] + 1
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
            if len(going) <= SHRINK_BELOW * len(rows):
                left = [index for index, row in enumerate(rows) if row in going]
                rows = [rows[index] for index in left]
                indices = torch.tensor(left, device=device)
                cache[name].batch_select_indices(indices)
                ids, positions, mask = ids[indices], positions[indices], mask[indices]
