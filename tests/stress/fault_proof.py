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
from itertools import chain
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
IN_FLIGHT, SEEDS, TRIES = 128, 200, 600
WAY = dict.fromkeys(
    ("403", "408", "429", "500", "502", "503", "reset", "truncated", "hang", "malformed", "content_type", "error_200",
     "redirect", "empty"), 0.01
)  # fmt: skip
"""Faults of a model's host and of the way there, and their shares of the calls."""
UNREADABLE = dict.fromkeys(("blank", "length", "content_filter", "refusal"), 0.05)
"""Answers of a judge without a verdict. For a policy's model, these are not faults: they are its answers."""
RAISING = ("step", "reset", "final state", "close", "unspeakable", "sys exit", "out of memory", "stop iteration",
           "generator exit", "cancelled", "timeout", "not json", "not finite", "endless", "surrogate", "large number",
           "rubric", "rubric exits", "rubric is not finite")  # fmt: skip
DEADLY = ("segfault", "exit", "kill itself")
HOSTILE = ("import os\ndef f(): os._exit(0)", "import os\ndef f(): os.kill(os.getppid(), 9)",
           "def f(): return 'x' * 10**10")  # fmt: skip
BEFORE_PLAYING = {"store_failing", "saturated", "draining"}
"""Codes of rejected requests, which callers send again."""
RANDOM = {"policy": "random"}
Json = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A rollout's request, and the reward that the episode deserves: None if it cannot end without a failure.

    faults: the number of faults in the request itself. gone: whether its caller hangs up and never comes back.
    """

    request: Json
    deserved: Reward | None
    faults: int = 0
    gone: bool = False


@dataclass
class Trouble:
    """The cause of faults while rollouts run. url: of a model that fails. faults: their number, set at the end."""

    url: str = ""
    faults: int = 0


@contextmanager
def quiet(faults: Callable[[], int] = int) -> Iterator[Trouble]:
    """Count faults whose cause is not started here."""
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
    """The rollouts of one kind, the number of faults, and the reason if none were played."""

    kind: str
    faults: int = 0
    missing: str = ""
    tally: Tally = field(default_factory=Tally)


def prove(folder: Path, rollouts: int) -> list[Result]:
    """Play a tenth of the rollouts under each kind of faults, on real servers in separate processes."""
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
    """Return a server of fault_app.py. judges: the address of the judge's model."""
    variables = {"PYTHONPATH": str(HERE), "TASKAPP_JUDGE_URL": judges, "TASKAPP_JUDGE_MODEL": "m"}
    return Server(folder, *arguments, app=HERE / "fault_app.py", **variables)


def _said(request: ChatRequest) -> float:
    """Return the judge's score of an answer that contains a number. It is never 0, so a failure cannot equal it."""
    return (int(re.findall(r"answer (\d+)", request.text)[-1]) % 9 + 1) / 10


def deserved_of(server: Server, policy: Json) -> list[Reward]:
    """Return digest and reward of `steps` without faults, by seed. Each reward is also computed from the actions."""
    found = []
    requests = [asked("steps", seed, policy) for seed in range(SEEDS)]
    batches = [asyncio.run(ask_all(server, requests[first : first + 20])) for first in range(0, SEEDS, 20)]
    for told in chain.from_iterable(batches):
        assert told.status == 200, told.body
        amounts = [call["args"]["by"] for step in told.body["trajectories"][0]["steps"] for call in step["tool_calls"]]
        assert abs(told.body["reward"] - sum(amounts) / len(amounts) / 10) < 1e-9, told.body
        found.append((told.body["digest"], told.body["reward"]))
    return found


def asked(environment: str, seed: int, policy: Json, seconds: float | None = None, **config: Any) -> Json:
    """Return the request of a rollout. seconds: its deadline."""
    return {**body(environment, seed=seed, max_time_seconds=seconds, **config), "policy": {"config": policy}}


def model_at(url: str) -> Json:
    return {"inference_url": url, "model": "m"}


# -- playing and counting ------------------------------------------------------------------------------------------


def play(server: Server, kind: Kind, rollouts: int) -> Result:
    """Play the rollouts of one kind, and count them when the server is idle."""
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
    print(result, flush=True)
    return result


async def _ask(server: Server, kind: Kind, cases: Sequence[Case], told: dict[str, tuple[Case, Json]]) -> None:
    """Request all rollouts. At most half of them are in flight, so that some run after the first fault."""
    chance, numbers = random.Random(len(cases)), iter(range(len(cases)))
    timeout, connector = aiohttp.ClientTimeout(total=900), aiohttp.TCPConnector(limit=0)

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
    """Return the response to one rollout, {} without one."""
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
    """Combine the response with the rows of the store. Every reward counts, also one that no caller received."""
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
    """Return all kinds. deserved, modelled: rewards by seed, of `random` and of a model. judged: counts judges' faults."""

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
        return Case(asked("boxed", number, policy), ("", 0.0 if hostile else worth / 5), hostile)

    def hurried(number: int, _: str) -> Case:
        return fine(number, (0.02, 0.1, 0.2, 10)[number % 4], 0.05, faults=number % 4 < 3)

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
            partial(repeated, kill_a_child, 1),
            missing=no_boxes(),
        ),
        Kind("store", ("store_failed",), plain, partial(repeated, hide_the_store, 1)),
        Kind(
            "worker", ("worker_died",), partial(broken, 100, DEADLY), partial(repeated, kill_a_child, 1), workers=True
        ),
        Kind("client", ("cancelled",), left),
        Kind("deadline", ("deadline", "no_thread"), hurried),
        Kind("disk", ("store_failed",), plain, partial(repeated, fill_the_disk, 1)),
        Kind("kill -9", (), plain, partial(repeated, kill_the_server, 4), again=True),
    ]


def no_boxes() -> str:
    """Return why this machine cannot confine code, or an empty string."""
    try:
        return "" if capabilities().safe else "this machine cannot confine code"
    except SandboxTooWeak as error:
        return str(error)


@contextmanager
def failing_model(_: Server) -> Iterator[Trouble]:
    """Start a failing model in a separate process."""
    with MockModel.process(faults=Faults(WAY, seed=1, retry_after_seconds=None)) as model:
        trouble = Trouble(model.url)
        yield trouble
        trouble.faults = sum(model.stats()["faults"].values())


@contextmanager
def repeated(act: Callable[[Server], bool], pause_seconds: float, server: Server) -> Iterator[Trouble]:
    """Call `act` repeatedly while rollouts run. It returns whether it caused a fault."""
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
    """Kill a worker process, or the `bwrap` of a box."""
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
    """Let no file of the server grow beyond 16 kB for a moment: to its store, the disk is full."""
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (2**14, resource.RLIM_INFINITY))
    time.sleep(0.2)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return recovered(server)


def recovered(server: Server) -> bool:
    """Wait until the store accepts rollouts."""
    until(lambda: server.health(60)["status"] == "healthy", 60, "the store recovers")
    return True
