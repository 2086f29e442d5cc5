"""A share of the golden comparison: about one rollout of each environment and policy. `make golden` plays the whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SERVERS = ("adder", "crafter", "features", "judged", "looped", "math")
"""Each takes two seconds of processor time to start. What the others add is more of the same."""


def test_a_share_of_the_golden_rollouts_is_what_it_was() -> None:
    only = ",".join(f"{server}.*" for server in SERVERS)
    command = [sys.executable, str(Path(__file__).parent), "--share", "1", "--servers", "4", "--only", only]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
