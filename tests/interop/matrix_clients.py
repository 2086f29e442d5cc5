"""The clients of the matrix, and its columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

ENVIRONMENTS = ("adder", "crafter", "math")
AT_ONCE = "20 at once"
COLUMNS = ("reset", "step", "reward", "end", "bad action", "wrong key", AT_ONCE)


@dataclass(frozen=True)
class Failure:
    """An environment of matrix_app.py that fails, and the boundary of its failure; None if the episode only ends early."""

    environment: str
    boundary: str | None


FAILURES = {
    "environment raises": Failure("raising", "environment"),
    "judge fails": Failure("judged", "scoring"),
    "model unreachable": Failure("asking", "environment"),
    "timeout": Failure("hanging", "timeout"),
    "refusal limit": Failure("refusing", None),
}


@dataclass(frozen=True)
class Client:
    """A published client and what it can see of an episode.

    Attributes:
        name: The distribution and its version, which the program has to report.
        peer: A file of requirements/ without .txt. Empty for a client that runs in our own Python.
        program: A file in clients/.
        way: Speaks a protocol, or is a library that uses one of our adapters.
        error: The type of error that a failure raises, for all failures or by failure.
        arguments: Arguments of the program.
        rewards: The rewards that the client sees: the session's steps, the environment's and the outcome, or one per episode.
        sees_last: Whether the client receives the last observation.
        sees_empty: Whether the client receives the last observation if its text is empty.
        at_once: How many episodes it plays concurrently.
        cannot: Columns that the client does not support, each with the reason.
        notes: Footnotes of columns.
        calls: Further calls of the program, each with an environment.
        checks: Checks of the results of `calls`.
        light: Whether CI runs it with adder.
        slow_failures: Whether CI leaves out its failures.
        packaged: Whether the app is installed as a package for verifiers.
        shows_own_key: Whether its errors contain the key that it sent.
        variables: Environment variables of the program.
        needs: A package without which the client is skipped.
    """

    name: str
    peer: str
    program: str
    way: Literal["wire", "adapter"]
    error: str | Mapping[str, str]
    arguments: tuple[str, ...] = ()
    rewards: Literal["session", "environment", "episode"] = "session"
    sees_last: bool = True
    sees_empty: bool = True
    at_once: int = 20
    cannot: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    calls: tuple[tuple[str, str], ...] = ()
    checks: Mapping[str, Callable[[dict[str, Any]], None]] = field(default_factory=dict)
    light: bool = True
    slow_failures: bool = False
    packaged: bool = False
    shows_own_key: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    needs: str | None = None


def synth_unreachable(result: dict[str, Any]) -> None:
    """An unreachable policy model is a failure of the boundary `policy`, without a reward."""
    assert result["error"]["type"] == "HTTPStatusError" and '"boundary":"policy"' in result["error"]["text"]
    assert result["rewards"] == []


SYNTH = Client(
    "synth-ai 0.3.9",
    "synth-ai-0.3.9",
    "synth_episodes.py",
    "wire",
    error="HTTPStatusError",
    rewards="environment",
    notes={"reward": "The environment's rewards and the outcome's score arrive separately, as in our contract."},
    calls=(("unreachable", "crafter"),),
    checks={"unreachable": synth_unreachable},
    slow_failures=True,
    variables={"SYNTH_DISABLE_LOGGING": "1"},
)


def openenv_tools(result: dict[str, Any]) -> None:
    """OpenEnv's MCP client lists the environment's actions."""
    assert result == {"tools": ["submit", "say"]}


def openenv_again(result: dict[str, Any]) -> None:
    """After a failed episode the connection plays the next one."""
    assert "[boundary environment, code environment_raised]" in result["raised"]
    assert result["then"] == "raising seed 2"


OPENENV = Client(
    "openenv 0.10.0",
    "openenv-0.10.0",
    "openenv_client.py",
    "wire",
    error="RuntimeError",
    arguments=("openenv",),
    calls=(("tools", "math"), ("again", "raising")),
    checks={"tools": openenv_tools, "again": openenv_again},
)
OPENENV_CORE = replace(
    OPENENV,
    name="openenv-core 0.3.0",
    peer="openenv-core-0.3.0",
    arguments=("openenv-core",),
    shows_own_key=True,
    notes={"wrong key": "The client's error shows its URL, including the key that it sent, but no key of the server."},
)


def ors_tools(result: dict[str, Any]) -> None:
    """The lists of the environment and of a session are equal."""
    assert result["splits"] == ["train"] and result["tasks"] == 1000
    assert result["tools"] == result["task tools"] == ["submit", "say"]
    assert result["last"] == {"split": "train", "seed": 999}


def openreward_after(result: dict[str, Any]) -> None:
    """The client ends the failed session, and another session plays."""
    assert result == {"raised": ["ToolFailed", "SessionTerminatedError"], "then": "raising seed 2"}


def ors_sdk_after(result: dict[str, Any]) -> None:
    """Later calls also fail, and another session plays."""
    assert result == {"raised": ["RuntimeError", "RuntimeError"], "then": "raising seed 2"}


OPENREWARD = Client(
    "openreward 0.1.167",
    "openreward-0.1.167",
    "ors_client.py",
    "wire",
    error="ToolFailed",
    arguments=("openreward",),
    notes={
        "bad action": "The client receives ORS's `ToolCallError` for a malformed call, without a reward. The call counts as a turn."
    },
    calls=(("tools", "math"), ("after_failure", "raising")),
    checks={"tools": ors_tools, "after_failure": openreward_after},
)
ORS_SDK = replace(
    OPENREWARD,
    name="ors-sdk 0.1.0",
    peer="ors-sdk-0.1.0",
    arguments=("ors-sdk",),
    error="RuntimeError",
    checks={"tools": ors_tools, "after_failure": ors_sdk_after},
)


def mcp_policy(result: dict[str, Any]) -> None:
    """The policy role offers the actions and the task, and no reward."""
    assert result["tools"] == ["add", "task"]
    assert result["task"].endswith("target 10, total 0")
    assert result["last"] == ["target 10, total 10", "The episode is over."]
    assert result["structured"] == [None] * 10


MCP_2 = Client(
    "mcp 2.3.0",
    "mcp-2.3.0",
    "mcp_client.py",
    "wire",
    error="MCPError",
    arguments=("mcp2",),
    notes={
        "reward": "Checked in the control role. Another check confirms that the policy role shows these clients no reward."
    },
    calls=(("policy", "adder"),),
    checks={"policy": mcp_policy},
)
MCP_1 = replace(MCP_2, name="mcp 1.30.0", peer="mcp-1.30.0", error="McpError", arguments=("mcp1",))
FASTMCP = replace(MCP_2, name="fastmcp 4.1.2", peer="fastmcp-4.1.2", arguments=("fastmcp",))


def gymnasium_spec(result: dict[str, Any]) -> None:
    """`check_env` has no warnings, and the environment's spec makes an equal environment."""
    assert result == {"spec": "taskapp/App-v0", "same": True}


def gymnasium_vector(result: dict[str, Any]) -> None:
    """A vector environment survives failing episodes, which are truncated with the reward NaN."""
    assert result["first"] == [f"raising seed {seed}" for seed in (3, 4, 5, 6)]
    assert result["rewards"] == ["nan"] * 4 and result["truncated"] == [True] * 4
    assert result["boundaries"] == ["environment"] * 4


GYMNASIUM = Client(
    "gymnasium 1.4.0",
    "gymnasium-1.4.0",
    "gymnasium_client.py",
    "adapter",
    error="TaskAppError",
    notes={"reset": "Checked at a URL. In process, `check_env` reports no warnings, and the environments have a spec."},
    calls=(("check_env", "adder"), ("check_env", "crafter"), ("check_env", "math"), ("vector", "raising")),
    checks={"check_env": gymnasium_spec, "vector": gymnasium_vector},
)

IN_PROCESS = "The app runs in the trainer's process, without a server or a key."
VERIFIERS_0 = Client(
    "verifiers 0.3.1",
    "verifiers-0.3.1",
    "verifiers_v0.py",
    "adapter",
    error={
        "environment raises": "Error",
        "judge fails": "InfraError",
        "model unreachable": "Error",
        "timeout": "InfraError",
    },
    arguments=("taskapp-matrix",),
    rewards="episode",
    sees_last=False,
    at_once=8,
    cannot={"wrong key": IN_PROCESS},
    notes={
        "step": "The model does not receive the last observation, but the digest is equal.",
        "reward": "The library has one reward per episode.",
        AT_ONCE: "8 concurrent episodes in one call of the library.",
    },
    light=False,
    packaged=True,
)
VERIFIERS_1 = replace(
    VERIFIERS_0,
    name="verifiers 0.4.0",
    peer="verifiers-0.4.0",
    program="verifiers_v1.py",
    error={
        "environment raises": "TaskError",
        "judge fails": "TaskError",
        "model unreachable": "TaskError",
        "timeout": "HarnessError",
    },
)
INSPECT = Client(
    "inspect-ai 0.3.285",
    "inspect-ai-0.3.285",
    "inspect_client.py",
    "adapter",
    error="sample error",
    rewards="episode",
    sees_empty=False,
    cannot={"wrong key": IN_PROCESS},
    notes={"reward": VERIFIERS_0.notes["reward"]},
    light=False,
)
TRL = Client(
    "trl 1.16.0",
    "",
    "trl_client.py",
    "adapter",
    error="None",
    rewards="episode",
    notes={
        "reset": "Checked at a URL, with `environment_factory`. TRL runs the tool loop and computes rewards and advantages; the "
        "sampler replays a script. `make test-train` updates weights.",
        "reward": VERIFIERS_0.notes["reward"],
    },
    needs="trl",
    light=False,
)

CLIENTS = (
    SYNTH,
    OPENENV,
    OPENENV_CORE,
    OPENREWARD,
    ORS_SDK,
    MCP_2,
    MCP_1,
    FASTMCP,
    GYMNASIUM,
    VERIFIERS_0,
    VERIFIERS_1,
    INSPECT,
    TRL,
)
