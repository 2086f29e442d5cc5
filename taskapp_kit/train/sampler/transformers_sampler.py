"""A `Sampler` with a transformers model in this process, on the CPU or a GPU.

One thread owns the model. It collects requests into batches, generates tokens, and replaces the weights between
batches. All tokens of a reply therefore come from the same version. Callers may use any event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Self

import torch

from taskapp_kit.errors import TrainingError
from taskapp_kit.records.seeds import derived_rng
from taskapp_kit.train.sampler import BATCH_SIZE
from taskapp_kit.train.sampler.generation import (
    GenerationRequest,
    check_prompt,
    check_temperature,
    check_version,
    closed_error,
    generate,
)
from taskapp_kit.train.turns import Sampled

FLUSH_SECONDS = 0.005
"""Seconds that an incomplete batch waits for more requests."""


@dataclass(frozen=True, slots=True, eq=False)
class WeightSwap:
    """New weights that are loaded after the running batch."""

    weights: Mapping[str, torch.Tensor]
    version: int
    done: Future[None]


class TransformersSampler:
    """Samples from a model. No other code may use or change the model.

    Args:
        model: A causal language model from transformers.
        batch_size: The maximum number of rows in a batch.
        flush_seconds: How many seconds an incomplete batch waits for more requests.
        open_attempts: A function that returns the number of attempts that may send a request. An incomplete batch
            starts when this many requests are waiting. The sampler's thread calls the function.
        deterministic: Whether to sample one prompt at a time on one thread. On a CPU, equal weights, prompts and values
            of `draw` then produce equal tokens and log-probabilities. The number of threads is set for the whole
            process.
        version: The version of the initial weights.
    """

    def __init__(
        self,
        model: Any,
        *,
        batch_size: int = BATCH_SIZE,
        flush_seconds: float = FLUSH_SECONDS,
        open_attempts: Callable[[], int] | None = None,
        deterministic: bool = False,
        version: int = 0,
    ) -> None:
        self.version = version
        self.context_tokens: int = model.config.max_position_embeddings
        """The maximum number of tokens of a prompt together with its reply."""
        self._model = model.eval()
        self._vocabulary: int = model.get_input_embeddings().weight.shape[0]
        self._batch_size = 1 if deterministic else batch_size
        self._flush_seconds = flush_seconds
        self._open_attempts = open_attempts
        self._deterministic = deterministic
        self._changed = threading.Condition()
        self._waiting: deque[GenerationRequest] = deque()
        self._swaps: deque[WeightSwap] = deque()
        self.closed = False
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    async def sample(
        self, prompt_ids: Sequence[int], *, max_tokens: int, temperature: float, stop_ids: frozenset[int], draw: str
    ) -> Sampled:
        """Return one continuation of the prompt, including the stop token. Cancelling the call frees its slot in the batch.

        At temperature 0, the log-probabilities are computed at temperature 1. Raises BadArgument for invalid arguments,
        and TrainingError if the model fails or the sampler is closed.
        """
        request = GenerationRequest(
            prompt_ids=check_prompt(prompt_ids, max_tokens, self.context_tokens, self._vocabulary),
            max_tokens=max_tokens,
            temperature=check_temperature(temperature),
            stop_ids=stop_ids,
            uniforms=derived_rng("sampler", draw),
            called=perf_counter(),
        )
        with self._changed:
            self._refuse_when_closed()
            self._waiting.append(request)
            self._changed.notify()
        try:
            return await asyncio.wrap_future(request.result)
        except asyncio.CancelledError:
            with self._changed:
                if request in self._waiting:
                    self._waiting.remove(request)
            raise

    async def swap(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Copy these weights into the model after the running batch. Waiting requests are sampled with the new weights.

        Args:
            weights: A `state_dict` with the model's names and shapes, of any dtype and device. It must not change until
                this method returns.
            version: The version of these weights. It must be larger than the current version.

        Raises:
            TrainingError: The weights do not fit, or the sampler is closed. Nothing has changed.
        """
        done: Future[None] = Future()
        with self._changed:
            self._refuse_when_closed()
            self._swaps.append(WeightSwap(weights, version, done))
            self._changed.notify()
        await asyncio.wrap_future(done)

    def close(self) -> None:
        """End the thread after the running batch. Waiting requests raise TrainingError."""
        with self._changed:
            self.closed = True
            self._changed.notify()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_when_closed(self) -> None:
        if self.closed:
            raise closed_error()

    def _run(self) -> None:
        if self._deterministic:
            torch.set_num_threads(1)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.closed or self._swaps or self._waiting)
                if self.closed:
                    break
                swap = self._swaps.popleft() if self._swaps else None
                batch = [] if swap else self._next_batch()
            if swap:
                self._swap(swap)
            elif batch:
                self._generate(batch)
        for request in self._waiting:
            _fail(request.result, closed_error())
        for swap in self._swaps:
            _fail(swap.done, closed_error())

    def _next_batch(self) -> list[GenerationRequest]:
        """Wait for a full batch, requests of all open attempts or the timeout.

        Return [] if new weights must be loaded or the sampler is closed first.
        """
        self._changed.wait_for(
            lambda: self.closed or self._swaps or len(self._waiting) >= self._full(), timeout=self._flush_seconds
        )
        if self.closed or self._swaps:
            return []
        return [self._waiting.popleft() for _ in range(min(self._batch_size, len(self._waiting)))]

    def _full(self) -> int:
        return self._batch_size if self._open_attempts is None else min(self._batch_size, self._open_attempts())

    def _generate(self, batch: list[GenerationRequest]) -> None:
        try:
            generate(self._model, batch, self._deliver)
        except Exception as error:
            for request in batch:
                failure = TrainingError(f"The model failed while sampling {len(batch)} replies: {error}")
                failure.__cause__ = error
                _fail(request.result, failure)

    def _deliver(self, request: GenerationRequest) -> None:
        try:
            if not request.result.cancelled():
                request.result.set_result(request.sampled(self.version))
        except InvalidStateError:
            pass  # cancelled concurrently

    def _swap(self, swap: WeightSwap) -> None:
        if not swap.done.set_running_or_notify_cancel():
            return
        try:
            self._check_weights(swap)
            self._model.load_state_dict(swap.weights)
        except Exception as error:
            swap.done.set_exception(error)
        else:
            self.version = swap.version
            swap.done.set_result(None)

    def _check_weights(self, swap: WeightSwap) -> None:
        own, new = self._model.state_dict(), swap.weights
        wrong = sorted(
            name
            for name in own.keys() | new.keys()
            if name not in own or name not in new or own[name].shape != new[name].shape
        )
        if wrong:
            raise TrainingError(
                f"New weights do not fit the sampler's model: {len(wrong)} tensors differ in name or shape, such as "
                f"{wrong[0]!r}. Expected the state_dict of the same architecture."
            )
        check_version(swap.version, self.version)


def _fail(future: Future[Any], error: Exception) -> None:
    try:
        if not future.done():
            future.set_exception(error)
    except InvalidStateError:
        pass  # cancelled concurrently
