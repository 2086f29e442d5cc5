"""Crafter as it is served: answers and refusals over HTTP."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image as Picture

from bench.crafter_server import request
from environments.crafter.app import app
from taskapp_kit.asgi import build
from taskapp_kit.config import Settings
from taskapp_kit.serve.uvicorn_server import BackgroundServer

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[3]
SEED = 1_000_000
KEY = "a key of this test"


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with (
        BackgroundServer(build(app, Settings(environment_api_key=KEY))) as server,
        httpx.Client(base_url=server.url, headers={"X-API-Key": KEY}, timeout=60) as client,
    ):
        yield client


def test_a_rollout_over_http_carries_the_picture_and_the_calls(client: httpx.Client) -> None:
    config = {"image": True, "image_size": 64, "length": 2}
    answer = client.post("/rollout", json=request(SEED, "scripted", config)).json()
    (trajectory,) = answer["trajectories"]
    step = trajectory["steps"][-1]
    words, picture = step["obs"]["content"]
    assert words["text"].startswith("step 2 of 2, ")
    header, encoded = picture["image_url"]["url"].split(",")
    assert header == "data:image/png;base64"
    assert Picture.open(io.BytesIO(base64.b64decode(encoded))).size == (64, 64)
    assert step["truncated"] is True
    assert step["tool_calls"][0]["tool"] == "interact"
    assert set(step["info"]) - {"meta", "initial_observation"} == {"actions", "rewards", "unlocked", "game_step"}
    assert answer["metrics"]["mean_return"] == answer["reward"]
    assert answer["metrics"]["details"]["game_steps"] == 2


@pytest.mark.parametrize(
    ("config", "field", "told"),
    [
        ({"image_size": 10}, "image_size", "18"),
        ({"image_size": 1025}, "image_size", "1024"),
        ({"length": 0}, "length", "1"),
        ({"length": 10_001}, "length", "10000"),
        ({"image": "perhaps"}, "image", "boolean"),
        ({"area": 9}, "area", "no such argument"),
    ],
)
def test_a_wrong_config_is_a_422_that_names_the_field(
    client: httpx.Client, config: dict[str, Any], field: str, told: str
) -> None:
    answer = client.post("/rollout", json=request(SEED, "noop", config))
    assert answer.status_code == 422
    error = answer.json()["detail"]["error"]
    assert error["code"] == "bad_config"
    assert error["fields"][0]["loc"] == ["body", "env", "config", field]
    assert told in error["fields"][0]["message"]
    assert "length, image, image_size" in error["message"]
