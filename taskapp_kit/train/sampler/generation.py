"""Generates tokens for a batch of prompts with a transformers causal language model.

Prompts are padded on the left, and keys and values are cached. A row is removed from the batch when it ends or its call
is cancelled. Each row has a separate random stream, so a row's tokens never depend on the other rows in the batch.
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
    """Return the prompt as a tuple. Raises BadArgument if it is invalid or too long.

    `context_tokens` limits a prompt together with its reply. `vocabulary` is the number of token ids.
    """
    if max_tokens < 1:
        raise BadArgument(f"`max_tokens` is {max_tokens}. Expected at least 1.")
    if not prompt_ids:
        raise BadArgument("The prompt is empty. Expected at least one token.")
    if len(prompt_ids) + max_tokens > context_tokens:
        raise BadArgument(
            f"A prompt of {len(prompt_ids)} tokens and a reply of {max_tokens} do not fit into the model's context. "
            f"Expected at most {context_tokens} tokens in total."
        )
    if min(prompt_ids) < 0 or max(prompt_ids) >= vocabulary:
        raise BadArgument(f"The prompt has an unknown token id. Expected ids from 0 to {vocabulary - 1}.")
    return tuple(prompt_ids)


def check_temperature(temperature: float) -> float:
    """Return the temperature. Raises BadArgument if it is negative or not finite."""
    if not 0 <= temperature < float("inf"):
        raise BadArgument(f"`temperature` is {temperature}. Expected a number of at least 0.")
    return temperature


def check_version(version: int, present: int) -> None:
    """Raise TrainingError if the version of new weights does not exceed the sampler's version."""
    if version <= present:
        raise TrainingError(
            f"New weights have the version {version}. Expected more than {present}, the sampler's version."
        )


def closed_error() -> TrainingError:
    """Return the error for a call of a closed sampler."""
    return TrainingError("The sampler is closed and generates no more tokens.")


PADDING_ID = 0
"""The id of padding tokens. Any id works, because the attention mask hides padding."""

SHRINK_BELOW = 0.5
"""Ended rows are removed when at most this share of rows is still running, because removing rows copies the cache."""


@dataclass(slots=True, eq=False)
class GenerationRequest:
    """One prompt and the tokens generated so far.

    Attributes:
        uniforms: The random numbers for drawing tokens.
        called: The value of `perf_counter` when the call was made.
        result: The future of the sampled reply. It is cancelled if the call is cancelled.
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
        """Whether the generation is finished or cancelled. Only valid after the first token was generated."""
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
    """Draw one token per row by inverting the cumulative distribution. Return the tokens and their log-probabilities.

    Args:
        logits: The logits of the next token, (rows, vocabulary).
        temperatures: The temperature of each row. At 0, the most probable token is chosen, and its log-probability is
            computed at temperature 1.
        uniforms: One random number in [0, 1) per row.

    Raises:
        TrainingError: The logits are not finite.
    """
    divisors = torch.tensor([temperature or 1.0 for temperature in temperatures], device=logits.device)
    log_probs = torch.log_softmax(logits.float() / divisors[:, None], dim=-1)
    cumulative = log_probs.double().exp().cumsum(dim=-1)
    numbers = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None]
    target = numbers * cumulative[:, -1:]  # less than the sum, because each number is less than 1
    chosen = torch.searchsorted(cumulative, target, right=True)
    chosen = chosen.clamp(max=logits.shape[-1] - 1)  # if the sum is NaN
    greedy = torch.tensor([temperature == 0 for temperature in temperatures], device=logits.device)[:, None]
    chosen = torch.where(greedy, log_probs.argmax(dim=-1, keepdim=True), chosen)
    tokens: list[int] = chosen[:, 0].tolist()
    chances: list[float] = log_probs.gather(1, chosen)[:, 0].tolist()
    if not all(math.isfinite(chance) for chance in chances):
        raise TrainingError(
            "The model returned a log-probability that is infinite or NaN. Expected finite logits.",
            hint="The weights have diverged. Return to a checkpoint and lower the learning rate.",
        )
    return tokens, chances


def generate(model: Any, requests: Sequence[GenerationRequest], ended: Callable[[GenerationRequest], None]) -> None:
    """Generate until every request has ended. Call `ended` for each request when it ends or is cancelled.

    `model` is a causal language model from transformers in eval mode, on the device to use.
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
