"""`make faults-proof`: ten kinds of faults against a server with 128 rollouts in flight, and the outcome of every rollout."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import aiohttp

from bench.fault_count import Outcome, Reward, Tally
from taskapp_kit.errors import SandboxTooWeak
from taskapp_kit.records.protocols import StoredRollout
from taskapp_kit.sandbox import capabilities
from taskapp_kit.testing import ChatRequest, Faults, MockModel, judge
from tests.stress.load import ask_all, cut, send
from tests.stress.server import Server, body, recent
from tests.waiting import until

HERE = Path(__file__).parent
IN_FLIGHT, SEEDS, TRIES = 128, 200, 100
WAY = dict.fromkeys(
    ("403", "408", "429", "500", "502", "503", "reset", "truncated", "hang", "malformed", "content_type", "error_200",
     "redirect", "empty"), 0.01
)  # fmt: skip
"""Faults of a model's host and of the way there, and their shares of the calls."""
UNREADABLE = dict.fromkeys(("blank", "length", "content_filter", "refusal"), 0.05)
"""Answers of a judge that are no verdict. A policy may answer like this, and what it gets for it is right."""
RAISING = ("step", "reset", "final state", "close", "unspeakable", "sys exit", "out of memory", "stop iteration",
           "generator exit", "cancelled", "timeout", "not json", "not finite", "endless", "surrogate", "large number",
           "rubric", "rubric exits", "rubric is not finite")  # fmt: skip
DEADLY = ("segfault", "exit", "kill itself")
HOSTILE = (
    "import os\ndef f(): os._exit(0)",
    "import os\ndef f(): os.kill(os.getppid(), 9)",
    "def f(): return 'x' * 10**10",
)
BEFORE_PLAYING = {"store_failing", "saturated", "draining"}
"""Refusals after which callers send their request again, as `Retry-After` asks them to."""
RANDOM = {"policy": "random"}
Json = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A rollout's request, and the reward that it deserves: None if it cannot end without a failure.

    faults: in the request itself. gone: its caller hangs up and does not come back.
    """

    request: Json
    deserved: Reward | None
    faults: int = 0
    gone: bool = False


@dataclass
class Trouble:
    """What is at work while rollouts run. url: of a model that fails. faults: their number, once it is over."""

    url: str = ""
    faults: int = 0


@contextmanager
def quiet(faults: Callable[[], int] = int) -> Iterator[Trouble]:
    """Nothing besides the requests, or a model that all kinds share."""
    trouble = Trouble()
    yield trouble
    trouble.faults = faults()


@dataclass(frozen=True)
class Kind:
    """A kind of faults.

    codes: of failures that declare such a fault. again: callers repeat a request that broke, with an Idempotency-Key.
    workers: whether worker processes play. missing: why the kind cannot be tried on this machine.
    """

    name: str
    codes: Sequence[str]
    case: Callable[[int, str], Case]
    trouble: Callable[[Server], AbstractContextManager[Trouble]] = lambda _: quiet()
    again: bool = False
    workers: bool = False
    missing: str = ""


@dataclass
class Result:
    """The rollouts of one kind, the number of faults that they met, and why none were played."""

    kind: str
    faults: int = 0
    missing: str = ""
    tally: Tally = field(default_factory=Tally)


def prove(folder: Path, rollouts: int) -> list[Result]:
    """Play so many rollouts of all kinds together, with real servers in processes of their own."""
    faults = Faults(WAY | UNREADABLE, seed=2, retry_after_seconds=None)
    with MockModel(judge(_said), faults=faults) as judges, MockModel.process() as sound:
        with served(folder / "shared", judges=judges.url) as server:
            deserved, modelled = deserved_of(server, RANDOM), deserved_of(server, model_at(sound.url))
            kinds = all_kinds(deserved, modelled, lambda: sum(judges.stats["faults"].values()))
            each = rollouts // len(kinds)
            results = [
                Result(kind.name, missing=kind.missing) if kind.missing else play(server, kind, each)
                for kind in kinds
                if not kind.workers
            ]
        (kind,) = (kind for kind in kinds if kind.workers)
        with served(folder / "workers", "--workers", "2", judges=judges.url) as server:
            return [*results, play(server, kind, each)]


def served(folder: Path, *arguments: str, judges: str = "http://127.0.0.1:9/v1") -> Server:
    """A server of the app for these tests. judges: the address of the judge's model."""
    variables = {"PYTHONPATH": str(HERE), "TASKAPP_JUDGE_URL": judges, "TASKAPP_JUDGE_MODEL": "m"}
    return Server(folder, *arguments, app=HERE / "fault_app.py", **variables)


def _said(request: ChatRequest) -> float:
    """The judge's score of the answer with a number in it: never 0, which a failure could look like."""
    return (int(re.findall(r"answer (\d+)", request.text)[-1]) % 9 + 1) / 10


def deserved_of(server: Server, policy: Json) -> list[Reward]:
    """By seed, the digest and reward of `steps` without a fault; the reward is computed again from the actions."""
    found = []
    for told in asyncio.run(ask_all(server, [asked("steps", seed, policy) for seed in range(SEEDS)])):
        assert told.status == 200, told.body
        amounts = [call["args"]["by"] for step in told.body["trajectories"][0]["steps"] for call in step["tool_calls"]]
        assert abs(told.body["reward"] - sum(amounts) / len(amounts) / 10) < 1e-9, told.body
        found.append((told.body["digest"], told.body["reward"]))
    return found


def asked(environment: str, seed: int, policy: Json, seconds: float | None = None, **config: Any) -> Json:
    """The request of a rollout. seconds: its deadline."""
    return {**body(environment, seed=seed, max_time_seconds=seconds, **config), "policy": {"config": policy}}


def model_at(url: str) -> Json:
    return {"inference_url": url, "model": "m"}


# -- playing and counting ------------------------------------------------------------------------------------------


def play(server: Server, kind: Kind, rollouts: int) -> Result:
    """Play the rollouts of one kind, and count them when nothing runs any more."""
    told: dict[str, tuple[Case, Json]] = {}
    with kind.trouble(server) as trouble:
        cases = [kind.case(number, trouble.url) for number in range(rollouts)]
        asyncio.run(_ask(server, kind, cases, told))
    result = Result(kind.name, trouble.faults + sum(case.faults for case in cases))
    server.idle(60)
    rows: dict[str, list[StoredRollout]] = {run_id: [] for run_id in told}
    for row in recent(server.store, 10**6):
        rows.get(row.run_id, []).append(row)
    for run_id, (case, answer) in told.items():
        result.tally.count(outcome(case, answer, rows[run_id]), case.deserved, kind.codes, run_id)
    return result


async def _ask(server: Server, kind: Kind, cases: Sequence[Case], told: dict[str, tuple[Case, Json]]) -> None:
    """Ask for all rollouts. A small number of them would end before the fault if all were in flight."""
    chance, numbers = random.Random(len(cases)), iter(range(len(cases)))
    timeout, connector = aiohttp.ClientTimeout(total=90), aiohttp.TCPConnector(limit=0)

    async def caller() -> None:
        for number in numbers:
            case, run_id = cases[number], f"{kind.name}-{number}".replace(" ", "")
            request = {**case.request, "run_id": run_id}
            if case.gone:
                told[run_id] = (case, {})
                writer = await send(server, request)
                await asyncio.sleep(chance.uniform(0, 0.05))
                cut(writer, chance.choice(("close", "reset")))
            else:
                told[run_id] = (case, await _answer(client, server, request, run_id if kind.again else ""))

    async with aiohttp.ClientSession(headers=server.headers, timeout=timeout, connector=connector) as client:
        await asyncio.gather(*(caller() for _ in range(min(IN_FLIGHT, len(cases) // 2))))


async def _answer(client: aiohttp.ClientSession, server: Server, request: Json, key: str) -> Json:
    """The answer to one rollout, {} if there was none."""
    answer: Json = {}
    for _ in range(TRIES):
        try:
            headers = {"Idempotency-Key": key} if key else {}
            async with client.post(server.url + "/rollout", json=request, headers=headers) as response:
                answer = json.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError):
            if not key:
                break
        else:
            if _code(answer) not in BEFORE_PLAYING:
                break
        await asyncio.sleep(0.2)
    return answer


def _code(answer: Json) -> str:
    return str(answer["detail"]["error"]["code"]) if "detail" in answer else ""


def outcome(case: Case, answer: Json, rows: Sequence[StoredRollout]) -> Outcome:
    """What was answered and what the store has. Each reward counts, whoever it was told to."""
    kept = {row.rollout_id: (row.digest or "", row.reward) for row in rows if row.reward is not None}
    paid, code = [*kept.values()], _code(answer)
    if answer.get("reward") is not None:
        paid.append((answer["digest"], answer["reward"]))
    elif not code and not paid:
        code = next((str(row.failure["code"]) for row in rows if row.failure), "")
    if case.deserved and not case.deserved[0]:
        paid = [("", reward) for _, reward in paid]
    return Outcome(paid, code, answer.get("rollout_id") in kept if "reward" in answer else bool(kept))


# -- the ten kinds -------------------------------------------------------------------------------------------------


def all_kinds(deserved: list[Reward], modelled: list[Reward], judged: Callable[[], int]) -> list[Kind]:
    """All kinds. deserved, modelled: by seed, with policy `random` and a model. judged: faults that judges met so far."""

    def fine(number: int, seconds: float | None = None, slow: float = 0.02, **more: Any) -> Case:
        seed = number % SEEDS
        return Case(asked("steps", seed, RANDOM, seconds, slow=slow), deserved[seed], **more)

    def by_model(number: int, url: str) -> Case:
        return Case(asked("steps", number % SEEDS, model_at(url), 3), modelled[number % SEEDS])

    def judged_answer(number: int, _: str) -> Case:
        policy = {"policy": "constant", "action": f"answer {number}"}
        return Case(asked("judged", number, policy, 3), ("", (number % 9 + 1) / 10))

    def broken(every: int, faults: Sequence[str], number: int, _: str) -> Case:
        if number % every:
            return fine(number)
        breaks = faults[number // every % len(faults)]
        return Case(asked("steps", number % SEEDS, RANDOM, breaks=breaks, at=1), None, 1)

    def code(number: int, _: str) -> Case:
        hostile, worth = number % 4 == 0, number % 5 + 1
        text = HOSTILE[number // 4 % len(HOSTILE)] if hostile else f"def f(): return {number}"
        policy = {"policy": "constant", "action": {"submit": {"code": text, "worth": worth}}}
        return Case(asked("boxed", number, policy, 30), ("", 0.0 if hostile else worth / 5), hostile)

    def hurried(number: int, _: str) -> Case:
        return fine(number, 0.02 + number % 7 / 10, 0.05, faults=number % 7 < 3)

    def left(number: int, _: str) -> Case:
        return fine(number, faults=number % 2, gone=number % 2 == 1)

    def plain(number: int, _: str) -> Case:
        return fine(number)

    refused = ("model_refused", "model_redirected", "model_unreachable", "model_rate_limited", "model_malformed")
    raised = ("environment_raised", "observation_not_json", "criterion_failed")
    return [
        Kind("model", (*refused, "deadline"), by_model, failing_model),
        Kind("judge", ("judge_unreadable", "judge_failed", "deadline"), judged_answer, lambda _: quiet(judged)),
        Kind("environment", raised, partial(broken, 2, RAISING)),
        Kind(
            "sandbox",
            ("environment_raised", "deadline"),
            code,
            partial(repeated, kill_a_child, 0.3),
            missing=no_boxes(),
        ),
        Kind("store", ("store_failed",), plain, partial(repeated, hide_the_store, 1)),
        Kind(
            "worker", ("worker_died",), partial(broken, 100, DEADLY), partial(repeated, kill_a_child, 1), workers=True
        ),
        Kind("client", ("cancelled",), left),
        Kind("deadline", ("deadline", "no_thread"), hurried),
        Kind("disk", ("store_failed",), plain, partial(repeated, fill_the_disk, 1)),
        Kind("kill -9", (), plain, partial(repeated, kill_the_server, 2), again=True),
    ]


def no_boxes() -> str:
    """Why no code can be confined here, empty if it can."""
    try:
        return "" if capabilities().safe else "this machine cannot confine code"
    except SandboxTooWeak as error:
        return str(error)


@contextmanager
def failing_model(_: Server) -> Iterator[Trouble]:
    """A model in a process of its own."""
    with MockModel.process(faults=Faults(WAY, seed=1, retry_after_seconds=None)) as model:
        trouble = Trouble(model.url)
        yield trouble
        trouble.faults = sum(model.stats()["faults"].values())


@contextmanager
def repeated(act: Callable[[Server], bool], pause_seconds: float, server: Server) -> Iterator[Trouble]:
    """The same again and again, while rollouts run. An act returns whether it did something."""
    over, acts, trouble = Event(), [False], Trouble()

    def loop() -> None:
        if over.wait(0.15):
            return
        acts.append(act(server))
        while not over.wait(pause_seconds):
            acts.append(act(server))

    with ThreadPoolExecutor(1) as thread:
        acting = thread.submit(loop)
        try:
            yield trouble
        finally:
            over.set()
        acting.result()
        trouble.faults = sum(acts)


def kill_a_child(server: Server) -> bool:
    """A worker process, or a box: its `bwrap`, not the code in it, whose end is its own to answer for."""
    pids = server.worker_pids()
    with suppress(ProcessLookupError):
        os.kill(random.choice(pids or [0]), 9 if pids else 0)
    return bool(pids)


def kill_the_server(server: Server) -> bool:
    server.kill()
    server.__enter__()
    return True


def hide_the_store(server: Server) -> bool:
    aside = server.store.rename(server.store.with_suffix(".aside"))
    time.sleep(0.2)
    aside.rename(server.store)
    return recovered(server)


def fill_the_disk(server: Server) -> bool:
    """No file of the server may grow beyond 16 kB, which is what a full disk looks like from inside."""
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (2**14, resource.RLIM_INFINITY))
    time.sleep(0.2)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return recovered(server)


def recovered(server: Server) -> bool:
    """Wait until the store takes rollouts again."""
    until(lambda: server.health()["status"] == "healthy", 60, "the store recovers")
    return True
