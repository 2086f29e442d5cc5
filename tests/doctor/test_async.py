"""An author's functions may be async, in any form: the doctor reports the same as of their `def` versions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.doctor.test_gallery import findings
from tests.rollouts import HEADER, app_from, one_model_rollout

SOURCE = (
    HEADER
    + '''
from functools import partial
app = TaskApp("door", reward=Blend(outcome=1.0, event=0.1))

def written(row):
    return f"Repeat {row['word']}."

app.tasks("words", prompt=written, rows=lambda: [{"word": f"w{n}"} for n in range(20)], train=range(20))

@app.environment("door", splits={"train": range(100)}, max_steps=5)
class Door:
    """Open the door."""

    @classmethod
    def setup_worker(cls) -> None:
        cls.ready = True

    def reset(self, seed: int) -> str:
        return f"a door, {seed}"

    def actions(self):
        return ["push"]

    @action(sample=lambda rng: {"strength": rng.randint(1, 3)}, noop={"strength": 0})
    def push(self, strength: int = 1) -> Step:
        """Push."""
        return Step(f"{strength}", reward=1.0, terminated=strength > 1)

    def final_state(self):
        return {"ready": self.ready}

    def close(self) -> None:
        pass

def polite(trajectory: Trajectory, least: int = 0) -> float:
    """No rule was broken."""
    return 1.0

app.rubric(name="polite")(partial(polite, least=1))

class Long:
    """As long as an episode."""

    def __call__(self, trajectory: Trajectory) -> float:
        return trajectory.length / 5

app.rubric(name="long")(Long())

@app.rubric(of="events")
def strong(step) -> float:
    """Strength."""
    return 1.0

@app.metric
def pushes(trajectory: Trajectory) -> float:
    """Pushes."""
    return trajectory.length

@app.aggregate
def mean(rollouts) -> float:
    """The mean."""
    return 1.0

@app.policy("gold")
def gold(observation) -> Any:
    """Good play."""
    return {"push": {"strength": 2}} if "door" in observation else observation

@app.judge(weight=0)
def kind(answer_text, trajectory):
    """Is it kind?"""
    return trajectory.transcript()
'''
)
ASYNC = (
    re.sub(r"^( *)def ", r"\1async def ", SOURCE, flags=re.M)
    .replace("rows=lambda: [", "rows=lambda: listed([")
    .replace("range(20)], train", "range(20)]), train")
    .replace(
        'sample=lambda rng: {"strength": rng.randint(1, 3)}',
        'sample=lambda rng: later({"strength": rng.randint(1, 3)})',
    )
    .replace(
        "from functools import partial",
        "from functools import partial; later = asyncio.coroutine_of; listed = asyncio.items_of",
    )
)
FORMS = """import asyncio
async def coroutine_of(value):
    await asyncio.sleep(0)
    return value
async def items_of(values):
    for value in values:
        yield value
asyncio.coroutine_of, asyncio.items_of = coroutine_of, items_of
"""


@pytest.mark.process
def test_the_report_on_async_functions_is_that_on_their_def_versions(tmp_path: Path) -> None:
    reports = []
    for source in (SOURCE, ASYNC):
        file = tmp_path / f"{len(reports)}" / "app.py"
        file.parent.mkdir()
        file.write_text(FORMS + source)
        found = findings(file)
        reports.append([
            (item.environment, item.name, item.status, "" if item.name in ("cost", "memory") else item.found, item.do, item.place)
            for item in found if item.part != "task app"
        ])  # fmt: skip
    assert [a for a, b in zip(*reports, strict=True) if _words(a) != _words(b)] == []
    assert {item[1] for item in reports[0] if item[2] == "warning"} >= {"criteria-move"}


def _words(item: tuple[object, ...]) -> list[str]:
    """A line without its numbers: how many rollouts are played depends on the time that they take."""
    return [re.sub(r"\d+(\.\d+)?", "", str(part)) for part in item]


@pytest.mark.parametrize("form", ["partial(go, more=1)", "Go()", "lambda env, model, task: go(env)"])
def test_an_async_loop_in_any_form(tmp_path: Path, form: str) -> None:
    loop = f"""
async def go(env, model=None, task=None, more=0):
    await env.step("push", {{"strength": 2}})
class Go:
    async def __call__(self, env):
        await go(env)
app.rollout({form})
"""
    app = app_from(tmp_path, FORMS + SOURCE + loop, header="")
    assert one_model_rollout(app, "http://127.0.0.1:9/v1", env_name="door").trajectory.steps[0].args == {"strength": 2}
