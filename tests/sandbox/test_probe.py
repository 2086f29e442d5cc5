"""What the probe reports, and that a level below the promise is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from taskapp_kit.sandbox import Sandbox, SandboxTooWeak, capabilities
from taskapp_kit.sandbox.interpreter import reachable
from taskapp_kit.sandbox.launch import landlock_abi
from taskapp_kit.sandbox.probe import CLOSED, PROMISED, at_level
from tests.sandbox.boxes import LEVELS, folders

pytestmark = [pytest.mark.process, pytest.mark.server]  # the probe tries what a sandbox has to deny

ROOT = Path(__file__).resolve().parents[2]
ASK = "import json; from taskapp_kit.sandbox import capabilities; print(json.dumps(capabilities().to_dict()))"


def test_a_level_holds_where_its_parts_are() -> None:
    """Or all tests below would be skipped in silence when one of our walls falls."""
    bwrap = shutil.which("bwrap")
    parts = ["--ro-bind", "/", "/", "--unshare-pid", "--unshare-net", "--proc", "/proc", "--dev", "/dev", "true"]
    if bwrap and subprocess.run([bwrap, *parts], check=False, capture_output=True).returncode == 0:
        assert 3 in LEVELS, at_level(3)
    if os.geteuid() == 0 and landlock_abi() > 0 and reachable() is not None:
        assert 2 in LEVELS, at_level(2)


@pytest.mark.parametrize("name", CLOSED)
def test_each_attempt_of_the_probe_is_denied(level: int, name: str) -> None:
    found = {wall.name: wall for wall in at_level(level).walls}
    assert found[name].denied, found[name]
    assert name in PROMISED[level]


def test_the_attempts_get_through_where_nothing_is_in_the_way() -> None:
    """The same probe without walls: an attempt that fails by itself would prove nothing."""
    found = {wall.name: wall.denied for wall in at_level(0).walls}
    alone = {"others_environment", "signal_others", "trace_others"} if os.geteuid() else set()
    assert not [name for name, denied in found.items() if denied and name not in alone | {"namespaces"}]


def test_limits_alone_promise_little_and_say_so() -> None:
    report = at_level(1)
    found = {wall.name: wall.denied for wall in report.walls}
    assert found["memory"] and found["big_file"]
    assert not found["tcp_out"] and not found["read_outside"]
    assert not report.safe
    assert "network off (TCP): no (open)" in report.lines()


def test_strongest_working_level_is_used_and_reported() -> None:
    if not LEVELS:
        pytest.skip("needs bubblewrap (Debian: apt-get install bubblewrap), or root")
    report = capabilities()
    assert report.level == max(LEVELS) and report.safe
    assert capabilities().to_dict() == json.loads(json.dumps(report.to_dict()))
    assert set(report.to_dict()["walls"]) == set(CLOSED)
    assert len(report.lines()) == 1 + len(CLOSED) + len(report.refused)
    with Sandbox() as box:
        assert box.level == report.level
        assert box.run_sync("print(1 + 1)").stdout == "2\n"


@pytest.mark.parametrize("weak", [0, 1])
def test_a_weak_box_is_refused_unless_it_is_allowed(weak: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TASKAPP_ALLOW_WEAK_SANDBOX", raising=False)
    before = folders()
    with pytest.raises(SandboxTooWeak, match="TASKAPP_ALLOW_WEAK_SANDBOX"):
        Sandbox(level=weak).__enter__()
    assert folders() == before
    with Sandbox(level=weak, allow_weak=True) as box:
        result = box.run_sync("print('ran')")
    assert (result.stdout, result.level) == ("ran\n", weak)
    monkeypatch.setenv("TASKAPP_ALLOW_WEAK_SANDBOX", "1")
    with Sandbox(level=weak) as box:
        assert box.run_sync("print('ran')").ok
    with pytest.raises(SandboxTooWeak):
        Sandbox(level=weak, allow_weak=False).__enter__()


@pytest.mark.parametrize("wrong", [4, 7, -1])
def test_a_level_that_is_not_built_is_refused(wrong: int) -> None:
    with pytest.raises(SandboxTooWeak, match=f"level {wrong} does not exist"):
        Sandbox(level=wrong, allow_weak=True).__enter__()


def as_other(command: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    """A command of ours under a user id that is not root, or in a private mount namespace, with our packages."""
    import orjson

    packages = Path(orjson.__file__).parents[1]
    environ = {"PATH": os.defpath, "PYTHONPATH": f"{ROOT}:{packages}", "PYTHONDONTWRITEBYTECODE": "1", **more}
    return subprocess.run(command, check=False, env=environ, cwd="/tmp", capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(
    os.geteuid() != 0 or 3 not in LEVELS, reason="needs root, and bubblewrap (Debian: apt-get install bubblewrap)"
)
def test_without_root_bubblewrap_holds_by_a_user_namespace() -> None:
    python = reachable()
    assert python is not None
    ask = [shutil.which("setpriv") or "", "--reuid=54321", "--regid=54321", "--clear-groups", python.program, "-c"]
    if as_other([*ask, "import taskapp_kit.sandbox"]).returncode:
        pytest.skip("another user cannot import the kit here")
    ran = as_other([*ask, ASK])
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    if report["level"] != 3:
        pytest.skip(f"no user namespaces for others here: {report['refused']}")
    assert all(report["walls"].values())


@pytest.mark.skipif(
    os.geteuid() != 0 or 3 not in LEVELS, reason="needs root, and bubblewrap (Debian: apt-get install bubblewrap)"
)
def test_without_bubblewrap_the_next_level_is_used_with_a_hint() -> None:
    hide = f"mount --bind /dev/null {shutil.which('bwrap')} && exec {sys.executable} -c '{ASK}'"
    ran = as_other([shutil.which("unshare") or "", "--mount", "sh", "-c", hide])
    if "mount" in ran.stderr and ran.returncode:
        pytest.skip("no mounts here")
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report["level"] == max(level for level in (*LEVELS, 1) if level != 3)
    assert "bwrap is not installed. Install it: apt-get install bubblewrap." in report["refused"][0]
