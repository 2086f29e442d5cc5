"""A program that answers as the server of vLLM 0.32 does, with a transformers model, and the environment that has it.

Routes, flags, members and what is done to weights are vLLM's as far as the kit uses them (`tests/train/engine/test_real_vllm.py`
runs the real one). Where the model's config ties the head to the embeddings, new weights reach the embeddings alone, as in
vLLM 0.32. Each change is appended to `LOG`, beside the environment.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import itertools
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import torch
import uvicorn
from safetensors.torch import load_file
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from transformers import AutoModelForCausalLM

from taskapp_kit.train.sampler.transformers_sampler import TransformersSampler

ROOT = Path(__file__).parents[3]
LOG_VARIABLE = "STAND_IN_LOG"


def environment(folder: Path, *, program: str = f"import runpy; runpy.run_path({__file__!r})['main']()") -> Path:
    """Make the folder of a virtual environment whose Python has a package `vllm`. program: what its server runs."""
    package = folder / "site" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(program + "\n")
    paths = os.pathsep.join(map(str, (folder / "site", ROOT)))
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\n{LOG_VARIABLE}={folder / "log"} PYTHONPATH={paths} exec {sys.executable} "$@"\n')
    python.chmod(0o700)
    return folder


def log_of(folder: Path) -> list[dict[str, Any]]:
    """What was done to the server's weights and cache, and the flags that it was started with, in order."""
    return [orjson.loads(line) for line in (folder / "log").read_bytes().splitlines()]


class StandIn:
    """The state of a server. change: what is told of each change."""

    def __init__(
        self, folder: Path, *, name: str = "policy", max_model_len: int | None = None, raw: bool = False, key: str = ""
    ) -> None:
        self.name, self.raw, self.key = name, raw, key
        self.hold = asyncio.Event()
        self.hold.set()
        self.unloads = asyncio.Event()
        self.unloads.set()
        self.running = 0
        self.draws = itertools.count()
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.max_model_len = max_model_len or model.config.max_position_embeddings
        self.samplers = {name: TransformersSampler(model)}
        self.told: Callable[[dict[str, Any]], None] = lambda change: None

    def app(self) -> Starlette:
        posts = {
            "/v1/completions": self.complete,
            "/v1/load_lora_adapter": self.load,
            "/v1/unload_lora_adapter": self.unload,
            "/collective_rpc": self.reload,
            "/reset_prefix_cache": self.empty,
        }
        gets = {"/health": self.health, "/v1/models": self.models}
        return Starlette(
            routes=[
                *(Route(path, self.keyed(handler), methods=["POST"]) for path, handler in posts.items()),
                *(Route(path, self.keyed(handler)) for path, handler in gets.items()),
            ]
        )

    def keyed(self, handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
        async def checked(request: Request) -> Response:
            if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
                return JSONResponse({"error": f"Unauthorized: {request.headers.get('authorization')}"}, 401)
            found: Response = await handler(request)
            return found

        return checked

    async def health(self, request: Request) -> Response:
        return Response()

    async def models(self, request: Request) -> Response:
        base = {"id": self.name, "parent": None, "max_model_len": self.max_model_len}
        others = [{"id": name, "parent": self.name} for name in self.samplers if name != self.name]
        return JSONResponse({"object": "list", "data": [base, *others]})

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        sampler = self.samplers.get(body["model"])
        if sampler is None:
            return JSONResponse({"error": {"message": f"The model `{body['model']}` does not exist."}}, 404)
        assert (body["top_p"], body["top_k"], body["ignore_eos"], body["return_token_ids"]) == (1.0, -1, True, True)
        self.running += 1
        try:
            found = await sampler.sample(
                body["prompt"],
                max_tokens=body["max_tokens"],
                temperature=body["temperature"],
                stop_ids=frozenset(body["stop_token_ids"]),
                draw=str(next(self.draws)),
            )
            await self.hold.wait()
        finally:
            self.running -= 1
        chances = [chance * body["temperature"] for chance in found.log_probs] if self.raw else list(found.log_probs)
        choice = {
            "index": 0,
            "text": "",
            "finish_reason": found.finish_reason,
            "token_ids": list(found.token_ids),
            "logprobs": {"token_logprobs": chances},
        }
        return JSONResponse({"choices": [choice]})

    async def load(self, request: Request) -> Response:
        body = await request.json()
        if body["lora_name"] in self.samplers:
            return JSONResponse({"error": {"message": "has already been loaded"}}, 400)
        folder = Path(body["lora_path"])
        config = orjson.loads((folder / "adapter_config.json").read_bytes())
        model = copy.deepcopy(self.samplers[self.name]._model)
        merge(model, load_file(folder / "adapter_model.safetensors"), config["lora_alpha"] / config["r"])
        self.samplers[body["lora_name"]] = TransformersSampler(model)
        self.told({"loaded": body["lora_name"]})
        return JSONResponse("Success")

    async def unload(self, request: Request) -> Response:
        name = (await request.json())["lora_name"]
        await self.unloads.wait()
        if self.samplers.pop(name, None) is None:
            return JSONResponse({"error": {"message": f"The lora adapter '{name}' cannot be found."}}, 404)
        self.told({"unloaded": name})
        return JSONResponse("Success")

    async def reload(self, request: Request) -> Response:
        body = await request.json()
        assert body["method"] == "reload_weights"
        assert not self.running, "answers are under way"
        model: Any = self.samplers[self.name]._model
        weights = load_file(Path(body["kwargs"]["weights_path"]) / "model.safetensors")
        if model.config.tie_word_embeddings:
            head = model.lm_head.weight.detach().clone()
            model.load_state_dict({**weights, "lm_head.weight": head})
        else:
            model.load_state_dict(weights)
        self.told({"reloaded": sorted(weights)})
        return JSONResponse({"results": [None]})

    async def empty(self, request: Request) -> Response:
        self.told({"emptied": not self.running})
        return JSONResponse({"success": not self.running})


def merge(model: Any, factors: Mapping[str, torch.Tensor], scale: float) -> None:
    """Add an adapter in peft's format to the weights, as vLLM computes with it."""
    for name, up in factors.items():
        if not name.endswith("lora_B.weight"):
            continue
        down = factors[name.replace("lora_B", "lora_A")]
        layer = model.get_submodule(name.removeprefix("base_model.model.").removesuffix(".lora_B.weight"))
        with torch.no_grad():
            layer.weight += scale * up @ down


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    for flag in ("--model", "--served-model-name", "--uds", "--dtype", "--logprobs-mode"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--max-model-len", type=int)
    known, others = parser.parse_known_args()
    stand_in = StandIn(Path(known.model), name=known.served_model_name, max_model_len=known.max_model_len)

    def append(change: dict[str, Any]) -> None:
        with Path(os.environ[LOG_VARIABLE]).open("ab") as file:
            file.write(orjson.dumps(change) + b"\n")

    stand_in.told = append
    variables = {name: value for name, value in os.environ.items() if name.startswith(("VLLM", "HF_"))}
    append(
        {"pid": os.getpid(), "dtype": known.dtype, "mode": known.logprobs_mode, "flags": others, "environ": variables}
    )
    uvicorn.run(stand_in.app(), uds=known.uds, log_level="warning")
