"""`taskapp mcp` as a client starts it: over pipes, in the protocol's old and new revisions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import ADDER, clean_environ

mcp = pytest.importorskip("mcp", reason="the extra mcp is not installed")
from mcp.client.stdio import StdioServerParameters, stdio_client  # noqa: E402

pytestmark = [pytest.mark.process, pytest.mark.anyio]

PRINTS = """
import sys
from taskapp_kit import Step, TaskApp, action
app = TaskApp("prints", version="1.0.0")

@app.environment("prints")
class Prints:
    def reset(self, seed: int) -> str:
        print("noise on stdout")
        return "begin"

    @action
    def go(self) -> Step:
        '''Go.'''
        print("noise on stdout")
        if sys.stdin.read() != "":
            raise AssertionError
        raise RuntimeError("the secret word is xyzzy")
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def with_client(folder: Path, mode: str, body: Any, *args: str) -> str:
    """Run `body(client)` with a client of `taskapp mcp ARGS`; return what the server wrote on stderr."""
    command = ["-P", "-m", "taskapp_kit", "mcp", *args]
    server = StdioServerParameters(command=sys.executable, args=command, env=clean_environ(), cwd=folder)
    with (folder / "err.txt").open("w") as err:
        async with mcp.Client(stdio_client(server, errlog=err), mode=mode) as client:
            await body(client)
    return (folder / "err.txt").read_text()


@pytest.mark.ci(keep=1)
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_plays_an_episode_and_the_reward_is_on_stderr(tmp_path: Path, mode: str) -> None:
    async def play(client: Any) -> None:
        assert client.protocol_version == ("2026-07-28" if mode == "auto" else "2025-11-25")
        assert "`task`" in client.instructions
        assert [tool.name for tool in (await client.list_tools()).tools] == ["add", "task"]
        assert (await client.call_tool("task")).content[-1].text == "target 10, total 0"
        answers = [await client.call_tool("add", {"amount": amount}) for amount in (3, 3, 3, 1)]
        assert [block.text for block in answers[-1].content] == ["target 10, total 10", "The episode is over."]

    err = await with_client(tmp_path, mode, play, ADDER, "--seed", "7", "--store", "sqlite:///rollouts.db")
    assert "terminated" in err
    assert "steps 4, reward" in err
    assert (tmp_path / "rollouts.db").is_file()


async def test_an_environment_that_prints_does_not_break_the_protocol(tmp_path: Path) -> None:
    (tmp_path / "prints.py").write_text(PRINTS)

    async def play(client: Any) -> None:
        with pytest.raises(mcp.MCPError) as caught:
            await client.call_tool("go")
        assert caught.value.error.data["boundary"] == "environment"
        assert "xyzzy" not in str(caught.value)

    err = await with_client(tmp_path, "auto", play, "prints.py")
    assert "noise on stdout" in err
    assert "xyzzy" in err, "the author sees the traceback"
