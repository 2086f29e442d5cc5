"""`POST /score_group`, from stored rollouts to a ranking: a real store, the real route, scripted models."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from taskapp_kit import RolloutFailed, TaskApp
from taskapp_kit.config import Settings
from taskapp_kit.errors import RequestError, Unavailable
from taskapp_kit.records.content import Json
from taskapp_kit.records.events import encode
from taskapp_kit.records.protocols import StoredRollout, SystemClock
from taskapp_kit.rollout.admission import ANYONE, Caller
from taskapp_kit.rollout.groups import Group, load_group
from taskapp_kit.rollout.play_and_score import RolloutPlayer
from taskapp_kit.rollout.request import RequestPlanner
from taskapp_kit.rollout.response import stored_rollout
from taskapp_kit.rollout.service import Service
from taskapp_kit.rollout.source import RolloutReader
from taskapp_kit.serve.route import RouteContext, direct_routes
from taskapp_kit.serve.routes.score_group import ROUTE, ScoreGroupResponse
from taskapp_kit.serve.telemetry.metrics import Metrics
from taskapp_kit.store import open_store
from tests.rollout.score.bench import Models, words
from tests.rollouts import a_request, app_from

pytestmark = pytest.mark.anyio
APP = '''
app = TaskApp("group", version="1.0")
PNG = bytes.fromhex("89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de")
@app.environment("counter", splits={"train": range(10)})
class Counter:
    """Count."""
    def __init__(self, high: int = 3):
        self.n = 0
    def reset(self, seed: int) -> list: return [Text(f"seed {seed}"), Image(PNG)]
    @action
    def add(self, amount: Literal[1, 2, 3]) -> Step:
        """Add."""
        self.n += amount
        return Step(f"at {self.n}", float(amount), True)
    def final_state(self): return {"n": self.n}
@app.environment("plain", splits={"train": range(10)})
class Plain:
    """Count."""
    def reset(self, seed: int) -> str: return "x"
    @action
    def add(self, amount: Literal[1, 2, 3]) -> Step:
        """Add."""
        return Step("y", 1.0, True)
class Row(BaseModel):
    question: str
    answer: Private[str]
app.tasks("rows", row=Row, prompt="{question}", train=[Row(question="Why?", answer="rain-secret")])
@app.judge(group=True, environment=["counter", "rows"], samples=2)
def best(trajectories, task):
    """Which counted furthest?"""
    assert all(trajectory.final_state for trajectory in trajectories) or task is not None
    return [[Text(trajectory.answer_text or str(trajectory.final_state["n"])), *pictures(trajectory)]
            for trajectory in trajectories]
def pictures(trajectory):
    return [block for block in trajectory.initial if isinstance(block, Image)] if isinstance(trajectory.initial, list) else []
'''


class StoredGroups:
    """An app, its store, and how a rollout gets there."""

    def __init__(self, folder: Path, source: str = APP) -> None:
        self.app: TaskApp = app_from(folder, source)
        self.spec = self.app.freeze()
        self.planner = RequestPlanner(self.spec, folder)
        self.store = open_store(str(folder / "rollouts.db"))
        self.stored = RolloutReader(self.spec.name, self.store)
        self.kept = 0

    async def keep(self, action: Any, **given: Any) -> str:
        """A rollout, played and stored; its id."""
        self.kept += 1
        name = f"{self.kept:032x}"
        plan = self.planner.plan(a_request("constant", action=action, **given))
        played = RolloutPlayer(self.spec, plan, SystemClock()).play()
        played.rollout_id, played.created_at, played.timing = name, float(self.kept), {"total": 0.1}
        played.pictures = played.shown_pictures()
        await self.store.save(stored_rollout(self.spec, plan, played, encode(played.events), key_label=None))
        return name

    async def three(self, **given: Any) -> list[str]:
        return [await self.keep({"add": {"amount": n}}, **{"seed": 4, "group_id": "g", **given}) for n in (1, 3, 2)]

    async def load(self, *names: str, group_id: str | None = None) -> Group:
        return await load_group(self.planner, self.stored, ANYONE, rollout_ids=list(names) or None, group_id=group_id)


@pytest.fixture
async def groups(tmp_path: Path) -> AsyncIterator[StoredGroups]:
    groups = StoredGroups(tmp_path)
    yield groups
    await groups.store.close()


async def test_a_group_is_found_however_many_rollouts_are_newer(groups: StoredGroups) -> None:
    names = await groups.three()
    kept = await groups.store.load(names[0])
    assert kept is not None
    newer = [
        replace(kept, rollout_id=f"{n:032x}", group_id=None, created_at=float(n), blobs={}) for n in range(10, 2020)
    ]
    await asyncio.gather(*map(groups.store.save, newer))
    group = await groups.load(group_id="g")
    assert group.rollout_ids == names


def by_count(body: dict[str, Json]) -> str:
    return json.dumps({name: {"reason": f"{text}", "score": int(text) / 3} for name, text in numbers(body).items()})


def numbers(body: dict[str, Json]) -> dict[str, str]:
    """The labels with the one digit that their part holds."""
    lines = words(body).splitlines()
    return {line[1:-1]: after.strip()[0] for line, after in itertools.pairwise(lines) if line.startswith("[answer_")}


async def test_stored_rollouts_are_ranked(groups: StoredGroups) -> None:
    names = await groups.three()
    for group in (await groups.load(*names), await groups.load(group_id="g")):
        models = Models(by_count)
        answer = group.score(models)
        assert [(item["rollout_id"], item["rank"]) for item in answer["scores"]] == [
            (names[0], 3), (names[1], 1), (names[2], 2),
        ]  # fmt: skip
        assert [item["score"] for item in answer["scores"]] == pytest.approx([1 / 3, 1.0, 2 / 3])
        assert [item["reason"] for item in answer["scores"]] == ["1", "3", "2"]
        assert (answer["group_id"], answer["environment"], answer["seed"]) == ("g", "counter", 4)
        (judge,) = answer["judges"]
        assert (judge["name"], judge["cost"], judge["spreads"]) == ("best", 0.002, dict.fromkeys(names, 0.0))
        assert [sorted(order) for order in judge["orders"]] == [names, names]
        assert judge["orders"][0] != judge["orders"][1]
        assert sum(part["type"] == "image_url" for part in models.asked[0][1]["messages"][1]["content"]) == 3
        ScoreGroupResponse.model_validate(answer)


async def test_rows_are_read_again_and_private_values_stay_here(groups: StoredGroups) -> None:
    def answer(body: dict[str, Json]) -> str:
        return json.dumps({f"answer_{n}": {"reason": "not rain-secret", "score": 0.5} for n in (1, 2)})

    names = [await groups.keep(text, env_name="rows", seed=0) for text in ("Wind.", "Fog.")]
    group = await groups.load(*names)
    assert group.task.answer == "rain-secret"
    told = group.score(Models(answer))
    assert told["group_id"] is None
    assert "rain-secret" not in json.dumps(told)


async def test_invalid_group_is_rejected_with_the_reason(groups: StoredGroups) -> None:
    act = {"add": {"amount": 1}}
    one, two, _ = await groups.three()
    plain, other = [await groups.keep(act, seed=4, env_name="plain") for _ in range(2)]
    row = await groups.keep("x", seed=0, env_name="rows")
    seed, config = await groups.keep(act, seed=5), await groups.keep(act, seed=4, config={"high": 9})
    old, older = [await _copy(groups, one, spec_hash="0" * 64, rollout_id=letter * 32) for letter in "ab"]
    failed = await _copy(groups, one, status="failed", rollout_id="c" * 32)
    for code, part, names in (
        ("not_one_group", "differ in seed.", [one, seed]),
        ("not_one_group", "differ in config.", [one, config]),
        ("not_one_group", "differ in environment.", [one, plain]),
        ("not_one_group", "differ in environment, seed, task.", [one, row]),
        ("not_one_group", "spec hash", [one, old]),
        ("other_declarations", "", [old, older]),
        ("no_such_rollout", "f" * 32, [one, "f" * 32]),
        ("duplicate_rollout", "", [one, one]),
        ("bad_group", "", [one]),
        ("bad_group", "", [f"{n:032x}" for n in range(65)]),
        ("no_such_group", "", []),
        ("rollout_failed", "", [one, failed]),
    ):
        with pytest.raises(RequestError) as caught:
            await groups.load(*names, group_id=None if names else "nobody's")
        assert caught.value.code == code
        assert part in caught.value.message
    with pytest.raises(Unavailable, match=r"'plain' .*@app\.judge\(group=True\)"):
        await groups.load(plain, other)
    groups.stored = RolloutReader(groups.spec.name, None)
    with pytest.raises(Unavailable, match="/score_group .*--store"):
        await groups.load(one, two)


async def _copy(groups: StoredGroups, name: str, **changed: Any) -> str:
    stored = await groups.store.load(name)
    assert stored is not None
    values = {slot: getattr(stored, slot) for slot in StoredRollout.__slots__}
    await groups.store.save(StoredRollout(**{**values, **changed, "events": list(stored.events)}))
    return str(changed["rollout_id"])


async def test_group_judge_without_a_verdict_fails(groups: StoredGroups) -> None:
    group = await groups.load(*await groups.three())
    with pytest.raises(RolloutFailed, match="'best' .*verdict") as caught:
        group.score(Models(["All are equally good."]))
    assert caught.value.boundary == "scoring"
    with pytest.raises(RolloutFailed, match="TASKAPP_JUDGE_URL"):
        group.score(None)


class Wired(Service):
    """A service whose judges are asked by `models`."""

    scripted: Models

    async def score_group(
        self, *, rollout_ids: list[str] | None = None, group_id: str | None = None, caller: Caller = ANYONE
    ) -> dict[str, Json]:
        group = await load_group(self.planner, self.stored, ANYONE, rollout_ids=rollout_ids, group_id=group_id)
        return await self.pinned_threads.run(partial(group.score, self.scripted), seconds=60.0, stop=lambda _: None)


async def test_the_route(tmp_path: Path) -> None:
    groups = StoredGroups(tmp_path, APP.replace("samples=2", "weight=0, samples=2"))
    service = Wired(groups.app, store=groups.store)
    service.scripted = Models(by_count)
    names = await groups.three()
    front = FastAPI()
    measures = Metrics(service.spec.environments, service.health)
    context = RouteContext(service, None, measures, Settings(), None, "local")  # type: ignore[arg-type]  # what this route needs
    front.router.routes.extend(direct_routes([ROUTE], context))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(front), base_url="http://here") as client:
        answer = await client.post("/score_group", json={"rollout_ids": names})
        assert answer.status_code == 200, answer.text
        told = ScoreGroupResponse.model_validate(answer.json())
        assert [member.rollout_id for member in told.scores] == names
        assert [told.judges[0].scores[name] for name in names] == pytest.approx([1 / 3, 1.0, 2 / 3])
        assert told.scores[0].score is None, "the judge weighs nothing"
        assert (await client.post("/score_group", json={"group_id": "g"})).status_code == 200
        for body, where in (
            ({}, "body"),
            ({"rollout_ids": names, "group_id": "g"}, "body"),
            ({"rollout_ids": names[:1]}, "rollout_ids"),
            ({"rollout_ids": ["../x", "y"]}, "rollout_ids"),
            ({"rollout_ids": names, "judge": 1}, "judge"),
            ({"group_id": ""}, "group_id"),
            ({"group_id": "nobody's"}, "group_id"),
            ({"rollout_ids": [names[0], "f" * 32]}, "rollout_ids"),
        ):
            refused = await client.post("/score_group", json=body)
            assert refused.status_code == 422, (body, refused.text)
            assert where in str(refused.json()["detail"]["error"]["fields"][0]["loc"]), refused.text
    await service.close()
