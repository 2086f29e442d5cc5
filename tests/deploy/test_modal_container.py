"""What runs in containers: two of Modal's own container entry points over one Dict, and a memory snapshot.

A container is a process of this machine; its peer is the control plane of `control_more.py`. Two containers are two
planes that share Dicts and what was deployed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("modal", reason="needs taskapp-kit[modal]")

from taskapp_kit.deploy.modal.container import serve, tickets_of, why_not_shared
from taskapp_kit.deploy.modal.idempotency import LEASE_SECONDS
from taskapp_kit.errors import ConfigError
from tests.deploy.control_more import Dicts, WithSandboxes
from tests.deploy.control_plane import HttpAnswer
from tests.deploy.deploys import modal_deploy
from tests.programs import printed
from tests.waiting import until

pytestmark = [pytest.mark.ci, pytest.mark.process, pytest.mark.server]

CHECKOUT = Path(__file__).parents[2]
KEY, VENDOR_KEY = "canary-door-key-5c1f", "canary-vendor-key-77b2"
HEADERS = {"X-API-Key": KEY, "content-type": "application/json"}

APP = '''
"""An environment that takes its time, and notes each episode."""
import os, time
from taskapp_kit import Step, TaskApp, action

app = TaskApp("slow", version="1.0.0")


@app.environment("slow", splits={"train": range(1000)}, max_steps=3)
class Slow:
    """Waits."""

    def __init__(self, seconds: float = 0.0, die: bool = False):
        self.seconds, self.die = seconds, die

    def reset(self, seed: int) -> str:
        with open(os.environ["EPISODES"], "a") as file:
            file.write(f"{seed}\\\\n")
        assert "ENVIRONMENT_API_KEY" not in os.environ
        return f"seed {seed}"

    @action(noop={})
    def wait(self) -> Step:
        """Waits."""
        time.sleep(self.seconds)
        if self.die:
            os.kill(os.getpid(), 9)
        return Step("waited", reward=1.0, terminated=True)
'''.replace("\\\\n", "\\n")

ENTRY = """
import modal

app = modal.App("slow", image=modal.Image.debian_slim().add_local_file("slow_app.py", "/root/slow_app.py"))


@app.function(secrets=[modal.Secret.from_name("slow-env", required_keys=["ENVIRONMENT_API_KEY"])], timeout=600)
@modal.concurrent(max_inputs=32, target_inputs=24)
@modal.asgi_app()
def web():
    from taskapp_kit.deploy.modal.container import serve

    return serve(TARGET, beside=__file__)
"""


def deploy(plane: WithSandboxes, folder: Path, target: str) -> None:
    """The real `modal deploy` of a function that returns `serve(target)`."""
    folder.mkdir(exist_ok=True)
    (folder / "slow_app.py").write_text(APP)
    (folder / "modal_app.py").write_text(ENTRY.replace("TARGET", repr(target)))
    done = modal_deploy(plane, folder)
    assert done.code == 0, done.output


class Two:
    """Two containers of one deploy. episodes: a line for each that was played, in either."""

    def __init__(self, one: WithSandboxes, two: WithSandboxes, dicts: Dicts, episodes: Path, logs: list[Path]) -> None:
        self.one, self.two, self.dicts, self.logs = one, two, dicts, logs
        self._episodes = episodes

    def played(self, seed: int) -> int:
        return self._episodes.read_text().split().count(str(seed)) if self._episodes.exists() else 0


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    with two_containers(tmp_path_factory.mktemp("two")) as two:
        yield two


@contextmanager
def two_containers(folder: Path) -> Iterator[Two]:
    dicts = Dicts()
    secrets = {"slow-env": {"ENVIRONMENT_API_KEY"}}
    with ExitStack() as opened:
        one, two = (opened.enter_context(WithSandboxes(secrets, dicts).running()) for _ in range(2))
        deploy(one, folder / "source", "slow_app:app")
        two.function, two.mounts, two.files, two.images = one.function, one.mounts, one.files, one.images
        environment = {
            "ENVIRONMENT_API_KEY": KEY, "OPENAI_API_KEY": VENDOR_KEY, "EPISODES": str(folder / "episodes"),
        }  # fmt: skip
        for name, plane in (("one", one), ("two", two)):
            (folder / name).mkdir()
            opened.enter_context(plane.container(folder / name, environment))
        yield Two(one, two, dicts, folder / "episodes", [folder / "one" / "log", folder / "two" / "log"])


def rollout(
    plane: WithSandboxes, seed: int, seconds: float = 0.0, *, die: bool = False, timeout: float = 60.0, **headers: str
) -> HttpAnswer:
    """`POST /rollout`; header names with underscores for dashes."""
    body = {
        "run_id": "r",
        "mode": "rl",
        "ops": [],
        "env": {"env_name": "slow", "seed": seed, "config": {"seconds": seconds, "die": die}},
        "policy": {"policy_name": "noop", "config": {"policy": "noop"}},
    }
    sent = HEADERS | {name.replace("_", "-"): value for name, value in headers.items()}
    return plane.http("POST", "/rollout", headers=sent, body=json.dumps(body).encode(), timeout=timeout)


def given(plane: WithSandboxes, place: str, seconds: float) -> HttpAnswer:
    """What lies at the place when its rollout is over."""
    until(lambda: plane.http("GET", place, headers=HEADERS).status != 202, seconds)
    return plane.http("GET", place, headers=HEADERS)


# -- what a container answers ---------------------------------------------------------------------------------------


def test_the_doors_are_closed_and_open_with_the_key(containers: Two) -> None:
    for plane in (containers.one, containers.two):
        healthy = plane.http("GET", "/health", headers=HEADERS, timeout=60)
        assert healthy.status == 200 and json.loads(healthy.body)["healthy"] is True
        assert "sandbox" not in json.loads(healthy.body), "this app uses none"
        told = plane.http("GET", "/task_info?seed=0", headers=HEADERS)
        assert told.status == 200 and b"slow" in told.body
        for headers in ({}, {"X-API-Key": "another"}):
            for method, path in (
                ("GET", "/health"),
                ("GET", "/task_info"),
                ("POST", "/rollout"),
                ("GET", "/rollouts/x"),
            ):
                assert plane.http(method, path, headers=headers, body=b"{}").status == 401
        answer = rollout(plane, 1)
        assert (answer.status, json.loads(answer.body).get("status")) == (200, "terminated"), answer.body


# -- containers together --------------------------------------------------------------------------------------------


@pytest.mark.ci
def test_one_key_sent_to_both_is_one_episode_and_one_answer(containers: Two) -> None:
    with ThreadPoolExecutor(8) as pool:
        planes = [containers.one, containers.two] * 4
        answers = list(pool.map(lambda plane: rollout(plane, 200, 1.5, Idempotency_Key="k-200"), planes))
    assert [answer.status for answer in answers] == [200] * 8, [answer.body for answer in answers]
    assert len({answer.body for answer in answers}) == 1
    assert containers.played(200) == 1
    again = rollout(containers.two, 200, 1.5, Idempotency_Key="k-200")
    assert again.body == answers[0].body and again.headers["idempotent-replayed"] == "true"
    assert containers.played(200) == 1
    assert rollout(containers.two, 201, 1.5, Idempotency_Key="k-200").status == 409
    assert containers.played(201) == 0


@pytest.mark.ci
def test_what_one_was_asked_for_the_other_gives(containers: Two) -> None:
    accepted = rollout(containers.one, 300, 1.5, Prefer="respond-async")
    assert accepted.status == 202, accepted.body
    place = accepted.headers["location"]
    assert containers.two.http("GET", place, headers=HEADERS).status == 202, "it runs in the other"
    found = given(containers.two, place, 30)
    assert found.status == 200 and json.loads(found.body)["status"] == "terminated"
    assert containers.one.http("GET", place, headers=HEADERS).body == found.body
    assert containers.two.http("GET", "/rollouts/" + "0" * 32, headers=HEADERS).status == 404
    assert containers.played(300) == 1


def test_no_key_reaches_a_dict_or_a_log(containers: Two) -> None:
    rollout(containers.one, 400, Idempotency_Key="canary-of-the-caller")
    kept = containers.dicts.everything()
    assert b"ticket/" in kept
    assert set(containers.dicts.named) == {"slow-tickets"}
    written = kept + b"".join(log.read_bytes() for log in containers.logs)
    for canary in (KEY, VENDOR_KEY, "canary-of-the-caller"):
        assert canary.encode() not in written


def test_a_dict_that_is_down_fails_what_needs_it_and_nothing_else(containers: Two) -> None:
    containers.dicts.down = True
    try:
        assert rollout(containers.one, 500).status == 200
        refused = rollout(containers.one, 501, Idempotency_Key="k-501")
        assert refused.status >= 500 and b"canary" not in refused.body
        assert containers.played(501) == 0, "what cannot be held together is not played"
    finally:
        containers.dicts.down = False
    assert rollout(containers.two, 501, Idempotency_Key="k-501").status == 200


@pytest.mark.ci
def test_a_container_that_is_killed_loses_what_it_played_to_the_other(containers: Two) -> None:
    """The last test that uses these containers: one of them is gone after it."""
    accepted = rollout(containers.one, 600, 1.0, die=True, Prefer="respond-async", Idempotency_Key="k-600")
    assert accepted.status == 202
    place = accepted.headers["location"]
    assert containers.two.http("GET", place, headers=HEADERS).status == 202
    found = given(containers.two, place, 3 * LEASE_SECONDS)
    assert found.status == 503 and b"server_died" in found.body
    assert containers.played(600) == 1
    assert rollout(containers.two, 601, Idempotency_Key="k-601").status == 200


# -- a memory snapshot ----------------------------------------------------------------------------------------------

SNAPSHOT = """
import json, os, random, sys, threading

import modal
from modal._runtime.task_lifecycle_manager import _TaskLifecycleManager
_TaskLifecycleManager._singleton = object()  # what Modal's entry point makes: it says that this is a container
assert not modal.is_local()
os.environ["ENVIRONMENT_API_KEY"] = "key-before-the-picture"
from taskapp_kit.deploy.modal.container import preload, serve
preload("slow_app:app", beside=".")
loaded = [name in sys.modules for name in ("slow_app", "fastapi", "taskapp_kit.asgi")]
assert all(loaded), loaded
assert sys.modules["slow_app"].SEEN == {}, "an author's file is not shown the keys, which would lie in the picture"
assert os.environ["ENVIRONMENT_API_KEY"] == "key-before-the-picture"

# Here the picture is taken. What an import left behind would be in it.
def sockets():
    found = []
    for name in os.listdir("/proc/self/fd"):
        try: target = os.readlink(f"/proc/self/fd/{name}")
        except OSError: continue
        if target.startswith("socket:"): found.append(target)
    return found
print(json.dumps({"threads": [t.name for t in threading.enumerate() if t is not threading.main_thread()], "sockets": sockets()}), flush=True)

for number in range(2):
    if os.fork():
        os.wait()
        continue
    os.environ["ENVIRONMENT_API_KEY"] = f"key-of-restore-{number}"  # Modal sets the Secret's values anew
    random.seed(0)  # a fork seeds Python's generator anew, a restore does not
    from starlette.testclient import TestClient
    app = serve("slow_app:app", beside=".", coordinator="memory")
    body = {"run_id": "r", "mode": "rl", "ops": [], "env": {"env_name": "slow"}, "policy": {"policy_name": "noop", "config": {"policy": "noop"}}}
    told = {}
    with TestClient(app) as client:
        told["statuses"] = [client.get("/health", headers={"X-API-Key": key}).status_code for key in ("key-of-restore-0", "key-of-restore-1", "key-before-the-picture")]
        answers = [client.post("/rollout", json=body, headers={"X-API-Key": f"key-of-restore-{number}"}).json() for _ in range(5)]
        told["ids"] = [answer["rollout_id"] for answer in answers]
    print(json.dumps(told), flush=True)
    os._exit(0)
"""


def test_restored_twice_from_one_picture_they_are_two(tmp_path: Path) -> None:
    (tmp_path / "slow_app.py").write_text(APP + "\nSEEN = {name: 1 for name in os.environ if name.endswith('_KEY')}\n")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "EPISODES": str(tmp_path / "episodes")}
    before, one, two = map(json.loads, printed(SNAPSHOT, cwd=tmp_path, env=env, flags=("-W", "ignore")).splitlines())
    assert before == {"threads": [], "sockets": []}
    assert one["statuses"] == [200, 401, 401], "keys are read after the restore"
    assert two["statuses"] == [401, 200, 401]
    assert len({*one["ids"], *two["ids"]}) == 10
    seeds = (tmp_path / "episodes").read_text().split()
    assert len(seeds) == 10 and seeds[:5] != seeds[5:], "seeds are drawn after the restore"


# -- boxes ----------------------------------------------------------------------------------------------------------


# -- what a deploy asks ---------------------------------------------------------------------------------------------


def test_why_it_would_not_hold_together() -> None:
    assert why_not_shared("dict", max_containers=8) is None
    assert why_not_shared("memory", max_containers=1) is None
    for many in (2, None):
        assert "max_containers=1" in str(why_not_shared("memory", max_containers=many))
    assert why_not_shared("store", max_containers=8, keeps=True) is None
    assert "no store is set" in str(why_not_shared("store", max_containers=8))


def test_the_dict_is_named_after_the_app() -> None:
    assert tickets_of("my-app") == "my-app-tickets"
    assert tickets_of("my app/2") == "my-app-2-tickets"
    assert len(tickets_of("x" * 100)) == 64


@pytest.mark.parametrize("coordinator", ["dictionary", "store"])
def test_a_coordinator_that_cannot_be_is_refused(coordinator: Any, tmp_path: Path) -> None:
    (tmp_path / "slow_app.py").write_text(APP)
    with pytest.raises(ConfigError):
        serve("slow_app.py", beside=tmp_path, coordinator=coordinator)
