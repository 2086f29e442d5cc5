"""Plays the rollouts of a server over HTTP, and collects what each of them left."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import canonical
import scripted
from plan import OTHERWISE_IN_WORKERS, ROOT, Case, Server, cases, matches

from taskapp_kit.sandbox import capabilities
from taskapp_kit.testing import MockModel, judge

KEY = "golden-key-of-nobody-0123456789"
START_SECONDS, ANSWER_SECONDS, STOP_SECONDS = 120, 300, 40
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONHASHSEED", "PYTHONPATH", "VIRTUAL_ENV")
Texts = dict[str, str]
"""Kind to canonical text."""


@dataclass
class Answer:
    """The last HTTP answer of a rollout. streamed: the events' data, where they were asked for."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    streamed: list[bytes] = field(default_factory=list)

    @property
    def rollout_id(self) -> str | None:
        """The id in it; None where nothing ran."""
        found = re.search(rb'"rollout_id":"([0-9a-f]{32})"', self.body)
        return found[1].decode() if found else None


def missing(server: Server) -> str | None:
    """Why this machine cannot play the server's rollouts; None when it can."""
    for package in server.needs:
        if find_spec(package) is None:
            return f"{server.name} needs the package {package}"
    if server.sandbox and not capabilities().safe:
        return f"{server.name} needs bubblewrap (Debian: apt-get install bubblewrap), or root"
    return None


def play(
    server: Server, scratch: Path, only: str = "*", *, share: int | None = None, concurrency: int = 16, workers: int = 0
) -> dict[str, Texts]:
    """Serves the app, plays its rollouts, and returns their texts by name. Raises AssertionError, OSError.

    only: rollouts by their names (see `plan.matches`). share: about so many of each environment and policy. concurrency: requests
    at once. workers: processes that play.
    """
    folder = scratch / server.name
    folder.mkdir(parents=True)
    scripts: dict[str, tuple[str, scripted.Moves]] = {}
    with ExitStack() as stack:
        model = stack.enter_context(MockModel(scripted.player(scripts), record=100_000))
        addresses = {"MODEL": model.root}
        if server.variables:
            addresses["JUDGE"] = stack.enter_context(MockModel(_judging)).root
            addresses["CUSTOMER"] = stack.enter_context(MockModel(scripted.customer)).root
            addresses["REWARDER"] = stack.enter_context(_rewarder())
        whole = server.groups > 0 and matches(f"{server.name}.app.group.0", only)
        chosen = [case for case in cases(server, model.root, share) if whole or matches(case.name, only)]
        if workers:
            chosen = [case for case in chosen if not matches(case.name, OTHERWISE_IN_WORKERS)]
        scripts.update({case.name: (case.persona, case.moves) for case in chosen if case.persona is not None})
        with _served(server, folder, addresses, workers) as address, ThreadPoolExecutor(concurrency) as pool:
            addresses["SERVER"] = address
            played = dict(
                zip([case.name for case in chosen], pool.map(lambda c: _rollout(address, c), chosen), strict=True)
            )
            listed = _listed(address)
            ids = {name: answer.rollout_id for name, answer in played.items()}
            fetched = dict(
                zip(
                    ids,
                    pool.map(lambda one: _fetched(address, one) if one in listed else None, ids.values()),
                    strict=True,
                )
            )
            others = _others(server, address, played)
        places = {url.removeprefix("http://"): name for name, url in addresses.items()}
        words = canonical.Words({**places, str(folder): "FOLDER", str(ROOT): "ROOT"})
        requests = defaultdict(list)
        for request in model.requests:
            requests[request.cid].append((request.path, request.body))
    with closing(sqlite3.connect(folder / "rollouts.db")) as store:
        for (png,) in store.execute("SELECT bytes FROM blobs"):
            words.learn(png)
        texts = {
            name: _texts(words, name, answer, listed, fetched[name], store, requests.get(name, []))
            for name, answer in played.items()
        }
        kept = {row[0] for row in store.execute("SELECT rollout_id FROM rollouts")}
    assert kept == {one for one in ids.values() if one in kept}, "the store has rollouts that nobody was answered"
    assert kept == set(listed), "GET /rollouts lists others than the store has"
    for name, answer in others.items():
        texts[name] = {"answer": canonical.answer(words, answer.status, answer.headers, answer.body)}
    return {name: found for name, found in texts.items() if matches(name, only)}


def _texts(
    words: canonical.Words,
    name: str,
    answer: Answer,
    listed: Mapping[str, Any],
    fetched: Answer | None,
    store: sqlite3.Connection,
    requests: list[tuple[str, Any]],
) -> Texts:
    texts = {"answer": canonical.answer(words, answer.status, answer.headers, answer.body)}
    if requests:
        texts["model"] = canonical.asked(words, requests)
    rollout_id = answer.rollout_id
    row, columns = _row(store, "rollouts", rollout_id)
    if row is None:
        assert answer.status in (400, 422), f"{name} was answered {answer.status} and is not in the store"
        return texts
    assert rollout_id is not None
    assert fetched is not None
    values = dict(zip(columns, row, strict=True))
    texts["digest"] = f"{values['digest']}\n{values['observation_digest']}"
    events = canonical.unpacked(values["events_encoding"], values["events"])
    if answer.streamed:
        assert b"[" + b",".join(answer.streamed) + b"]" == events, f"{name}: the stream has other events than the store"
    texts["events"] = words.text(events.decode())
    with_address = '"inference_url"' in values["policy"]
    parts = [canonical.row(words, columns, row, with_address=with_address)]
    ticket, columns = _row(store, canonical.IDEMPOTENCY_TABLE, rollout_id)
    if ticket is not None:
        parts.append(canonical.row(words, columns, ticket, with_address=with_address))
        values = dict(zip(columns, ticket, strict=True))
        if values["answer"] is not None:
            body = canonical.unpacked(values["answer_encoding"], values["answer"])
            assert body == answer.body, f"{name}: the ticket has another answer than was given"
    parts.append(words.text(json.dumps(listed[rollout_id], ensure_ascii=False, separators=(",", ":"))))
    parts.append(canonical.answer(words, fetched.status, fetched.headers, fetched.body))
    texts["row"] = "\n\n".join(parts)
    return texts


def _row(store: sqlite3.Connection, table: str, rollout_id: str | None) -> tuple[tuple[Any, ...] | None, list[str]]:
    found = store.execute(f"SELECT * FROM {table} WHERE rollout_id = ?", (rollout_id,))
    return found.fetchone(), [column[0] for column in found.description]


# -- HTTP -------------------------------------------------------------------------------------------------------------


def _ask(address: str, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
    """One request on a connection of its own. Raises OSError and http.client.HTTPException."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=ANSWER_SECONDS)
    try:
        sent = None if body is None else json.dumps(body).encode()
        connection.request(
            method, path, sent, {"X-API-Key": KEY, "Content-Type": "application/json", **(headers or {})}
        )
        answer = connection.getresponse()
        return Answer(answer.status, answer.getheaders(), answer.read())
    finally:
        connection.close()


def _rollout(address: str, case: Case) -> Answer:
    """The rollout's answer, whichever way it was asked for; a repeated request has to be answered with the same bytes."""
    answer = _ask(address, "POST", "/rollout", case.body, case.headers)
    if case.cancel_after is not None:
        place = dict(answer.headers)["location"]
        while json.loads(_ask(address, "GET", place).body)["events"] < case.cancel_after:
            time.sleep(0.05)
        _ask(address, "DELETE", place)
    while answer.status == 202:
        answer = _ask(address, "GET", dict(answer.headers)["location"], headers={"Prefer": "wait=60"})
    if dict(answer.headers).get("content-type", "").startswith("text/event-stream"):
        answer = _unstreamed(answer)
    elif "Idempotency-Key" in case.headers and answer.status == 200 and "Prefer" not in case.headers:
        again = _ask(address, "POST", "/rollout", case.body, case.headers)
        assert again.body == answer.body, f"{case.name}: the same request was answered with other bytes"
    return answer


def _unstreamed(answer: Answer) -> Answer:
    """The stream's result as its body, and its events."""
    frames = [
        dict(line.split(b": ", 1) for line in frame.split(b"\n") if not line.startswith(b":"))
        for frame in answer.body.rstrip(b"\n").split(b"\n\n")
    ]
    frames = [frame for frame in frames if frame]
    assert [frame[b"id"] for frame in frames[:-1]] == [b"%d" % number for number in range(len(frames) - 1)]
    headers = [(name, value) for name, value in answer.headers if name.lower() != "location"]
    result = frames[-1]
    headers.append(("event", result[b"event"].decode()))
    return Answer(answer.status, headers, result[b"data"], [frame[b"data"] for frame in frames[:-1]])


def _listed(address: str) -> dict[str, Any]:
    """The rows of `GET /rollouts` by id."""
    rows: dict[str, Any] = {}
    cursor = ""
    while cursor is not None:
        answer = _ask(address, "GET", f"/rollouts?limit=500{cursor and '&cursor=' + cursor}")
        page = json.loads(answer.body)
        rows |= {row["id"]: row for row in page["rollouts"]}
        cursor = page["next_cursor"]
    return rows


def _fetched(address: str, rollout_id: str | None) -> Answer:
    return _ask(address, "GET", f"/rollouts/{rollout_id}?events=1")


def _others(server: Server, address: str, played: Mapping[str, Answer]) -> dict[str, Answer]:
    """What is answered besides rollouts: the app, its tasks, and groups that judges rank."""
    found = {f"{server.name}.app.info.0": _ask(address, "GET", "/info")}
    for environment in server.environments:
        path = f"/task_info?environment={environment.name}"
        seeds = "".join(f"&seed={seed}" for seed in list(environment.seeds)[:3])
        found[f"{server.name}.{environment.name}.task_info.0"] = _ask(address, "GET", path)
        found[f"{server.name}.{environment.name}.task_info.1"] = _ask(address, "GET", path + seeds)
    members = [answer.rollout_id for name, answer in played.items() if ".constant." in name and answer.status == 200]
    for number in range(min(server.groups, len(members) - 20)):
        ids = [str(members[number + step]) for step in (0, 10, 20)]
        answer = _ask(address, "POST", "/score_group", {"rollout_ids": ids})
        for place, one in enumerate(ids):
            answer.body = answer.body.replace(one.encode(), b"member %d" % place)
        found[f"{server.name}.app.group.{number}"] = answer
    return found


# -- servers ----------------------------------------------------------------------------------------------------------


@contextmanager
def _served(server: Server, folder: Path, addresses: Mapping[str, str], workers: int) -> Iterator[str]:
    """`taskapp serve` with a store of its own in `folder`; its address. Raises AssertionError when it does not start."""
    taskapp = [sys.executable, "-m", "taskapp_kit"]
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    variables = {name: _put(value, addresses) for name, value in server.variables.items()}
    environ = {**kept, **variables, "ENVIRONMENT_API_KEY": KEY, "PYTHONUNBUFFERED": "1"}
    app = server.app
    if server.template:
        name = server.environments[0].name
        subprocess.run(
            [*taskapp, "init", name, "--template", app], cwd=folder, env=environ, check=True, capture_output=True
        )
        app = str(folder / name / f"{name}.py")
    log = folder / "server.log"
    command = [
        *taskapp,
        "serve",
        app,
        "--port",
        "0",
        "--store",
        f"sqlite:///{folder}/rollouts.db",
        "--log-level",
        "error",
    ]
    with log.open("wb") as writing:
        process = subprocess.Popen(
            [*command, "--workers", str(workers)], cwd=folder, env=environ, stdout=writing, stderr=subprocess.STDOUT
        )
    try:
        yield _address(process, log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_SECONDS) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _put(value: str, addresses: Mapping[str, str]) -> str:
    """`JUDGE/v1` with the judge's address."""
    name, slash, path = value.partition("/")
    return f"{addresses[name]}/{path}" if slash and name in addresses else value


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        found = re.search(r" at (http://127\.0\.0\.1:\d+)\n", log.read_text())
        if found:
            return found[1]
        time.sleep(0.05)
    raise AssertionError(f"the server did not start:\n{log.read_text()}")


_verdict = judge(lambda request: len(request.text) % 5 / 4, reason="As <it> “seems”.")


def _judging(request: Any) -> Any:
    """Scores by the length of what it reads; the words `mumble` and `refuse` make it unusable."""
    if "mumble" in request.text:
        return "I would say seven out of ten."
    return {"fault": "400"} if "refuse" in request.text else _verdict(request)


@contextmanager
def _rewarder() -> Iterator[str]:
    """A reward model: the score is from -9 to 9."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = json.dumps({"score": len(json.dumps(body["input"])) % 19 - 9}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
