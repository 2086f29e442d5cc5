"""A `PolicySampler` that uses a vLLM server. The server receives token ids and returns token ids with log-probabilities.

A thread with a separate event loop sends the requests, so callers may use any event loop. New weights are written to a
directory. Each version of an adapter has a new name. vLLM caches prompts separately for each name, so running
generations keep their version. If all weights are trained, they are loaded in place after running generations have
ended, and the cache is emptied.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any, Literal, NoReturn, Self, TypeVar

import orjson
import torch
from safetensors.torch import save_file

from taskapp_kit.client.blocking_portal import DaemonLoop
from taskapp_kit.errors import TrainingError
from taskapp_kit.system.private_files import make_private_folder, write_private
from taskapp_kit.train.sampler.generation import check_prompt, check_temperature, check_version, closed_error
from taskapp_kit.train.sampler.vllm.place import VllmPlace, VllmSettings
from taskapp_kit.train.sampler.vllm.vllm_child import VllmChild
from taskapp_kit.train.sampler.vllm.wire import VllmServer, completion_body, read_completion
from taskapp_kit.train.turns import Sampled

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
HEAD, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"
FORMAT = {"format": "pt"}
_BASE_LAYER, _FACTOR, _STORED = ".base_layer.", ".lora_", "base_model.model."


@dataclass(frozen=True, slots=True)
class Adapter:
    """The trained LoRA adapter. `targets` are the names of linear layers such as `q_proj`."""

    rank: int
    alpha: float
    targets: Sequence[str]


def write_model(
    folder: Path, weights: Mapping[str, torch.Tensor], description: Mapping[str, bytes], dtype: torch.dtype
) -> None:
    """Write a model to a directory, from which vLLM can start and reload weights in place.

    `weights` is a `state_dict`. Adapters in it are omitted. `description` contains the model's other files by name,
    including config.json. Raises OSError if a file cannot be written.
    """
    # The head is written as a separate tensor: if it is tied to the embeddings, vLLM 0.32 reloads only the embeddings, and
    # reports success.
    tensors = {
        name.replace(_BASE_LAYER, "."): _stored(tensor, dtype)
        for name, tensor in weights.items()
        if _FACTOR not in name
    }
    if HEAD not in tensors:
        tensors[HEAD] = tensors[EMBEDDINGS]
    tensors[HEAD] = tensors[HEAD].clone()
    make_private_folder(folder)
    config = orjson.loads(description[CONFIG]) | {"tie_word_embeddings": False}
    for name, content in {**description, CONFIG: orjson.dumps(config)}.items():
        write_private(folder / name, content)
    save_file(tensors, folder / WEIGHTS, metadata=FORMAT)


def write_adapter(folder: Path, weights: Mapping[str, torch.Tensor], adapter: Adapter, dtype: torch.dtype) -> None:
    """Write an adapter in peft's format. `weights` is the `state_dict` of the model with the adapter.

    Raises OSError if a file cannot be written.
    """
    tensors = {
        _STORED + name.replace(".default.", "."): _stored(tensor, dtype)
        for name, tensor in weights.items()
        if _FACTOR in name
    }
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "target_modules": list(adapter.targets),
        "bias": "none",
    }
    make_private_folder(folder)
    write_private(folder / "adapter_config.json", orjson.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors", metadata=FORMAT)


def _stored(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.detach().to("cpu", dtype).contiguous()


log = logging.getLogger("taskapp_kit.train")

Result = TypeVar("Result")

EMPTY_SECONDS = 60.0
"""Seconds that vLLM may take to detect disconnected callers. Until then, vLLM's cache cannot be emptied."""
LOOK_SECONDS = 0.05
CHILD_SECONDS = 1.0
"""Seconds between checks whether a child has ended."""
UNLOAD_SECONDS = 5.0
"""Seconds that a running server may take to remove the adapters at the end."""
PROBE_TOKENS, PROBE_TEMPERATURE = 16, 2.0
"""The temperature of the test. If it were 1, log-probabilities that ignore the temperature would not be detected."""
MOST_DIFFERENCE = 0.2
"""The accepted mean difference of log-probabilities. With bf16 it is 0.05, and with another model more than 1."""


class VllmSampler:
    """Samples with vLLM from a copy of a model. Use it with `async with`.

    Args:
        model: A causal language model from transformers. It must not change before `start` returns.
        place: The virtual environment for a child process, or a running server.
        settings: The settings of a child process.
        description: The model's files by name, except the weights.
        adapter: The trained adapter. None means that all weights are trained, which requires a child process.
        precision: The precision of a child process.
        version: The version of the initial weights.
    """

    def __init__(
        self,
        model: Any,
        place: VllmPlace,
        settings: VllmSettings,
        *,
        description: Mapping[str, bytes],
        adapter: Adapter | None = None,
        precision: Literal["fp32", "bf16"] = "fp32",
        version: int = 0,
    ) -> None:
        self.version = version
        self.context_tokens: int = model.config.max_position_embeddings
        """The maximum number of tokens of a prompt together with its reply. `start` lowers it to vLLM's limit."""
        self.start_seconds = 0.0
        """The duration of `start` in seconds."""
        self.closed = False
        self._policy, self._settings, self._adapter = model, settings, adapter
        self._description = description
        self._vocabulary: int = model.get_input_embeddings().weight.shape[0]
        self._dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self._child = None if place.environment is None else VllmChild(place.environment)
        if self._child is not None:
            self._folder, self._server = self._child.folder, self._child.server()
        else:
            assert place.url is not None, "a place has an environment or a url"
            self._folder = Path(tempfile.mkdtemp(prefix="taskapp-vllm-"))
            self._server = VllmServer(place.url, place.key)
        self._model = ""
        self._prefix = f"policy-{secrets.token_hex(4)}"
        self._adapters: dict[str, Path] = {}
        self._running: Counter[str] = Counter()
        self._thread: DaemonLoop | None = None

    async def start(self) -> None:
        """Start vLLM or connect to the server, and compare some of its log-probabilities with the model's.

        Raises TrainingError if vLLM does not start, or the server serves another model.
        """
        began = perf_counter()
        self._thread = DaemonLoop("vllm-sampler")
        await self._on_loop(self._start())
        self.start_seconds = perf_counter() - began

    async def sample(
        self, prompt_ids: Sequence[int], *, max_tokens: int, temperature: float, stop_ids: frozenset[int], draw: str
    ) -> Sampled:
        """Return one continuation of the prompt, including the stop token. Cancelling the call aborts the request.

        At temperature 0, the log-probabilities are computed at temperature 1. `draw` is not used, because vLLM has its
        own random generator. Raises BadArgument for invalid arguments, and TrainingError if vLLM fails or the sampler
        is closed.
        """
        prompt = check_prompt(prompt_ids, max_tokens, self.context_tokens, self._vocabulary)
        check_temperature(temperature)
        return await self._on_loop(self._sample(prompt, max_tokens, temperature, stop_ids))

    async def swap(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Replace the weights. Calls of `sample` after this method returns use the new weights.

        Args:
            weights: The model's `state_dict`. It must not change until this method returns.
            version: The version of these weights. It must be larger than the current version.

        Raises:
            TrainingError: The weights could not be replaced.
        """
        check_version(version, self.version)
        folder = self._folder / f"version-{version}"
        began = perf_counter()
        try:
            if self._adapter is None:
                await asyncio.to_thread(write_model, folder, weights, self._description, self._dtype)
            else:
                await asyncio.to_thread(write_adapter, folder, weights, self._adapter, self._dtype)
        except OSError as error:
            raise TrainingError(f"New weights for vLLM cannot be written to {folder}: {error.strerror}.") from error
        await self._on_loop(self._swap_whole(folder, version) if self._adapter is None else self._swap(folder, version))
        log.info("vllm samples with the weights of version %d, after %.2f s", version, perf_counter() - began)

    async def fail_with_child(self) -> NoReturn:
        """Wait until the child process ends unexpectedly, then raise TrainingError. Without a child, wait until cancelled."""
        while True:
            if self._child is not None and not self.closed:
                self._child.check()
            await asyncio.sleep(CHILD_SECONDS)

    async def aclose(self) -> None:
        """End the child process, or remove the adapters from the server. Running calls of `sample` raise TrainingError."""
        if self.closed:
            return
        self.closed = True
        if self._thread is not None:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._end(), self._thread.loop))
            await asyncio.to_thread(self._thread.stop)
        if self._child is not None:
            await asyncio.to_thread(self._child.close)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await asyncio.shield(self.aclose())
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self.aclose())

    async def _on_loop(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self.closed:
            work.close()
            raise closed_error()
        assert self._thread is not None, "it was started"
        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._thread.loop))
        except asyncio.CancelledError:
            if self.closed:
                raise closed_error() from None
            raise

    # on the thread's event loop

    async def _start(self) -> None:
        self._open, self._idle = asyncio.Event(), asyncio.Event()
        self._open.set()
        if self._child is not None:
            folder = self._folder / "base"
            weights = self._policy.state_dict()
            await asyncio.to_thread(write_model, folder, weights, self._description, self._dtype)
            dtype = "bfloat16" if self._dtype is torch.bfloat16 else "float32"
            self._child.start(folder, dtype, self._settings, self._adapter.rank if self._adapter else None)
            await self._child.wait(self._server)
        self._model, most = await self._server.base_model()
        self.context_tokens = min(self.context_tokens, most)
        # Without this check, a server with another model or unscaled log-probabilities would only show as a job that does not
        # learn.
        await self._probe()

    async def _probe(self) -> None:
        """Raise TrainingError if the server's log-probabilities differ from the model's."""
        prompt = tuple(place % self._vocabulary for place in range(1, 9))
        sampled = await self._sample(prompt, PROBE_TOKENS, PROBE_TEMPERATURE, frozenset())
        own = await asyncio.to_thread(log_probs_of, self._policy, prompt, sampled.token_ids, PROBE_TEMPERATURE)
        difference = fmean(abs(one - other) for one, other in zip(own, sampled.log_probs, strict=True))
        if difference > MOST_DIFFERENCE:
            raise TrainingError(
                f"vLLM's log-probabilities differ from the model's by {difference:.2g} on average for {PROBE_TOKENS} tokens. "
                f"Expected at most {MOST_DIFFERENCE:g}.",
                hint="Start vLLM with the job's model and --logprobs-mode processed_logprobs.",
            )

    async def _sample(
        self, prompt: tuple[int, ...], max_tokens: int, temperature: float, stop_ids: frozenset[int]
    ) -> Sampled:
        began = perf_counter()
        while not self._open.is_set():  # the event may be cleared again before a waiting task continues
            await self._open.wait()
        model, version = self._model, self.version
        body = completion_body(model, prompt, max_tokens=max_tokens, temperature=temperature, stop_ids=stop_ids)
        self._running[model] += 1
        try:
            answer = await self._asked(self._server.completion(body))
        finally:
            self._running[model] -= 1
            self._idle.set()
        token_ids, log_probs = read_completion(answer, stop_ids)
        stopped = token_ids[-1] in stop_ids
        return Sampled(token_ids, log_probs, "stop" if stopped else "length", version, perf_counter() - began)

    async def _asked(self, request: Coroutine[Any, Any, Result]) -> Result:
        """Return the server's response. Raises TrainingError, which states the reason if a child has ended."""
        try:
            return await request
        except TrainingError:
            if self._child is not None:
                self._child.check()
            raise

    async def _swap(self, folder: Path, version: int) -> None:
        name = f"{self._prefix}-{version}"
        await self._asked(self._server.load_adapter(name, folder))
        self._adapters[name] = folder
        self._model, self.version = name, version
        for old in [each for each in self._adapters if each != name and not self._running[each]]:
            try:
                await self._unload(old)
            except TrainingError as error:  # harmless: the adapter is no longer used
                log.warning("vllm did not unload an adapter: %s", error.message)

    async def _unload(self, name: str) -> None:
        folder = self._adapters.pop(name)
        del self._running[name]
        try:
            await self._server.unload_adapter(name)
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # vLLM may read the directory until the adapter is unloaded

    async def _swap_whole(self, folder: Path, version: int) -> None:
        self._open.clear()
        try:
            while self._running.total():
                self._idle.clear()
                await self._idle.wait()
            await self._asked(self._server.reload(folder))
            await self._empty_cache()
            self.version = version
        finally:
            self._open.set()
        shutil.rmtree(folder, ignore_errors=True)

    async def _empty_cache(self) -> None:
        try:
            async with asyncio.timeout(EMPTY_SECONDS):
                while not await self._server.empty_cache():  # noqa: ASYNC110 (vLLM does not report changes of its state)
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise TrainingError(
                f"vLLM did not empty its prompt cache within {EMPTY_SECONDS:g} s, so replies would mix versions of the weights."
            ) from None

    async def _end(self) -> None:
        me = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not me]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._child is None:
            with suppress(TrainingError, TimeoutError):  # the server has ended or hangs
                async with asyncio.timeout(UNLOAD_SECONDS):
                    for name in list(self._adapters):
                        await self._unload(name)
        await self._server.aclose()


def log_probs_of(model: Any, prompt: Sequence[int], token_ids: Sequence[int], temperature: float) -> list[float]:
    """Return the model's log-probabilities of a reply's tokens. `temperature` must be greater than 0."""
    ids = torch.tensor([[*prompt, *token_ids]], device=model.device)
    with torch.inference_mode():
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float() / temperature
        chosen = torch.log_softmax(logits, dim=-1).gather(1, ids[0, len(prompt) :, None])
    found: list[float] = chosen[:, 0].tolist()
    return found
