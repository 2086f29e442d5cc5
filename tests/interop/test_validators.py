"""Other projects' validators check a served app. A validator that cannot be installed here is skipped with the reason."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from taskapp_kit import Image, InvalidAction, TaskApp, Text, action
from taskapp_kit.asgi import create
from taskapp_kit.config import Settings
from taskapp_kit.jobs.server.app import create_backend
from taskapp_kit.rollout.service import Service, ServiceSettings
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.store import open_store
from tests.fuzz.sound_app import app
from tests.interop.peers import PeerUnavailable, peer

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.server]

HERE = Path(__file__).parent
KEY = "Tr0ub4dor-and-3-staples-9f27c1"
PICTURE = Image(np.zeros((2, 2, 3), np.uint8))
README = HERE.parents[1] / "README.md"
SCANNED = """
from envdoctor import Case, FunctionTarget
from capitals import app
from taskapp_kit.testing import play

ROWS = ((0, "Paris"), (1, "Tokyo"))

def reward(completion, info):
    return play(app, policy="constant", action=completion, seed=info["seed"]).reward

target = FunctionTarget(reward, [Case(str(seed), "", answer, {"seed": seed}) for seed, answer in ROWS], name="capitals")
"""

conformance = TaskApp("conformance", version="1.0.0")


@conformance.environment("tools", splits={"train": range(8)}, max_steps=50)
class Tools:
    """Tools with the names that the MCP conformance suite calls."""

    def reset(self, seed: int) -> str:
        return "ready"

    @action
    def test_simple_text(self) -> str:
        """Text."""
        return "This is a simple text response for testing."

    @action
    def test_image_content(self) -> Image:
        """A picture."""
        return PICTURE

    @action
    def test_multiple_content_types(self) -> list[Text | Image]:
        """Both."""
        return [Text("Both"), PICTURE]

    @action
    def test_error_handling(self) -> str:
        """Refuses."""
        raise InvalidAction("This tool intentionally returns an error for testing.")


def programs(name: str) -> Path:
    """The directory of a peer's programs."""
    try:
        return peer(name).python.parent
    except PeerUnavailable as error:
        pytest.skip(str(error))


def run(*command: str | Path, cwd: Path, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, cwd=cwd)


def built(played: TaskApp) -> ASGIApp:
    settings = Settings(environment_api_key=KEY, protocols=("all",), grace_seconds=1)
    service = Service(played, ServiceSettings(max_concurrent=20_000), store=open_store("memory"))
    return create(service, settings, exposure="local")


@pytest.fixture
def server() -> Iterator[BackgroundServer]:
    with BackgroundServer(built(app)) as running:
        yield running


@pytest.mark.parametrize("which", ["task app", "backend"])
def test_the_openapi_document_is_valid(tmp_path: Path, which: str) -> None:
    python = programs("openapi-spec-validator-0.9.0") / "python"
    served = create(Service(app), Settings(environment_api_key=KEY, protocols=("all",)))
    document = (served if which == "task app" else create_backend([KEY])).openapi()
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    done = run(python, "-m", "openapi_spec_validator", "openapi.json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("release", ["openenv-0.10.0", "openenv-core-0.3.0"])
def test_openenv_validates_the_server(server: BackgroundServer, tmp_path: Path, release: str) -> None:
    url = f"{server.url.replace('://', f'://key:{KEY}@')}/openenv/counter"
    done = run(programs(release) / "openenv", "validate", "--url", url, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_mcp_conformance_suite_finds_what_is_expected(tmp_path: Path) -> None:
    bin_directory = programs("mcp-conformance-0.1.16")
    inner = built(conformance)

    async def keyed(scope: Scope, receive: Receive, send: Send) -> None:
        """The suite sends no key."""
        if scope["type"] == "http":
            scope["headers"] = [*scope["headers"], (b"x-api-key", KEY.encode())]
        await inner(scope, receive, send)

    with BackgroundServer(keyed) as running:
        suite = (bin_directory / "conformance").resolve()
        expected = HERE / "mcp_expected_failures.yml"
        command = (
            bin_directory / "bun",
            suite,
            "server",
            "--url",
            f"{running.url}/mcp",
            "--expected-failures",
            expected,
        )
        done = run(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "dns-rebinding-protection: 2 passed" in done.stdout


def test_envdoctor_finds_nothing_critical_in_the_grader_of_the_readme(tmp_path: Path) -> None:
    pins = programs("rl-envdoctor-0.1.0")
    (block,) = re.findall(r"^```python title=capitals\.py\n(.*?)^```", README.read_text("utf-8"), re.M | re.S)
    (tmp_path / "capitals.py").write_text(block)
    (tmp_path / "scanned.py").write_text(SCANNED)
    (packages,) = pins.parent.glob("lib/python*/site-packages")
    scan = f"import sys; sys.path += ['.', {str(packages)!r}]; from envdoctor.cli import main; sys.exit(main())"
    done = run(sys.executable, "-c", scan, "scan", "scanned::target", "--json", "report.json", cwd=tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["stats"], done.stderr
    assert not [finding for finding in report["findings"] if finding["severity"] in ("critical", "high")]
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.exhaustive
def test_schemathesis_finds_nothing(server: BackgroundServer, tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("schemathesis")
    if not program.is_file():
        pytest.skip("schemathesis is not installed")
    options = ["--phases", "examples,coverage,fuzzing,stateful", "-n", "12", "--workers", "1", "--seed", "29"]
    command = (program, "--config-file", HERE / "schemathesis.toml", "run", f"{server.url}/openapi.json")
    done = run(*command, "-H", f"X-API-Key: {KEY}", *options, cwd=tmp_path, seconds=400)
    assert done.returncode == 0, done.stdout
