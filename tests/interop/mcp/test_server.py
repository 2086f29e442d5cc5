"""One MCP connection in one process, driven by the SDK's client: what is shown, what an episode is worth, how it fails."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit import TaskApp
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.declare.episode_selection import find_environment
from taskapp_kit.errors import RolloutFailed
from taskapp_kit.records.content import Image
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.admission import Caller
from taskapp_kit.rollout.service import Service
from taskapp_kit.store.open import open_store
from tests.rollouts import a_request, a_service, app_from

mcp = pytest.importorskip("mcp", reason="the extra mcp is not installed")
from taskapp_kit.interop.mcp.connection import EpisodeChoice, McpConnection  # noqa: E402
from taskapp_kit.interop.mcp.server import DONE, OVER, mcp_server  # noqa: E402

pytestmark = pytest.mark.anyio

WALK = """
app = TaskApp("walks", version="1.0.0", reward=Blend(env=1.0, outcome=2.0))

@app.environment("walk", splits={"train": range(10)}, max_steps=20, max_refusals=3)
class Walk:
    '''Walk to 3.'''

    def __init__(self, breaks: str = "", slow: float = 0.0) -> None:
        self.breaks, self.slow = breaks, slow

    def reset(self, seed: int) -> str:
        self.at = 0
        if self.breaks == "reset":
            raise RuntimeError("the secret word is xyzzy")
        return f"at 0, seed {seed}"

    @action(noop={"by": 0})
    def go(self, by: int) -> Step:
        '''Walk.'''
        import time
        time.sleep(self.slow)
        if by < 0:
            raise InvalidAction("not backwards")
        if self.breaks == "step":
            raise RuntimeError("the secret word is xyzzy")
        self.at += by
        return Step(f"at {self.at}", 0.25 * by, terminated=self.at >= 3)

    @action
    def task(self) -> str:
        '''An action with the name of one of ours.'''
        return "the environment's own"

    @action
    def reset_all(self) -> str:
        '''Another.'''
        return "no"

@app.rubric
def there(trajectory: Trajectory, config: dict[str, Any]) -> float | None:
    if config.get("breaks") == "rubric":
        raise RuntimeError("the secret word is xyzzy")
    return float(trajectory.status == "terminated")
"""
REWARDS = ("reward", "score", "return", "digest", "rollout_id")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


Connected = tuple[Any, McpConnection, list[Rollout | RolloutFailed]]


@asynccontextmanager
async def playing(
    service: Service, *, control: bool = False, environment: str | None = None, **choice: Any
) -> AsyncIterator[Connected]:
    """The SDK's client, connected in process; the connection; how its episodes ended."""
    ended: list[Rollout | RolloutFailed] = []
    spec = find_environment(service.spec, environment)
    connection = McpConnection(service.sessions, spec, EpisodeChoice(**choice), control=control, ended=ended.append)
    async with mcp.Client(mcp_server(connection, service.spec.name)) as client:
        yield client, connection, ended
    await connection.close()
    assert len(service.sessions) == 0


@asynccontextmanager
async def connected(app: TaskApp, **given: Any) -> AsyncIterator[Connected]:
    """The same with a separate service."""
    service = a_service(app)
    async with playing(service, **given) as found:
        yield found
    await service.close()


def texts(result: Any) -> list[str]:
    return [block.text for block in result.content if block.type == "text"]


async def test_a_policy_sees_neither_reset_nor_scorecard_nor_a_reward(tmp_path: Path) -> None:
    async with connected(app_from(tmp_path, WALK), seed=4) as (client, _, ended):
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == ["go", "task", "reset_all", "taskapp_task"]
        assert tools[0].input_schema["type"] == "object"
        assert tools[0].input_schema["required"] == ["by"]
        seen = [await client.call_tool("taskapp_task", {})]
        assert "at 0, seed 4" in texts(seen[0])
        resource = (await client.list_resources()).resources[0]
        seen.append(await client.read_resource(resource.uri))
        assert "at 0, seed 4" in seen[-1].contents[0].text
        seen.append(await client.call_tool("task", {}))
        assert texts(seen[-1]) == ["the environment's own"], "an action keeps its name"
        for name in ("reset", "finish", "scorecard", "taskapp_reset"):
            seen.append(refused := await client.call_tool(name, {}))
            assert refused.is_error
            assert "there is no tool" in texts(refused)[0], "refused, as for a model"
            seen.append(await client.call_tool("go", {"by": 0}))
        assert not ended
        while not seen[-1].meta[DONE]:
            seen.append(await client.call_tool("go", {"by": 1}))
        assert texts(seen[-1])[-1] == OVER
        for tool in ("go", "reset"):
            after = await client.call_tool(tool, {"by": 1})
            assert (after.is_error, texts(after)) == (True, [OVER]), "one episode for a connection"
        assert (await client.list_tools()).tools == tools
        for answer in seen:
            shown = json.dumps(answer.model_dump(mode="json"))
            assert not any(word in shown.replace("'scorecard'", "") for word in REWARDS), shown
            assert getattr(answer, "structured_content", None) is None
        assert isinstance(ended[0], Rollout)


async def test_images_are_blocks_and_the_scorecard_has_the_return() -> None:
    """Observations, rewards and the digest are compared in shared/test_same_episode.py."""
    app = find_app(pytest.importorskip("crafter") and "crafter")
    service = a_service(app)
    rollout = await service.rollout(a_request("random", seed=3, config={"image": True}, ops=["agent"] * 4))
    await service.close()
    turns = rollout.trajectory.turns
    async with connected(app, control=True, seed=3, config={"image": True}) as (client, _, ended):
        shown = [await client.call_tool("task", {})]
        shown += [await client.call_tool(turn.steps[0].tool, dict(turn.steps[0].args)) for turn in turns]
        if not ended:
            await client.call_tool("finish", {})
        card = (await client.call_tool("scorecard", {})).structured_content
    assert (card["episode_return"], card["length"]) == (rollout.total_reward, rollout.trajectory.length)
    pictures = [[block.data for block in answer.content if block.type == "image"] for answer in shown]
    recorded = [rollout.trajectory.initial, *(turn.steps[0].observation for turn in turns)]
    assert pictures == [
        [base64.b64encode(block.png).decode() for block in blocks if isinstance(block, Image)] for blocks in recorded
    ]
    assert all(pictures)


@pytest.mark.parametrize(
    ("breaks", "boundary"), [("reset", "environment"), ("step", "environment"), ("rubric", "scoring")]
)
@pytest.mark.parametrize("control", [False, True])
async def test_failure_is_a_protocol_error_without_a_reward(
    tmp_path: Path, breaks: str, boundary: str, control: bool
) -> None:
    app = app_from(tmp_path, WALK)
    async with connected(app, control=control, seed=1, config={"breaks": breaks}) as (client, _, ended):
        codes = []
        for _ in range(2):
            with pytest.raises(mcp.MCPError) as caught:
                await client.call_tool("go", {"by": 3})
            error = caught.value.error
            assert error.data["boundary"] == boundary
            assert "xyzzy" not in json.dumps(error.model_dump())
            assert "failed and has no reward" in error.message
            codes.append(error.data["code"])
        assert codes[0] == codes[1], "the episode does not begin again"
        assert len(ended) == 1
        assert isinstance(ended[0], RolloutFailed)
        if control:
            with pytest.raises(mcp.MCPError, match="has no reward"):
                await client.call_tool("scorecard", {})
            again = await client.call_tool("reset", {"seed": 2})
            assert texts(again)[-1] == "at 0, seed 2"
            assert (await client.call_tool("go", {"by": 3})).structured_content["terminated"]


async def test_refusal_limit_ends_and_scores_the_episode(tmp_path: Path) -> None:
    async with connected(app_from(tmp_path, WALK), seed=1) as (client, _, ended):
        answers = [await client.call_tool("go", {"by": -1}) for _ in range(3)]
        assert [answer.is_error for answer in answers] == [True] * 3
        assert texts(answers[0]) == ["not backwards"]
        assert [answer.meta[DONE] for answer in answers] == [False, False, True]
        assert isinstance(ended[0], Rollout)
        assert (ended[0].status, ended[0].reward) == ("truncated", 0.0)


async def test_disconnecting_finishes_the_episode(tmp_path: Path) -> None:
    service = a_service(app_from(tmp_path, WALK), store=open_store(str(tmp_path / "s.db")))
    async with playing(service, seed=1) as (client, connection, ended):
        await client.call_tool("go", {"by": 1})
        await connection.close()
        end = ended[0]
        assert isinstance(end, Rollout)
        assert (end.status, end.stop_reason, end.reward) == ("truncated", "finished", 0.25)
        row = await service.stored.load(end.rollout_id, Caller(admin=True))
        assert row is not None
        assert (row.policy["name"], row.policy["protocol"]) == ("session", "mcp")
        with pytest.raises(mcp.MCPError, match="no open session"):
            await client.call_tool("go", {"by": 1})
    await service.close()


async def test_concurrent_calls_run_in_order_and_cancelled_calls_complete(tmp_path: Path) -> None:
    async with connected(app_from(tmp_path, WALK), seed=1, config={"slow": 0.05}) as (client, connection, _):
        left = asyncio.create_task(connection.act("go", {"by": 1}))
        await asyncio.sleep(0)
        left.cancel()
        answers = await asyncio.gather(*(client.call_tool("go", {"by": 1}) for _ in range(2)))
        assert [texts(answer)[0] for answer in answers] == ["at 2", "at 3"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sed": 1}, "no argument 'sed'"),
        ({"seed": "x"}, "expected an integer"),
        ({"seed": 50}, "Seed 50 is outside"),
    ],
)
async def test_invalid_reset_is_rejected(tmp_path: Path, arguments: dict[str, Any], words: str) -> None:
    async with connected(app_from(tmp_path, WALK), control=True) as (client, _, __):
        with pytest.raises(mcp.MCPError, match=words):
            await client.call_tool("reset", arguments)
        with pytest.raises(mcp.MCPError, match="No episode has begun"):
            await client.call_tool("scorecard", {})
        await client.call_tool("taskapp_task", {})
        with pytest.raises(mcp.MCPError, match="has not ended"):
            await client.call_tool("scorecard", {})
