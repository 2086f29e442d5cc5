"""A failure is never a reward: a small run of `make faults-proof`, and what its counter must find."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.fault_count import Outcome, Tally
from tests.stress.fault_page import LEAST, table_of, write
from tests.stress.fault_proof import RANDOM, Case, Kind, asked, deserved_of, play, prove, served

ROLLOUTS = int(os.environ.get("TASKAPP_FAULT_ROLLOUTS", "1000"))


@pytest.mark.ci
@pytest.mark.process
def test_under_ten_kinds_of_faults_none_is_wrong_and_none_lost(tmp_path: Path) -> None:
    results = prove(tmp_path, ROLLOUTS)
    table = table_of(results, "taskapp-kit")
    print(f"\n{table}")
    assert len(results) == 10
    for result in results:
        tally = result.tally
        assert (tally.wrong, tally.lost) == (0, 0), (result.kind, tally.examples[:3])
        if not result.missing:
            assert tally.asked == ROLLOUTS // 10
            assert result.faults > 0 and tally.right > 0, result.kind
    if ROLLOUTS >= LEAST:
        write("faults", table)


@pytest.mark.ci
@pytest.mark.process
def test_a_swallowed_failure_and_a_vanished_rollout_are_found(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        deserved = deserved_of(server, RANDOM)

        def planted(number: int, _: str) -> Case:
            if number == 3:
                return Case(asked("swallowing", number, RANDOM, breaks="step", at=1), deserved[number], 1)
            request = asked("steps", number, RANDOM, slow=0.1)
            return Case({**request, "record": {"store": number != 5}}, deserved[number], gone=number == 5)

        tally = play(server, Kind("planted", (), planted), 10).tally
    assert (tally.right, tally.wrong, tally.lost, tally.declared.total()) == (8, 1, 1, 0), tally.examples
    assert ["planted-3" in tally.examples[0], "planted-5" in tally.examples[1]] == [True, True]


@pytest.mark.parametrize(
    ("outcome", "deserved", "counted"),
    [
        (Outcome([("d", 0.5)]), ("d", 0.5), "right"),
        (Outcome([("d", 0.0)]), ("d", 0.5), "wrong"),
        (Outcome([("e", 0.5)]), ("d", 0.5), "wrong"),
        (Outcome([("d", 0.0)], "known"), None, "wrong"),
        (Outcome([("d", 0.5), ("d", 0.0)]), ("d", 0.5), "wrong"),
        (Outcome([("d", 0.5)], kept=False), ("d", 0.5), "lost"),
        (Outcome(), ("d", 0.5), "lost"),
        (Outcome(code="unknown"), ("d", 0.5), "lost"),
        (Outcome(code="known"), ("d", 0.5), "declared"),
    ],
)
def test_each_outcome_is_counted_once(outcome: Outcome, deserved: tuple[str, float] | None, counted: str) -> None:
    tally = Tally()
    tally.count(outcome, deserved, ("known",))
    found = {"right": tally.right, "wrong": tally.wrong, "lost": tally.lost, "declared": tally.declared.total()}
    assert {name for name, count in found.items() if count} == {counted} and tally.asked == 1
