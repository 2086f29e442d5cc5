"""Every fault of an environment or a rubric costs one rollout: a typed failure at the right boundary, and no more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.stress.app import LARGE_BYTES, SECRET
from tests.stress.server import Server, body, error_of, recent, stored
from tests.waiting import until

pytestmark = pytest.mark.process

WHERE = ["threads", "workers", "alone"]
"""Played in threads of the server, in workers that rollouts share, or in a process of the rollout's own."""

LONG, SHORT = 3, 1001
"""Seeds whose episodes, with policy `noop`, take six steps and one."""


@dataclass
class Place:
    """A server, an environment of it, and the digest of each seed there without a fault."""

    server: Server
    environment: str
    digests: dict[int, str]

    def fine(self) -> None:
        """The server is well and the next rollouts are right."""
        assert self.server.health()["healthy"] is True
        for seed, digest in self.digests.items():
            answer = self.server.rollout(environment=self.environment, seed=seed)
            assert (answer.status_code, answer.json().get("digest")) == (200, digest), answer.text
            assert answer.json()["reward"] == pytest.approx(0.1)


@pytest.fixture(scope="module")
def places(threads: Server, workers: Server) -> dict[str, Place]:
    found = {}
    for where, server in {"threads": threads, "workers": workers, "alone": threads}.items():
        environment = "alone" if where == "alone" else "shared"
        digests = {seed: server.rollout(environment=environment, seed=seed).json()["digest"] for seed in (LONG, SHORT)}
        found[where] = Place(server, environment, digests)
    assert found["threads"].digests == found["workers"].digests
    return found


@pytest.fixture(params=WHERE)
def place(request: pytest.FixtureRequest, places: dict[str, Place]) -> Iterator[Place]:
    where: Place = places[request.param]
    yield where
    where.fine()


RAISED, UNRECORDED, UNSCORED = "environment_raised", "observation_not_json", "criterion_failed"
RAISES = {
    "reset": (0, RAISED),
    "final state": (6, RAISED),
    "close": (6, RAISED),
    **dict.fromkeys(
        ("step", "unspeakable", "sys exit", "interrupt", "recursion", "out of memory", "stop iteration", "generator exit",
         "cancelled", "timeout", "request error", "signal handler"), (1, RAISED),
    ),
    **dict.fromkeys(("not json", "not finite", "endless", "deep", "surrogate", "large number"), (1, UNRECORDED)),
    **dict.fromkeys(("rubric", "rubric exits", "rubric is not finite"), (6, UNSCORED)),
}  # fmt: skip
"""What breaks -> steps that were played until then, code."""


NEIGHBOURS = ["print", "change directory", "leave threads", "raise in a thread", "leave a process", "clear the environment"]  # fmt: skip
FIRST = {
    "threads": {*RAISES, *NEIGHBOURS},
    "workers": {"step", "close", "unspeakable", "sys exit", "interrupt", "cancelled", "not json", "surrogate", "rubric",
                "change directory", "leave a process"},
    "alone": {"reset", "sys exit", "rubric exits", "clear the environment"},
}  # fmt: skip
"""What `make test` tries of each place."""


def each(faults: Iterable[str]) -> list[Any]:
    """(place, faults) for each place."""
    return [
        pytest.param(where, breaks, marks=() if breaks in FIRST[where] else pytest.mark.exhaustive)
        for where in WHERE
        for breaks in faults
    ]


@pytest.mark.ci(keep=2)
@pytest.mark.parametrize(("place", "breaks"), each(RAISES), indirect=["place"])
def test_what_raises_is_a_typed_failure_and_what_was_played_is_kept(place: Place, breaks: str) -> None:
    steps, code = RAISES[breaks]
    boundary = "scoring" if code == UNSCORED else "environment"
    answer = place.server.rollout(environment=place.environment, seed=LONG, breaks=breaks)
    error = error_of(answer)
    assert (answer.status_code, error["boundary"], error["code"]) == (500, boundary, code)
    assert SECRET not in answer.text

    kept = stored(place.server.store, error["rollout_id"])
    assert (kept.failure["boundary"], kept.failure["code"]) == (boundary, code)
    assert (kept.length, kept.reward, kept.scorecard) == (steps, None, None)
    kinds = [event["kind"] for event in kept.events]
    assert kinds.count("stepped") == steps
    assert kept.status == "failed"
    assert (kept.digest is None) == (boundary == "environment"), "what could not be scored can be scored later"
    until(lambda: f"error_id={error['error_id']}" in place.server.log(), 5, "the answer's error_id in the log")
    if breaks in ("reset", "step", "final state", "close", "rubric"):
        until(lambda: SECRET in _traceback(place.server, error["error_id"]), 5, "the traceback in the log")


def _traceback(server: Server, error_id: str) -> str:
    """The log from the line that names the error to a few lines later."""
    lines = server.log().splitlines()
    place = next((number for number, line in enumerate(lines) if f"(error_id {error_id})" in line), len(lines))
    return "\n".join(lines[place : place + 60])


@pytest.mark.parametrize(("place", "breaks"), each(NEIGHBOURS), indirect=["place"])
def test_failing_rollout_does_not_affect_other_rollouts(place: Place, breaks: str) -> None:
    answer = place.server.rollout(environment=place.environment, seed=LONG, breaks=breaks)
    assert (answer.status_code, answer.json().get("digest")) == (200, place.digests[LONG]), answer.text
    told = answer.json()
    assert stored(place.server.store, told["rollout_id"]).digest == place.digests[LONG]
    again = body(place.environment, seed=LONG)
    again["policy"] = {"config": {"policy": "replay", "rollout_id": told["rollout_id"]}}
    assert place.server.post(again).json()["digest"] == place.digests[LONG], "the store is read still"


@pytest.mark.ci
def test_an_environment_that_changes_directory_takes_no_key_along(tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("first the-first-key-of-the-file\n")
    with Server(tmp_path, "--keys-file", "keys.txt") as server:

        def opens(key: str) -> bool:
            return httpx.get(server.url + "/health", headers={"X-API-Key": key}).status_code == 200

        assert opens("the-first-key-of-the-file")
        assert server.rollout(seed=LONG, breaks="change directory").status_code == 200
        keys.write_text("first the-first-key-of-the-file\nsecond the-second-key-of-the-file\n")
        until(lambda: opens("the-second-key-of-the-file"), 10, "the key file is read again")
        assert opens("the-first-key-of-the-file")


@pytest.mark.ci
@pytest.mark.parametrize(
    "place", ["threads", "workers", pytest.param("alone", marks=pytest.mark.exhaustive)], indirect=True
)
def test_an_observation_of_fifty_megabytes_is_answered_and_forgotten(place: Place) -> None:
    seen = [place.server.rss_bytes()]
    for _ in range(3):
        answer = place.server.rollout(environment=place.environment, seed=LONG, breaks="large", timeout_seconds=60)
        assert answer.status_code == 200
        sizes = [len(step["obs"]["text"]) for step in answer.json()["trajectories"][0]["steps"]]
        assert (max(sizes), len(sizes)) == (LARGE_BYTES, 6)
        seen.append(place.server.rss_bytes())
    assert seen[-1] - seen[0] < 3 * LARGE_BYTES, "three answers of that size are not kept in memory"
    assert seen[-1] - seen[-2] < 1.5 * LARGE_BYTES, "the third costs no more than the second"


@pytest.mark.usefixtures("places")
def test_the_front_holds_no_failure_at_the_end(threads: Server, workers: Server) -> None:
    for server in (threads, workers):
        server.idle()
        health = server.health()
        assert (health["healthy"], health["status"], health["hung_threads"]) == (True, "healthy", 0)
        rows = recent(server.store)
        assert {row.status for row in rows} <= {"terminated", "truncated", "failed"}
        assert all(row.reward is None for row in rows if row.failure is not None)
        assert all(row.reward is not None for row in rows if row.failure is None)
