"""vLLM as the sampler, as far as it can be tested without vLLM: a stand-in answers as its server does."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from taskapp_kit.errors import BadArgument, TrainingError
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.train.job_settings import LoraSettings
from taskapp_kit.train.models.adapters import with_adapter
from taskapp_kit.train.sampler.vllm.place import VllmPlace, VllmSettings
from taskapp_kit.train.sampler.vllm.vllm_sampler import Adapter, VllmSampler, log_probs_of
from taskapp_kit.train.turns import Sampled
from tests.train.sampler.vllm_stand_in import StandIn, environment, log_of
from tests.train.tiny_models import CONTEXT, same_model, tiny_model
from tests.waiting import until_async

pytestmark = [pytest.mark.train, pytest.mark.server, pytest.mark.process, pytest.mark.anyio]

PROMPT = (3, 1, 4, 1, 5)
LORA = LoraSettings(rank=4, alpha=8.0)
ADAPTER = Adapter(LORA.rank, LORA.alpha, LORA.targets)


def place_in(folder: Path, **options: Any) -> VllmPlace:
    """An environment with the stand-in for vLLM."""
    place = VllmPlace.of(str(environment(folder / "env", **options)))
    assert place is not None
    return place


def description(model: Any) -> dict[str, bytes]:
    return {"config.json": model.config.to_json_string().encode()}


def sampler_of(model: Any, place: VllmPlace, **named: Any) -> VllmSampler:
    return VllmSampler(model, place, named.pop("settings", VllmSettings()), description=description(model), **named)


async def sample(sampler: VllmSampler, draw: str, **named: Any) -> Sampled:
    return await sampler.sample(
        PROMPT, draw=draw, **({"max_tokens": 8, "temperature": 1.0, "stop_ids": frozenset({5})} | named)
    )


async def check(sampler: VllmSampler, model: Any, version: int) -> None:
    """Answers are of this version, and their log-probabilities those of the model."""
    for temperature in (1.0, 0.5):
        answers = await asyncio.gather(*[sample(sampler, f"{place}", temperature=temperature) for place in range(4)])
        for answer in answers:
            assert answer.version == version == sampler.version
            assert (answer.finish_reason == "stop") == (answer.token_ids[-1] == 5)
            assert log_probs_of(model, PROMPT, answer.token_ids, temperature) == pytest.approx(
                answer.log_probs, abs=1e-4
            )


def change(model: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)


async def changed(sampler: VllmSampler, model: Any, version: int) -> None:
    change(model, version)
    await sampler.swap(model.state_dict(), version)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
async def test_a_child_samples_from_each_version_of_whole_weights(tmp_path: Path, family: str) -> None:
    model = tiny_model(family=family, tie_word_embeddings=True)
    place = place_in(tmp_path)
    async with sampler_of(model, place, settings=VllmSettings(max_model_len=40)) as sampler:
        assert (sampler.version, sampler.context_tokens) == (0, 40)
        await check(sampler, model, 0)
        for version in (1, 3):
            await changed(sampler, model, version)
            await check(sampler, model, version)
        with pytest.raises(TrainingError, match="Expected more than 3, the sampler.s version"):
            await sampler.swap(model.state_dict(), 3)
        with pytest.raises(BadArgument, match="at most 40 tokens in total"):
            await sample(sampler, "long", max_tokens=36)
        socket = sampler._folder / "socket"
        assert socket.parent.stat().st_mode & 0o077 == 0
        folder = sampler._folder
    assert not folder.exists()
    started, *changes = log_of(tmp_path / "env")
    assert (started["dtype"], started["mode"]) == ("float32", "processed_logprobs")
    assert started["flags"][-3:] == ["--tensor-parallel-size", "1", "--enforce-eager"]
    assert started["environ"]["HF_HUB_OFFLINE"] == "1"
    assert [list(each) for each in changes] == [["reloaded"], ["emptied"]] * 2
    assert "lm_head.weight" in changes[0]["reloaded"]
    with pytest.raises(ProcessLookupError):
        os.kill(started["pid"], 0)


async def test_an_adapter_gets_a_name_for_each_version_and_answers_under_way_keep_theirs(tmp_path: Path) -> None:
    model = with_adapter(tiny_model(), LORA)
    place = place_in(tmp_path)
    async with sampler_of(model, place, adapter=ADAPTER) as sampler:
        await check(sampler, model, 0)
        for version in (1, 2, 3):
            await changed(sampler, model, version)
            await check(sampler, model, version)
        assert [folder.name for folder in sampler._folder.glob("version-*")] == ["version-3"]
    started, *changes = log_of(tmp_path / "env")
    assert started["flags"][started["flags"].index("--max-lora-rank") + 1] == "8"
    assert [next(iter(each)) for each in changes] == ["loaded", "loaded", "unloaded", "loaded", "unloaded"]


@contextmanager
def upstream(folder: Path, model: Any, **named: Any) -> Iterator[tuple[StandIn, VllmPlace]]:
    """A server that is there, with this model."""
    model.save_pretrained(folder)
    stand_in = StandIn(folder, key="secret", **named)
    with BackgroundServer(stand_in.app()) as server:
        place = VllmPlace.of(f"{server.url}/v1", "secret")
        assert place is not None
        yield stand_in, place


@asynccontextmanager
async def adapted(folder: Path, **named: Any) -> AsyncIterator[tuple[StandIn, Any, VllmSampler]]:
    """A server with a base model, a model with an adapter on it, and its sampler at the server."""
    base = tiny_model()
    with upstream(folder / "model", base, **named) as (stand_in, place):
        model = with_adapter(same_model(base), LORA)
        async with sampler_of(model, place, adapter=ADAPTER) as sampler:
            yield stand_in, model, sampler


async def test_a_server_that_is_there_gets_adapters_and_loses_them_at_the_end(tmp_path: Path) -> None:
    async with adapted(tmp_path, name="served") as (stand_in, model, sampler):
        assert sampler.context_tokens == CONTEXT
        await check(sampler, model, 0)
        await changed(sampler, model, 1)
        before = same_model(model)
        stand_in.hold.clear()
        running = asyncio.create_task(sample(sampler, "under way"))
        await until_async(lambda: stand_in.running)
        await changed(sampler, model, 2)
        stand_in.hold.set()
        answer = await running
        assert answer.version == 1
        assert log_probs_of(before, PROMPT, answer.token_ids, 1.0) == pytest.approx(answer.log_probs, abs=1e-4)
        await check(sampler, model, 2)
        assert len(stand_in.samplers) == 3
        await changed(sampler, model, 3)
        assert len(stand_in.samplers) == 2
    assert list(stand_in.samplers) == ["served"]


async def test_a_server_that_was_restarted_and_lost_an_adapter_gets_the_next_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with adapted(tmp_path) as (stand_in, model, sampler):
        await changed(sampler, model, 1)
        del stand_in.samplers[sampler._model]
        with pytest.raises(TrainingError, match="404"):
            await sample(sampler, "lost")
        await changed(sampler, model, 2)
        await check(sampler, model, 2)
        assert [folder.name for folder in sampler._folder.glob("version-*")] == ["version-2"]
    assert "cannot be found" in caplog.text


async def test_a_server_that_hangs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async with asyncio.timeout(60), adapted(tmp_path) as (stand_in, model, sampler):
        await sampler.swap(model.state_dict(), 1)
        stand_in.unloads.clear()
    assert not sampler._folder.exists()


async def test_whole_weights_wait_for_answers_under_way(tmp_path: Path) -> None:
    base = tiny_model()
    with upstream(tmp_path / "model", base) as (stand_in, place):
        model = same_model(base)
        async with sampler_of(model, place) as sampler:
            stand_in.hold.clear()
            running = asyncio.create_task(sample(sampler, "under way"))
            gone = asyncio.create_task(sample(sampler, "given up"))
            await until_async(lambda: stand_in.running == 2)
            gone.cancel()
            change(model, 1)
            swap = asyncio.create_task(sampler.swap(model.state_dict(), 1))
            await until_async(lambda: not sampler._open.is_set())
            later = asyncio.create_task(sample(sampler, "later"))
            stand_in.hold.set()
            await swap
            assert ((await running).version, (await later).version) == (0, 1)
            await check(sampler, model, 1)


@pytest.mark.parametrize("named", [{"raw": True}, {}], ids=["raw log-probabilities", "another model"])
def test_a_server_that_samples_from_something_else_is_refused(tmp_path: Path, named: dict[str, Any]) -> None:
    with upstream(tmp_path / "model", tiny_model(spread=0.5), **named) as (_, place):
        model = tiny_model(spread=0.5) if named else tiny_model(seed=1, spread=0.5)
        with pytest.raises(TrainingError, match="differ from the model.s by") as refused:
            asyncio.run(sampler_of(model, place).__aenter__())
        assert "processed_logprobs" in refused.value.hint


def test_a_wrong_key_and_a_server_that_is_gone_are_said(tmp_path: Path) -> None:
    model = tiny_model()
    with upstream(tmp_path / "model", model) as (_, place):
        assert place.url is not None
        with pytest.raises(TrainingError, match="/v1/models returned 401.*Bearer") as refused:
            asyncio.run(sampler_of(model, VllmPlace(url=place.url, key="another-key")).__aenter__())
        assert "another" not in str(refused.value)  # the server repeats what was sent
    with pytest.raises(TrainingError, match="/v1/models failed: the server refuses connections"):
        asyncio.run(sampler_of(model, place).__aenter__())


def test_a_child_that_does_not_start_is_said_with_its_last_lines(tmp_path: Path) -> None:
    place = place_in(tmp_path, program="raise SystemExit('no such device')")
    with pytest.raises(TrainingError, match="has ended .*exited 1.*no such device"):
        asyncio.run(sampler_of(tiny_model(), place).__aenter__())


async def test_a_child_that_dies_is_said_at_the_next_request(tmp_path: Path) -> None:
    model = tiny_model()
    place = place_in(tmp_path)
    async with sampler_of(model, place) as sampler:
        os.kill(log_of(tmp_path / "env")[0]["pid"], signal.SIGKILL)
        assert sampler._child is not None
        process = sampler._child._process
        assert process is not None
        await until_async(process.ended.is_set)
        for request in (sample(sampler, "late"), sampler.swap(model.state_dict(), 1)):
            with pytest.raises(TrainingError, match=r"has ended \(exited 137\)|cannot be written"):
                await request


async def test_a_closed_sampler_refuses_and_ends_what_is_under_way(tmp_path: Path) -> None:
    model = tiny_model()
    with upstream(tmp_path / "model", model) as (stand_in, place):
        sampler = sampler_of(model, place)
        async with sampler:
            stand_in.hold.clear()
            running = asyncio.create_task(sample(sampler, "under way"))
            await until_async(lambda: stand_in.running)
        with pytest.raises(TrainingError, match="closed"):
            await running
        with pytest.raises(TrainingError, match="closed"):
            await sample(sampler, "late")
        stand_in.hold.set()
