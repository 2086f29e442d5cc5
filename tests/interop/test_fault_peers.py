"""The faults of `make faults-proof` against servers of other frameworks, each in its own environment: a table, no verdict."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bench.fault_count import Outcome, Tally
from taskapp_kit.testing import Faults, MockModel
from tests.interop.peer_programs import HERE, ROOT, output_of
from tests.interop.peers import PeerUnavailable, peer
from tests.stress.fault_page import LEAST, table_of, write
from tests.stress.fault_proof import WAY, Result

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.server]

ROLLOUTS = int(os.environ.get("TASKAPP_FAULT_ROLLOUTS", "400"))
PEERS = {
    "verifiers-0.3.1": ("fault_verifiers.py", ("model", "judge", "environment", "worker", "deadline")),
    "openenv-core-0.3.0": ("fault_openenv.py", ("environment", "deadline", "kill -9")),
}
"""Adapters, and the kinds of faults that apply to what the framework's server does."""


def lines_of(name: str, kind: str, rollouts: int, folder: Path) -> tuple[dict[int, dict[str, object]], int]:
    """Return the lines that the adapter printed, by number, and the number of faults."""
    program, _ = PEERS[name]
    variables = {"PEER_KEY": "none", "PYTHONPATH": f"{HERE}{os.pathsep}{ROOT / 'bench'}"}
    faults = [Faults(WAY if kind == one else {}, seed=1, retry_after_seconds=None) for one in ("model", "judge")]
    with (
        MockModel.process(faults=faults[0]) as model,
        MockModel.process(behaviour="judge", score=0.5, faults=faults[1]) as judges,
    ):
        command = [peer(name).python, HERE / program, kind, str(rollouts), model.url, judges.url]
        printed = output_of(command, folder, seconds=1200, **variables)
        met = sum(sum(one.stats()["faults"].values()) for one in (model, judges))
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith('{"number"')]
    met += printed.count('{"fault"') + sum(line["broken"] for line in lines)
    return {line["number"]: line for line in lines}, met


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", PEERS)
def test_the_faults_are_played_against_another_framework(name: str, tmp_path: Path) -> None:
    kinds, results = PEERS[name][1], []
    try:
        peer(name)
    except PeerUnavailable as error:
        pytest.skip(str(error))
    each = ROLLOUTS // 10
    sound, _ = lines_of(name, "none", each, tmp_path)
    assert len(sound) == each and all(line["reward"] for line in sound.values()), "the adapter works without faults"
    for kind in kinds:
        lines, met = lines_of(name, kind, each, tmp_path)
        tally, codes = Tally(), {str(line.get("code", "")) for line in lines.values()} - {""}
        for number in range(each):
            line = lines.get(number, {})
            outcome = Outcome([("", line["reward"])] if line.get("reward") is not None else [], line.get("code", ""))
            deserved = None if line.get("broken") else ("", 0.5 if kind == "judge" else sound[number]["reward"])
            tally.count(outcome, deserved, codes, f"{kind}-{number}")
        results.append(Result(kind, met, "", tally))
        assert tally.asked == each and tally.declared.total() + tally.right > 0, tally.examples[:3]
    table = table_of(results, name.replace("-0", " 0"))
    print(f"\n{table}")
    if ROLLOUTS >= LEAST:
        write(name, table)
