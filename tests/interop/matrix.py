"""The matrix: unchanged clients of others drive a served app, and what they see is compared with `POST /rollout`.

`CLIENTS` (matrix_clients.py) lists the clients. Each has a program in `clients/` that does not know the expected results.
test_matrix.py runs them.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx

from taskapp_kit.declare.discovery import find_app
from taskapp_kit.deploy.packaging.verifiers_package import write_verifiers_package
from taskapp_kit.testing import ChatRequest, MockModel, bad
from tests.interop.matrix_app import PLAYED
from tests.interop.matrix_clients import AT_ONCE, COLUMNS, ENVIRONMENTS, FAILURES, Client
from tests.interop.peer_programs import HERE, ROOT, free_port, python_of, server_process

APP = HERE / "matrix_app.py"
SEED, BAD_SEED = 5, 6
BAD = {
    "adder": ("add", {"amount": 9}),
    "crafter": ("interact", {"actions": ["fly"]}),
    "math": ("submit", {"answer": []}),
    "web": ("click", {"bid": 10_000}),
}
"""An action with a value that the environment refuses."""
NOWHERE = "http://127.0.0.1:9/v1"
PROGRAM_SECONDS = 280.0
FRAGMENT = 6
"""A client that shows this many consecutive characters of a key leaks it."""


@dataclass(frozen=True)
class Expected:
    """An episode in the response of `POST /rollout`. rewards: of the steps; the last includes the outcome."""

    actions: list[tuple[str, dict[str, Any]]]
    observations: list[str]
    environment_rewards: list[float]
    rewards: list[float]
    outcome: float
    digest: str


class Matrix:
    """A served app, the model that plays its episodes, and the clients' runs against them."""

    def __init__(self, url: str, key: str, model: MockModel, home: Path, variables: dict[str, str], app: str) -> None:
        self.url, self.key, self.home, self.variables, self.app = url, key, home, variables, app
        self._model = model
        self._http = httpx.Client(base_url=url, headers={"X-API-Key": key}, timeout=120)
        self._expected: dict[tuple[str, int], Expected] = {}
        self._scripts: dict[str, dict[str, list[Any]]] = {}
        self.wrong_key = secrets.token_hex(16)

    def expected(self, environment: str, seed: int) -> Expected:
        """Return the episode of a bundled environment, as `POST /rollout` plays it with the app's policy."""
        if (environment, seed) not in self._expected:
            self._expected[environment, seed] = self._rollout(environment, seed)
        return self._expected[environment, seed]

    def seeds(self, environment: str, client: Client) -> list[int]:
        """Return the seeds to play concurrently. Their first observations differ, so that the model can tell episodes apart."""
        found: dict[str, int] = {}
        for seed in itertools.count():
            expected = self.expected(environment, seed)
            first = expected.observations[0]
            if first not in found or self.expected(environment, found[first]).actions == expected.actions:
                found[first if first not in found else f"{seed}"] = seed
            if len(found) == client.at_once:
                return list(found.values())
        raise AssertionError

    def _rollout(self, environment: str, seed: int) -> Expected:
        body = {
            "run_id": "expected",
            "env": {"env_name": environment, "seed": seed, "config": {}},
            "policy": {"config": {"policy": PLAYED}},
            "ops": [],
            "mode": "eval",
        }
        answer = self._http.post("/rollout", json=body)
        answer.raise_for_status()
        rollout = answer.json()
        (trajectory,) = rollout["trajectories"]
        steps, outcome = trajectory["steps"], rollout["metrics"]["outcome_score"]
        paid = [step["reward"] or 0.0 for step in steps]
        rewards = [*paid[:-1], paid[-1] + outcome]
        assert math.isclose(sum(rewards), rollout["reward"], abs_tol=1e-9), "the app's reward is return plus outcome"
        return Expected(
            [(call["tool"], call["args"]) for step in steps for call in step["tool_calls"]],
            [trajectory["trace"]["initial_observation"]["text"], *(step["obs"]["text"] for step in steps)],
            paid,
            rewards,
            outcome,
            rollout["digest"],
        )

    def answer(self, request: ChatRequest) -> Any:
        """Answer as the model of an item. The first observation in the request identifies the episode."""
        script = self._scripts[request.path.split("/")[2]]
        text = request.text
        actions = next((actions for first, actions in script.items() if first in text), None)
        if actions is None:
            return "I do not know this task."
        tool, args = actions[min(request.turn, len(actions) - 1)]
        return {tool: args}

    # -- the plan -------------------------------------------------------------------------------------------------

    def plan(self, client: Client, environments: Sequence[str], *, failures: bool) -> dict[str, Any]:
        """Return the input of the client's program."""
        items = []
        for environment in environments:
            items += self._items(client, environment)
        if failures:
            names = [name for name in FAILURES if name not in client.cannot]
            failing = [self._episode(FAILURES[name].environment, SEED, [("go", {})] * 4) for name in names]
            items.append(self._item("failures", failing))
        items += [
            {"cell": f"{environment}/{call}", "call": call, "episodes": [self._episode(environment, SEED, [])]}
            for call, environment in client.calls
            if (environment in environments or (failures and environment not in ENVIRONMENTS))
        ]
        return {"url": self.url, "key": self.key, "app": self.app, "items": items}

    def _items(self, client: Client, environment: str) -> Iterator[dict[str, Any]]:
        def episode(seed: int, *before: Any) -> dict[str, Any]:
            return self._episode(environment, seed, [*before, *self.expected(environment, seed).actions])

        yield self._item(f"{environment}/play", [episode(SEED)])
        if "bad action" not in client.cannot:
            yield self._item(f"{environment}/bad action", [episode(BAD_SEED, BAD[environment])])
        if "wrong key" not in client.cannot:
            yield {**self._item(f"{environment}/wrong key", [episode(SEED)]), "key": self.wrong_key}
        if AT_ONCE not in client.cannot:
            yield self._item(f"{environment}/{AT_ONCE}", [episode(seed) for seed in self.seeds(environment, client)])

    def _episode(self, environment: str, seed: int, actions: Sequence[Any]) -> dict[str, Any]:
        return {"environment": environment, "seed": seed, "actions": list(actions)}

    def _item(self, cell: str, episodes: list[dict[str, Any]]) -> dict[str, Any]:
        """Return an item with the address of a model that plays it."""
        name = f"{len(self._scripts)}"
        self._scripts[name] = {self._first(one): one["actions"] for one in episodes}
        return {
            "cell": cell,
            "model": f"{self._model.url.rstrip('/').removesuffix('/v1')}/items/{name}/v1",
            "episodes": episodes,
        }

    def _first(self, episode: dict[str, Any]) -> str:
        """Return the first observation of an episode."""
        environment, seed = episode["environment"], episode["seed"]
        if any(environment == failure.environment for failure in FAILURES.values()):
            return f"{environment} seed {seed}"
        return self.expected(environment, seed).observations[0]

    @cached_property
    def package(self) -> Path:
        """The app as an installed package for verifiers: a directory for PYTHONPATH."""
        folder = self.home / "package"
        folder.mkdir()
        write_verifiers_package(find_app(self.app), self.app, folder / "source", beside=folder)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder / "site")]
        done = subprocess.run(
            [*command, str(folder / "source")], capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"The package for verifiers could not be installed: {done.stderr[-2000:]}")
        return folder / "site"

    # -- the run --------------------------------------------------------------------------------------------------

    def run(self, client: Client, environments: Sequence[str] = ENVIRONMENTS, *, failures: bool = True) -> Seen:
        """Return what the client saw. Raises RuntimeError if its program fails."""
        python = str(python_of(client.peer)) if client.peer else sys.executable
        plan = self.plan(client, environments, failures=failures)
        variables = {"PATH": os.environ["PATH"], "HOME": str(self.home), "HF_HUB_OFFLINE": "1", **client.variables}
        if client.way == "adapter":  # it plays the app in its own process, or at the URL
            paths = [str(ROOT), *([str(self.package)] if client.packaged else [])]
            variables |= {"PYTHONPATH": os.pathsep.join(paths), **self.variables}
        done = subprocess.run(
            [python, str(HERE / "clients" / client.program), *client.arguments],
            input=json.dumps(plan),
            env=variables,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=PROGRAM_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{client.program} ended with status {done.returncode}: {done.stderr[-4000:]}")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert [line["cell"] for line in lines] == [item["cell"] for item in plan["items"]]
        return Seen(self, client, {line["cell"]: line["seen"] for line in lines}, {line["peer"] for line in lines})


@dataclass(frozen=True)
class Seen:
    """What a client saw, and whether it is as expected."""

    matrix: Matrix
    client: Client
    items: dict[str, list[dict[str, Any]]]
    peers: set[str]

    @cached_property
    def cells(self) -> dict[tuple[str, str], str | None]:
        """By environment (or failure) and column: None if the cell is as expected, otherwise the difference."""
        found: dict[tuple[str, str], str | None] = {}
        for environment in [cell.removesuffix("/play") for cell in self.items if cell.endswith("/play")]:
            for column in COLUMNS:
                if column not in self.client.cannot:
                    found[environment, column] = _problem(self._check, environment, column)
        names = [name for name in FAILURES if name not in self.client.cannot]
        for name, seen in zip(names, self.items.get("failures", ()), strict=False):
            found["failures", name] = _problem(self._check_failure, name, seen)
        if self.peers != {self.client.name}:
            found["client", "version"] = f"it is {self.peers}, not {self.client.name}"
        return found

    def more(self, environment: str, call: str) -> dict[str, Any]:
        """Return the result of a call of the program."""
        (seen,) = self.items[f"{environment}/{call}"]
        assert seen["error"] is None, seen["error"]
        found: dict[str, Any] = seen["more"]
        return found

    def _check(self, environment: str, column: str) -> None:
        if column in ("reset", "step", "reward", "end"):
            (seen,) = self.items[f"{environment}/play"]
            self._check_episode(seen, self.matrix.expected(environment, SEED), column)
            return
        found = self.items[f"{environment}/{column}"]
        if column == AT_ONCE:
            assert len(found) == self.client.at_once
            for seed, seen in zip(self.matrix.seeds(environment, self.client), found, strict=True):
                for part in ("reset", "step", "reward", "end"):
                    self._check_episode(seen, self.matrix.expected(environment, seed), part)
        elif column == "bad action":
            self._check_bad(found[0], self.matrix.expected(environment, BAD_SEED))
        else:
            (seen,) = found
            assert seen["error"] is not None and not seen["observations"], seen
            shown = json.dumps(seen)
            for key in (self.matrix.key, *(() if self.client.shows_own_key else (self.matrix.wrong_key,))):
                pieces = (key[at : at + FRAGMENT] for at in range(len(key) - FRAGMENT + 1))
                assert not any(piece in shown for piece in pieces), "the error contains a part of a key"

    def _check_episode(self, seen: dict[str, Any], expected: Expected, part: str) -> None:
        assert seen["error"] is None, seen["error"]
        if part == "reset":
            assert seen["observations"][0] == expected.observations[0]
        elif part == "step":
            assert seen["observations"] == self._shown(expected)
        elif part == "reward":
            right = expected.rewards if self.client.rewards == "session" else expected.environment_rewards
            if self.client.rewards == "episode":
                assert math.isclose(seen["more"]["reward"], sum(expected.rewards), abs_tol=1e-6)
            else:
                paid = [reward or 0.0 for reward in seen["rewards"]]
                assert len(paid) == len(right), (paid, right)
                assert all(math.isclose(one, other, abs_tol=1e-6) for one, other in zip(paid, right, strict=True)), (
                    paid,
                    right,
                )
            if self.client.rewards == "environment":
                assert math.isclose(seen["more"]["outcome_score"], expected.outcome, abs_tol=1e-6)
        else:
            assert seen["done"], "the client does not know that the episode has ended"
            assert len(seen["observations"]) == len(self._shown(expected))
            assert self.client.rewards != "episode" or "digest" in seen["more"]
        if "digest" in seen["more"]:
            assert seen["more"]["digest"] == expected.digest

    def _shown(self, expected: Expected) -> list[str]:
        """Return the observations that the client receives."""
        missing = not self.client.sees_last or (not self.client.sees_empty and not expected.observations[-1])
        return expected.observations[:-1] if missing else expected.observations

    def _check_bad(self, seen: dict[str, Any], expected: Expected) -> None:
        assert seen["error"] is None, seen["error"]
        first, second, *rest = seen["observations"]
        assert first == expected.observations[0]
        assert second.strip() and second != expected.observations[1], "the refusal is shown in place of an observation"
        assert not seen["rewards"] or seen["rewards"][0] in (None, 0.0)
        assert rest == expected.observations[1 : 1 + len(rest)], "the episode continues"
        assert len(rest) >= len(self._shown(expected)) - 2, "it ends as before, or one turn sooner at the limit"
        if "refused" in seen["more"]:
            assert seen["more"]["refused"] == [True] + [False] * len(rest)
        assert seen["done"]

    def _check_failure(self, name: str, seen: dict[str, Any]) -> None:
        failure = FAILURES[name]
        assert "sentinel" not in json.dumps(seen), "the client saw the text of the exception"
        if failure.boundary is None:
            assert seen["error"] is None, seen["error"]
            assert seen["done"] and len(seen["observations"]) == (4 if self.client.sees_last else 3)
            assert set(seen["observations"][1:]) == {"not this way"}
            return
        error = seen["error"]
        assert error is not None, f"it is not a failure: {seen}"
        named = self.client.error if isinstance(self.client.error, str) else self.client.error[name]
        assert error["type"] == named, error
        paid = [*seen["rewards"], seen["more"].get("reward")]
        assert all(reward in (None, "nan") for reward in paid), "a failure is never a reward"
        assert failure.boundary in error["text"], error["text"]


def _problem(check: Any, *given: Any) -> str | None:
    try:
        check(*given)
    except (AssertionError, KeyError, IndexError, ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"[:1500]
    return None


@contextmanager
def served(app: str = str(APP), **variables: str) -> Iterator[Matrix]:
    """Run `taskapp serve … --protocols all --workers 2` with a key, and the models that it and the clients call."""
    key = secrets.token_hex(16)
    with tempfile.TemporaryDirectory() as folder, MockModel(bad()) as judge:
        home = Path(folder)
        models = {
            "TASKAPP_JUDGE_URL": judge.url,
            "TASKAPP_JUDGE_MODEL": "judge",
            "TASKAPP_USER_URL": NOWHERE,
            "TASKAPP_USER_MODEL": "user",
        }
        url = f"http://127.0.0.1:{(port := free_port())}"
        command = [sys.executable, "-m", "taskapp_kit", "serve", app, "--protocols", "all", "--workers", "2"]
        command += ["--gold", "--store", "none", "--port", str(port)]
        holder: list[Matrix] = []
        with (
            MockModel(lambda request: holder[0].answer(request), record=10) as model,  # noqa: PLW0108
            server_process(
                command,
                f"{url}/health",
                home / "server.log",
                PYTHONPATH=str(ROOT),
                ENVIRONMENT_API_KEY=key,
                **models,
                **variables,
            ),
        ):
            holder.append(Matrix(url, key, model, home, models, app))
            yield holder[0]
