"""Requests to a vLLM server and its responses, with the routes and fields of vLLM 0.32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from taskapp_kit.errors import TrainingError
from taskapp_kit.net.http import NoAnswer, Transport
from taskapp_kit.net.redact import without_key
from taskapp_kit.records.formatting import cut

SAMPLE_SECONDS = 3600.0
"""Time limit in seconds of one reply. The time limit of its rollout is shorter."""
CONTROL_SECONDS = 600.0
"""Time limit in seconds for loading weights."""
WORDS_OF_AN_ERROR = 300
BASE_MODEL = "policy"
"""The name of the initial model in a child process."""
UNIX_URL = "http://vllm"
"""The URL for a Unix socket. The host name has no meaning."""


class VllmServer:
    """A client of one server for one event loop. `url` does not include `/v1`, and `key` is the bearer token."""

    def __init__(self, url: str, key: str | None = None, *, unix_socket: Path | None = None) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._url, self._key = url, key
        self._transport = Transport(headers, unix_socket=unix_socket)

    async def answers(self) -> bool:
        """Return whether the server responds."""
        try:
            return (await self._transport.send("GET", f"{self._url}/health", seconds=10.0)).status == 200
        except NoAnswer:
            return False

    async def base_model(self) -> tuple[str, int]:
        """Return the base model's name, and the maximum number of tokens of a prompt together with its reply.

        Raises TrainingError if the request fails or no base model is listed.
        """
        listed = await self._exchange("GET", "/v1/models", None, CONTROL_SECONDS)
        models = listed.get("data")
        for model in models if isinstance(models, list) else ():
            if not isinstance(model, dict) or model.get("parent") is not None:
                continue
            name, most = model.get("id"), model.get("max_model_len")
            if isinstance(name, str) and type(most) is int and most > 0:
                return name, most
        raise TrainingError("vLLM's /v1/models lists no base model with `max_model_len`. Expected the served model.")

    async def completion(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the response of /v1/completions. Raises TrainingError if the request fails."""
        return await self._exchange("POST", "/v1/completions", body, SAMPLE_SECONDS)

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Load an adapter under a name that was never used before. Raises TrainingError if this fails."""
        try:
            await self._exchange(
                "POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)}, CONTROL_SECONDS
            )
        except TrainingError as error:
            raise TrainingError(
                f"{error.message} The adapter {name} was not loaded.",
                hint="Start the server on this machine with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora and a "
                "--max-lora-rank of at least the adapter's rank.",
            ) from error

    async def unload_adapter(self, name: str) -> None:
        """Remove an adapter. Raises TrainingError if this fails."""
        await self._exchange("POST", "/v1/unload_lora_adapter", {"lora_name": name}, CONTROL_SECONDS)

    async def reload(self, folder: Path) -> None:
        """Load all weights in place. No generation may be running. Raises TrainingError if this fails."""
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        await self._exchange("POST", "/collective_rpc", body, CONTROL_SECONDS)

    async def empty_cache(self) -> bool:
        """Empty the prompt cache. Return False if generations are running. Raises TrainingError if the request fails."""
        answer = await self._exchange("POST", "/reset_prefix_cache", None, CONTROL_SECONDS)
        return answer.get("success") is not False

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    async def _exchange(self, verb: str, route: str, body: dict[str, Any] | None, seconds: float) -> dict[str, Any]:
        sent = None if body is None else orjson.dumps(body)
        try:
            response = await self._transport.send(verb, self._url + route, body=sent, seconds=seconds)
        except NoAnswer as error:
            raise TrainingError(f"The request to vLLM's {route} failed: the server {error.why}.") from error
        if response.status != 200:
            text = without_key(response.body.decode(errors="replace").strip(), self._key)
            text = cut(text, WORDS_OF_AN_ERROR)
            raise TrainingError(f"vLLM's {route} returned {response.status}: {text}")
        return response.json_object() or {}


def completion_body(
    model: str, prompt_ids: Sequence[int], *, max_tokens: int, temperature: float, stop_ids: frozenset[int]
) -> dict[str, Any]:
    """Return the request body that samples from the whole distribution. It overrides all defaults of model and server."""
    # The body has no seed. With a seed, vLLM 0.32's engine crashes on a CPU if it reads a prompt in two parts.
    return {
        "model": model,
        "prompt": list(prompt_ids),
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": sorted(stop_ids),
        "ignore_eos": True,  # the model's end token may not be in stop_ids
        "logprobs": 0,
        "return_token_ids": True,
        "skip_special_tokens": False,
        "add_special_tokens": False,
        "stream": False,
    }


def read_completion(answer: dict[str, Any], stop_ids: frozenset[int]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the sampled token ids, including the stop token, and their log-probabilities.

    `stop_ids` are the stop ids in the request. Raises TrainingError if the response has a different format, such as the
    format of an older vLLM.
    """
    try:
        choice = answer["choices"][0]
        ids, log_probs = tuple(choice["token_ids"]), tuple(map(float, choice["logprobs"]["token_logprobs"]))
        reason = choice["finish_reason"]
        if not 0 < len(ids) == len(log_probs):
            raise ValueError(f"{len(ids)} token ids and {len(log_probs)} log-probabilities")
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise TrainingError(
            f"vLLM's response has no sampled token ids with log-probabilities ({type(error).__name__}: {error}). Expected "
            "choices[0].token_ids and choices[0].logprobs.token_logprobs.",
            hint="Use vLLM 0.10.2 or newer, which supports return_token_ids.",
        ) from None
    if reason not in ("stop", "length") or (reason == "stop") != (ids[-1] in stop_ids):
        raise TrainingError(
            f"vLLM ended a reply with finish_reason {reason!r} and the token {ids[-1]}. Expected a stop token if and only if "
            "the reason is 'stop'."
        )
    return ids, log_probs
