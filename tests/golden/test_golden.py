"""A share of the golden comparison: about one rollout of each environment and policy. `make golden` plays the whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

QUICK = ("adder", "features")
OTHERS = ("crafter", "judged", "looped", "math")
"""Each takes some seconds of processor time. What the servers of neither add is more of the same."""


@pytest.mark.parametrize(
    "servers", [pytest.param(QUICK, id="quick"), pytest.param(OTHERS, id="others", marks=pytest.mark.exhaustive)]
)
def test_a_share_of_the_golden_rollouts_is_what_it_was(servers: tuple[str, ...]) -> None:
    only = ",".join(f"{server}.*" for server in servers)
    command = [sys.executable, str(Path(__file__).parent), "--share", "1", "--servers", "4", "--only", only]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
