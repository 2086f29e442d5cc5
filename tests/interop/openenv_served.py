"""Serves environments with OpenEnv's own package, for `from_openenv`; prints the port, then runs until stdin closes.

python openenv_served.py

/echo      the environment that `openenv init` writes, made of the package's own template: it echoes a message
/tools     the tools of OpenEnv's echo_env (github.com/huggingface/OpenEnv, envs/echo_env, at 385de5e) as an MCPEnvironment
/counting  an environment of this file: seeds, options of reset, rewards of null, errors, slowness, one session at a time
"""

import importlib.util
import random
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, Optional

import openenv
from fastapi import FastAPI
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field
from stdin_server import serve

SESSIONS = 16


def scaffold(folder):
    """The application of `openenv init echo`, without its lock file, which needs a registry."""
    template = Path(openenv.__file__).parent / "cli/templates/openenv_env"
    names = {"__ENV_NAME__": "echo", "__ENV_CLASS_NAME__": "Echo", "__ENV_TITLE_NAME__": "Echo"}
    for path in template.rglob("*.py"):
        target, text = str(path.relative_to(template)), path.read_text()
        for placeholder, name in names.items():
            target, text = target.replace(placeholder, name), text.replace(placeholder, name)
        target = folder / target
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text.replace("max_concurrent_envs=1", f"max_concurrent_envs={SESSIONS}"))
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location("server.app", folder / "server" / "app.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.app


class Tools(MCPEnvironment):
    """Echo tools. It pays nothing and never ends."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        mcp = FastMCP("echo_env")

        @mcp.tool
        def echo_message(message: str) -> str:
            """Echo back the provided message."""
            return message

        @mcp.tool
        def echo_with_length(message: str) -> dict:
            """Echo back the message with its length."""
            return {"message": message, "length": len(message)}

        @mcp.tool
        def divide(by: int) -> float:
            """Divide 1."""
            return 1 / by

        super().__init__(mcp)
        self._state = State()

    def reset(self, seed: Optional[int] = None, episode_id: Optional[str] = None, **kwargs) -> Observation:
        return Observation(done=False, reward=0.0, metadata={"status": "ready"})

    def _step_impl(self, action, timeout_s=None, **kwargs):
        return Observation(done=False, reward=0.0)

    @property
    def state(self) -> State:
        return self._state


class Count(Action):
    """Add to the count."""

    amount: int = Field(ge=1, le=3, description="How much")
    how: Literal["pay", "null", "raise", "sleep", "cut"] = "pay"


class Counted(Observation):
    total: int
    target: int


class Counting(Environment):
    """Reach the target exactly."""

    SUPPORTS_CONCURRENT_SESSIONS = False

    def reset(
        self, seed: Optional[int] = None, episode_id: Optional[str] = None, high: int = 9, over: bool = False
    ) -> Counted:
        if high == 13:
            raise RuntimeError("thirteen is refused")
        self._state = State(episode_id=episode_id, step_count=0)
        self.total, self.target = 0, random.Random(seed).randint(4, high)
        return Counted(total=0, target=self.target, done=over, reward=0.25 if high == 5 else None)

    def step(self, action: Count, timeout_s: Optional[float] = None) -> Counted:
        if action.how == "raise":
            raise RuntimeError("secret of the author")
        if action.how == "sleep":
            time.sleep(3)
        self._state.step_count += 1
        self.total += action.amount
        done = self.total >= self.target or action.how == "cut"
        reward = None if action.how in ("null", "cut") or not done else float(self.total == self.target)
        return Counted(
            total=self.total, target=self.target, done=done, reward=reward, metadata={"truncated": action.how == "cut"}
        )

    @property
    def state(self) -> State:
        return self._state


def release():
    try:
        return f"openenv {version('openenv')}"
    except PackageNotFoundError:
        return f"openenv-core {version('openenv-core')}"


app = FastAPI()
app.mount("/echo", scaffold(Path(tempfile.mkdtemp())))
app.mount(
    "/tools", create_app(Tools, CallToolAction, CallToolObservation, env_name="tools", max_concurrent_envs=SESSIONS)
)
app.mount("/counting", create_app(Counting, Count, Counted, env_name="counting"))
serve(app, release())
