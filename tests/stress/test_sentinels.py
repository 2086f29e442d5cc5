"""Keys in every place where a key can be, then everything that the server wrote or answered is searched for them.

What an episode is made of is no place for a key: actions and their arguments are recorded, whatever they say. A name that
the caller chose (of an environment, a split, a policy, a field) is quoted in the refusal and may stand nowhere else.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import re
import secrets
import socket
import sqlite3
import string
import threading
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from tests.sentinels import Key, Search
from tests.stress.server import STRESS_APP, Server, body
from tests.waiting import until

pytestmark = pytest.mark.process

KEYS_APP = STRESS_APP.with_name("app_keys.py")
LETTERS = "".join(set(string.ascii_letters) - set("abcdefABCDEF"))
"""No digest has these, so six of them in a row are no chance."""
STREAM = "Accept: text/event-stream"
INPUTS = {
    ".env": "the operator's own file",
    "keys.txt": "the key file, whose plain and hashed lines the operator wrote",
    "keys.txt.new": "the next key file, before it takes its place",
    "planted.txt": "what the author's code is told to show",
}


def a_key(name: str) -> Key:
    """A key that has what files, shells, URLs and JSON have to quote, and ends that stand nowhere else."""
    first, last = ("".join(secrets.choice(LETTERS) for _ in range(8)) for _ in range(2))
    return Key(name, f'{first}/+=%7E~"&<{last}')


class Ring:
    """Every key of a server and of its callers."""

    def __init__(self, server_key: str) -> None:
        names = ("environment", "alias1", "alias2", "development", "plain_line", "hashed_line", "rotated_line",
                 "bad_line", "openai", "groq", "judge", "otlp", "env_file_vendor", "env_file_key",
                 "caller_api_key", "caller_header", "caller_url_password", "caller_unknown", "caller_name",
                 "caller_url_query")  # fmt: skip
        self.keys = {name: a_key(name) for name in names}
        self.keys["server"] = Key("server", server_key)

    def __getattr__(self, name: str) -> str:
        return self.keys[name].text

    @property
    def accepted(self) -> list[str]:
        """Those that the server accepts."""
        return [self.environment, self.alias1, self.alias2, self.development, self.plain_line, self.hashed_line]

    @property
    def of_the_server(self) -> list[Key]:
        """Those that author's code in another process must not have."""
        own = ("environment", "alias1", "alias2", "development", "plain_line", "hashed_line", "env_file_key", "server")
        return [self.keys[name] for name in own]


def a_server(folder: Path, *args: str, app: Path = STRESS_APP, **more: str) -> tuple[Server, Ring]:
    """A server with a key in every place, not started yet; its temporary files go to its folder."""
    (folder / "tmp").mkdir(parents=True)
    server = Server(folder, "--log-level", "debug", "--keys-file", "keys.txt", "--debug-env", *args, app=app, **more)
    ring = Ring(server.key)
    server.variables(
        ENVIRONMENT_API_KEY=ring.environment,
        ENVIRONMENT_API_KEY_ALIASES=f"{ring.alias1},{ring.alias2}",
        DEV_ENVIRONMENT_API_KEY=ring.development,
        OPENAI_API_KEY=ring.openai,
        GROQ_API_KEY=ring.groq,
        TASKAPP_JUDGE_KEY=ring.judge,
        OTEL_EXPORTER_OTLP_HEADERS=f"authorization={quote(ring.otlp)}",
        OTEL_TRACES_EXPORTER="console",
        OTEL_BSP_SCHEDULE_DELAY="100",
        TASKAPP_TRACE_CONTENT="1",
        TMPDIR=str(folder / "tmp"),
    )
    (folder / ".env").write_text(f"MY_VENDOR_KEY='{ring.env_file_vendor}'\nENVIRONMENT_API_KEY='{ring.env_file_key}'\n")
    write_keys(folder, ring)
    return server, ring


def write_keys(folder: Path, ring: Ring, *lines: str) -> None:
    """The key file, in one piece."""
    digest = hashlib.sha256(ring.hashed_line.encode()).hexdigest()
    own = [f"server {ring.server}", f"plain {ring.plain_line} max_in_flight=1", f"hashed sha256:{digest}", *lines]
    (folder / "keys.txt.new").write_text("\n".join(own) + "\n")
    (folder / "keys.txt.new").replace(folder / "keys.txt")


class Caller:
    """Sends bytes, each request on a connection of its own, and keeps every byte that comes back."""

    def __init__(self, server: Server, ring: Ring) -> None:
        self.server, self.ring = server, ring
        self.answers: list[tuple[str, bytes]] = []

    def raw(self, data: bytes, *, seconds: float = 20.0, end: bool = False, until_seen: bytes = b"") -> bytes:
        """The answer, up to the server's end of the connection. until_seen: hangs up once this came."""
        port = int(self.server.url.rpartition(":")[2])
        found = b""
        with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
            try:
                connection.sendall(data)
                if end:
                    connection.shutdown(socket.SHUT_WR)
                while chunk := connection.recv(1 << 16):
                    found += chunk
                    if until_seen and until_seen in found:
                        break
            except TimeoutError:
                raise AssertionError(f"no end of the answer to {data[:200]!r}: {found[-500:]!r}") from None
            except OSError:
                pass  # it closed first
        self.answers.append((data[:80].decode("latin-1"), found))
        return found

    def ask(
        self, verb: str, path: str, *headers: str, content: Any = None, key: str | None = None, **how: Any
    ) -> bytes:
        """A request in HTTP/1.1. content: bytes as they are, anything else as JSON. key: the server's own when None."""
        lines = [f"{verb} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
        if key != "":
            lines.append(f"X-API-Key: {self.ring.environment if key is None else key}")
        data = content if isinstance(content, bytes) else b"" if content is None else json.dumps(content).encode()
        if content is not None:
            lines += [f"Content-Length: {len(data)}"]
            if not any(header.lower().startswith("content-type") for header in headers):
                lines += ["Content-Type: application/json"]
        return self.raw("\r\n".join([*lines, *headers, "", ""]).encode("latin-1") + data, **how)

    def rollout(self, *headers: str, key: str | None = None, status: int | None = 200, **given: Any) -> dict[str, Any]:
        """One rollout; what `body` takes. status: that the answer must have."""
        answer = self.ask("POST", "/rollout", *headers, content=body(**given), key=key)
        head, _, content = answer.partition(b"\r\n\r\n")
        assert status is None or int(head.split()[1]) == status, answer[:2000]
        told: dict[str, Any] = json.loads(content)
        return told


def search_all(server: Server, caller: Caller, keys: list[Key]) -> Search:
    """Looks at every answer, and at every file that the server's folder has."""
    search = Search(keys, allowed=lambda hit: hit.key == "caller_name" and hit.place.startswith("the answer to"))
    for what, answer in caller.answers:
        search.unpack(answer, f"the answer to {what!r}")
    search.folder(server.folder, lambda path: INPUTS.get(path.name))
    return search


def spans(out: Path) -> str:
    """The spans among what a server printed."""
    return "".join(re.findall(r"^\{\n.*?^\}", out.read_text(), re.S | re.M))


def search_processes(server: Server, search: Search, keys: list[Key], vendor: Key) -> None:
    """Looks at command lines, at the environments of worker processes, and at the memory of these for keys."""
    for pid in [server.pid, *server.worker_pids()]:
        search.look(Path(f"/proc/{pid}/cmdline").read_bytes(), f"the command line of {pid}")
    for pid in server.worker_pids():
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        hidden = Search(keys)
        hidden.look(environment, f"the environment of worker {pid}")
        search.hits += hidden.hits
        search.places += 1
        assert b"OPENAI_API_KEY=" in environment, "an author's own key is theirs"
        if memory_hits(pid, [vendor]):  # else the machine forbids to look
            search.hits += memory_hits(pid, keys)
            search.places += 1


def memory_hits(pid: int, keys: list[Key]) -> list[Any]:
    """Keys in the memory of a process; nothing where the machine forbids to look."""
    search = Search(keys, allowed=lambda hit: hit.form not in {"whole", "first six"})
    try:
        with Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                span, rights, *_ = line.split()
                if rights.startswith("rw"):
                    start, end = (int(edge, 16) for edge in span.split("-"))
                    try:
                        memory.seek(start)
                        search.look(memory.read(end - start), f"the memory of worker {pid}")
                    except (OSError, OverflowError):
                        continue
    except PermissionError:
        return []
    return search.hits


# -- all that a caller can do --------------------------------------------------------------------------------------


def every_way_in(caller: Caller) -> None:
    """Each key, each way of sending one, right and wrong."""
    ring = caller.ring
    for key in ring.accepted:
        for header in (f"X-API-Key: {key}", f"Authorization: Bearer {key}", f"X-API-Keys: nobody,{key}",
                       "Authorization: Basic " + base64.b64encode(f"me:{key}".encode()).decode()):  # fmt: skip
            assert b" 200 " in caller.ask("GET", "/health", header, key="")[:15]
        assert caller.rollout(key=key)["rollout_id"]
        for wrong in (key + "x", key[:-1], key[:6], key[-6:], key.swapcase(), key * 2, quote(key), "x" * 600 + key):
            assert b" 401 " in caller.ask("GET", "/info", key=wrong)[:15]
        for header in (f"Cookie: key={key}", f"Api-Key: {key}", f"Authorization: {key}", f"Authorization: Digest {key}",
                       f"Proxy-Authorization: Bearer {key}", f"User-Agent: {key}", f"Referer: http://here/?key={key}",
                       f"X-API-Key : {key}", f"X-API-Key: {key}\r\nX-API-Key: {key}"):  # fmt: skip
            assert not re.match(rb"HTTP/1.1 [25]", caller.ask("GET", "/info", header, key=""))
        for path in (f"/info?api_key={quote_plus(key)}", f"/{quote(key, safe='')}", f"/info/{quote(key)}"):
            caller.ask("GET", path, key="")
            caller.ask("GET", path)
        caller.ask(quote(key), "/info", key="")
        caller.raw(f"{key}\r\n\r\n".encode(), end=True)
        caller.raw(f"GET / HTTP/{key}\r\n\r\n".encode(), end=True)
        caller.raw(f"GET / HTTP/1.1\r\n{key}\r\n\r\n".encode(), end=True)
        caller.raw(f"GET /health HTTP/1.1\r\nX-API-Key: {key}\r\n".encode(), end=True)
        upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
                   "Sec-WebSocket-Key: " + base64.b64encode(key.encode()[:16]).decode())  # fmt: skip
        lines = [f"GET /rollout?key={quote(key)} HTTP/1.1", "Host: localhost", f"X-API-Key: {key}", *upgrade, "", ""]
        caller.raw("\r\n".join(lines).encode(), end=True)


def every_route(caller: Caller) -> None:
    """Good and bad, with keys where seeds, names, ids and media types are due."""
    ring = caller.ring
    for verb, path in (("GET", "/"), ("HEAD", "/"), ("GET", "/health"), ("GET", "/info"), ("GET", "/task_info"),
                       ("GET", "/task_info?seed=1&seeds=2"), ("GET", "/docs"), ("GET", "/openapi.json"),
                       ("GET", "/debug/env"), ("GET", "/metrics"), ("POST", "/done")):  # fmt: skip
        content = {} if verb == "POST" else None
        assert b" 200 " in caller.ask(verb, path, content=content)[:15], path
        caller.ask("PATCH", path)
        caller.ask(verb, path, key="")
    assert b" 200 " in caller.ask("GET", "/metrics", "Accept: application/openmetrics-text; version=1.0.0")[:15]
    for name in ("environment", "hashed_line", "openai"):
        key = quote(ring.keys[name].text, safe="")
        for path in (f"/blobs/{key}", f"/rollouts/{key}", f"/task_info?seed={key}", f"/task_info?seeds=1&seeds={key}"):
            caller.ask("GET", path)
        caller.ask("DELETE", f"/rollouts/{key}")


def every_header(caller: Caller) -> None:
    """Keys where a header asks for something else."""
    key = caller.ring.environment
    for header in ("Prefer: {}", "Accept: {}", "Content-Type: {}", "Content-Type: application/json; charset={}",
                   "Content-Encoding: {}", "Last-Event-ID: {}", "traceparent: {}", "tracestate: {}", "Origin: {}",
                   "Transfer-Encoding: {}", "Expect: {}", "Idempotency-Key: a b {}", "X-Request-Id: {}"):  # fmt: skip
        caller.ask("POST", "/rollout", header.format(key), content=body())
        caller.ask("GET", "/metrics", header.format(key))
    for length in ("Content-Length: {}", "Content-Length: 12\r\nContent-Length: 1{}"):
        caller.raw(f"POST /rollout HTTP/1.1\r\nX-API-Key: {key}\r\n{length.format(key)}\r\n\r\n".encode(), end=True)


def every_body(caller: Caller) -> None:
    """Malformed ones, with keys in them: as they are, in place of each value, and as values that are refused."""
    ring = caller.ring

    def ask(request: Any) -> None:
        answer = caller.ask("POST", "/rollout", content=request)
        assert re.match(rb"HTTP/1.1 (4|200)", answer), (request, answer)

    for key in (ring.environment, ring.hashed_line, ring.caller_unknown):
        written = json.dumps(key)
        whole = json.dumps(body()).encode()
        for content in (key.encode(), written.encode(), f"[{written}]".encode(), f'{{"run_id": {written}'.encode(),
                        f'{{"run_id": {written}, "run_id": {written}}}'.encode(), b"\xff" + key.encode(),
                        whole + key.encode(), whole[:-1] + f', "x": NaN, "y": {written}}}'.encode(),
                        b"[" * 70 + written.encode() + b"]" * 70, f'{{"a": "{key}\\ud800"}}'.encode()):  # fmt: skip
            answer = caller.ask("POST", "/rollout", content=content)
            assert re.match(rb"HTTP/1.1 4", answer), answer[:300]
        for where in (("env",), ("env", "seed"), ("env", "config"), ("policy",), ("policy", "config"), ("ops",),
                      ("mode",), ("safety",), ("safety", "max_ops"), ("safety", "max_time_s"), ("record",),
                      ("record", "trace_format"), ("reward",), ("reward", "env"), ("policy", "output_mode"),
                      ("policy", "structured_config")):  # fmt: skip
            for value in (key, [key], {"value": key}):
                if where == ("ops",) and value == [key]:
                    continue  # a word that is none is quoted: see `every_name`
                request = body()
                inner = request
                for name in where[:-1]:
                    inner = inner.setdefault(name, {})
                inner[where[-1]] = value
                ask(request)
        for name, wrong in (("seed", [key]), ("split", [key]), ("index", key), ("at", key), ("slow", {"x": key})):
            ask(body(**{name: wrong}) if name != "seed" else body(seed=wrong))
        ask({**body(), "ops": [[key]]})
        caller.ask("POST", "/done", content=key.encode())
        for half in (whole[:40], key.encode()):
            caller.raw(
                f"POST /rollout HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {ring.environment}\r\n".encode()
                + b"Content-Type: application/json\r\nContent-Length: 5000\r\n\r\n" + half, end=True
            )  # fmt: skip


def every_name(caller: Caller) -> None:
    """A key in place of a name that the caller chooses: an answer quotes an unknown name, nothing else may."""
    key = caller.ring.caller_name
    for request in (
        {**body(), "ops": [key]},
        {**body(), "ops": [{"type": key}]},
        {**body(), "ops": [{"type": ["x", key]}]},
        {**body(), key: 1},
        {**body(), "env": {"env_name": key, "seed": 1}},
        {**body(), "env": {"env_name": "shared", "seed": 1, key: 1}},
        {**body(), "policy": {"policy_name": key}},
        {
            **body(max_time_seconds=2),
            "policy": {"policy_name": key, "config": {"inference_url": "http://127.0.0.1:9/v1"}},
        },
        body(policy=key),
        body(split=key),
        body(**{key: 1}),
    ):
        answer = caller.ask("POST", "/rollout", content=request)
        assert re.match(rb"HTTP/1.1 (4|200|502|504)", answer), answer[:300]
    for query in (f"environment={quote(key)}", f"split={quote(key)}", f"{quote(key)}=1"):
        caller.ask("GET", f"/task_info?{query}")


def the_callers_own(caller: Caller, query: bool = False) -> None:
    """Keys of the caller's own model in a request that is played; nobody answers at its address."""
    ring = caller.ring
    address = f"http://me:{quote(ring.caller_url_password, safe='')}@127.0.0.1:9/v1?cid=c1"
    if query:
        address += f"&api_key={quote(ring.caller_url_query, safe='')}"
    config = {
        "policy": "noop",
        "api_key": ring.caller_api_key,
        "inference_url": address,
        "headers": {"Authorization": f"Bearer {ring.caller_header}", "x": [ring.caller_header]},
        "extra_headers": {"X-API-Key": ring.caller_header},
        "token": ring.caller_api_key,
        "password": ring.caller_api_key,
        "something": {"nested": ring.caller_unknown},
        "temperature": 0.5,
    }
    for headers in ((), (STREAM,), (f"Idempotency-Key: {ring.environment}",), (f"Idempotency-Key: {ring.plain_line}",)):
        for environment in ("shared", "alone"):
            request = {**body(environment), "inference_url": address, "synth_base_url": address}
            request["policy"]["config"] = config
            if headers and "Idem" in headers[0] and environment == "alone":
                assert b" 409 " in caller.ask("POST", "/rollout", *headers, content=request)[:15]
                continue
            assert b" 200 " in caller.ask("POST", "/rollout", *headers, content=request)[:15]
            assert b" 200 " in caller.ask("POST", "/rollout", *headers, content=request)[:15]
    for broken in ("step", "reset", "rubric"):
        request = {**body("shared", breaks=broken), "inference_url": address}
        request["policy"]["config"] = config
        assert b" 500 " in caller.ask("POST", "/rollout", content=request)[:15]
    request["policy"] = {"policy_name": "nobody", "config": {**config, "policy": None, "model": "m"}}
    request["safety"] = {"max_time_s": 3}
    caller.ask("POST", "/rollout", content=request)
    caller.ask("POST", "/rollout", STREAM, content=request)


def every_boundary(caller: Caller) -> None:
    """Failures of each, in threads or workers, and in a process of its own."""
    for environment in ("shared", "alone"):
        for fault, status in (("step", 500), ("reset", 500), ("final state", 500), ("rubric", 500), ("close", None),
                                ("not json", 500), ("not finite", 500), ("unspeakable", 500)):  # fmt: skip
            caller.rollout(environment=environment, breaks=fault, status=status)
    for fault in ("segfault", "abort", "exit", "kill itself"):
        caller.rollout(environment="alone", breaks=fault, status=500)
    caller.rollout(environment="alone", breaks="hang", status=504)
    caller.rollout(slow=0.2, max_time_seconds=0.1, status=504)


def every_way_of_asking(caller: Caller) -> None:
    """Streams, a stream cut and resumed, later, cancelled, again, hung up, over the quota."""
    ring = caller.ring
    stream = caller.ask("POST", "/rollout", STREAM, content=body(seed=7))
    assert b"event: result" in stream
    caller.ask("POST", "/rollout", STREAM, content=body(seed=7, breaks="step"))
    cut = caller.ask("POST", "/rollout", STREAM, content=body(seed=7, slow=0.1), until_seen=b"id: 2")
    path = re.search(rb"(?i)location: (\S+)", cut)
    resumed = caller.ask("GET", path[1].decode(), STREAM, "Last-Event-ID: 1")
    assert b"event: result" in resumed
    assert b" 204 " in caller.ask("GET", path[1].decode(), STREAM, "Last-Event-ID: 900")[:15]
    later = caller.ask("POST", "/rollout", "Prefer: respond-async", content=body(seed=8, slow=0.2))
    path = re.search(rb"(?i)location: (\S+)", later)
    assert b" 202 " in later[:15] and path is not None
    assert b" 200 " in caller.ask("GET", path[1].decode(), "Prefer: wait=20")[:15]
    later = caller.ask("POST", "/rollout", "Prefer: respond-async", content=body(seed=8, slow=0.5))
    path = re.search(rb"(?i)location: (\S+)", later)
    caller.ask("DELETE", path[1].decode())
    caller.ask("GET", path[1].decode(), "Prefer: wait=20")
    caller.ask("POST", "/rollout", content=body(seed=9, slow=0.5), end=False, until_seen=b"HTTP")
    busy = threading.Thread(target=caller.rollout, kwargs={"key": ring.plain_line, "slow": 0.3, "seed": 5})
    busy.start()
    until(lambda: caller.server.health()["in_flight"] > 0, 10, "it plays")
    assert b" 429 " in caller.ask("POST", "/rollout", content=body(), key=ring.plain_line)[:15]
    busy.join()


def rotation(caller: Caller) -> None:
    """A key comes and goes while the server runs; then the file is broken, with a key in the broken line."""
    ring = caller.ring
    write_keys(caller.server.folder, ring, f"rotated {ring.rotated_line}")
    until(lambda: b" 200 " in caller.ask("GET", "/health", key=ring.rotated_line)[:15], 5, "the new key opens")
    caller.rollout(key=ring.rotated_line)
    for line in (
        f"two words and {ring.bad_line}",
        f"bad sha256:{ring.bad_line}",
        f"plain {ring.bad_line} max_in_flight=2",
    ):
        write_keys(caller.server.folder, ring, line)
        time.sleep(1.1)
        caller.ask("GET", "/health", key=ring.bad_line)
    write_keys(caller.server.folder, ring)
    until(lambda: b" 200 " in caller.ask("GET", "/health", key=ring.server)[:15], 5, "the file is read again")
    assert b" 401 " in caller.ask("GET", "/health", key=ring.rotated_line)[:15]


def the_end(caller: Caller) -> None:
    """SIGTERM with some running that do not end in time; the caller is told, the store keeps it."""
    config = {"key": caller.ring.environment, "slow": 0.5, "status": None}
    running = [threading.Thread(target=caller.rollout, kwargs={**config, "seed": seed}) for seed in range(6)]
    for thread in running:
        thread.start()
    until(lambda: caller.server.health()["in_flight"] == 6, 10, "they play")
    caller.server.terminate()
    until(lambda: caller.server.health()["status"] == "draining", 5, "it drains")
    caller.ask("POST", "/rollout", content=body())
    for thread in running:
        thread.join()
    caller.server.process.wait(20)


# -- the runs ------------------------------------------------------------------------------------------------------


@pytest.mark.ci
@pytest.mark.parametrize(
    ("workers", "log_format"), [pytest.param("0", "text", marks=pytest.mark.exhaustive), ("2", "json")]
)
def test_no_key_comes_out_of_anything(tmp_path: Path, workers: str, log_format: str) -> None:
    server, ring = a_server(tmp_path / "s", "--workers", workers, "--log-format", log_format, "--grace-seconds", "1")
    keys = list(ring.keys.values())
    with server:
        caller = Caller(server, ring)
        for part in (every_way_in, every_route, every_header, every_body, every_name, the_callers_own, every_boundary,
                     every_way_of_asking, rotation):  # fmt: skip
            part(caller)
        processes = Search(keys)
        search_processes(server, processes, ring.of_the_server, ring.keys["openai"])
        caller.ask("GET", "/metrics")
        the_end(caller)
    search = search_all(server, caller, keys)
    hits = [*processes.hits, *search.hits]
    assert not hits, "\n".join(map(str, hits))
    assert search.databases >= 1 and search.packed > 1
    out, err = ((tmp_path / "s" / name).read_bytes() for name in ("out.txt", "err.txt"))
    assert out.count(b'"trace_id"') > 100, "spans were written"
    assert b"observed" in out or b"draws" in out, "with content"
    assert err.count(b"rollout") > 50
    assert processes.places >= 1 + 2 * int(workers)


@pytest.mark.parametrize("workers", [pytest.param("0", marks=pytest.mark.exhaustive), "2"])
def test_the_environment_that_authors_code_sees_has_none_of_the_servers_keys(tmp_path: Path, workers: str) -> None:
    server, ring = a_server(tmp_path / "s", "--workers", workers, app=KEYS_APP)
    with server:
        caller = Caller(server, ring)
        for environment in ("shared", "alone"):
            told = caller.rollout(environment=environment, tells="environment")
            seen = told["trajectories"][0]["steps"][0]["obs"]
            assert (seen["pid"] == server.pid) == (workers == "0" and environment == "shared")
            assert seen["environment"]["OPENAI_API_KEY"] == ring.openai, "an author's own key is theirs"
            caller.ask("POST", "/rollout", STREAM, content=body(environment, tells="environment"))
            caller.rollout(environment=environment, tells="environment", breaks="x", status=500)
        server.stop()
    search = search_all(server, caller, ring.of_the_server)
    assert not search.hits, "\n".join(map(str, search.hits))
    told = spans(tmp_path / "s" / "out.txt")
    assert "(hidden)" in told, "content of a trace is without vendors' keys"
    assert not Search([ring.keys["openai"]]).look(told.encode(), "spans")


@pytest.mark.parametrize("workers", ["0", pytest.param("1", marks=pytest.mark.exhaustive)])
def test_a_key_in_a_models_address_is_nowhere(tmp_path: Path, workers: str) -> None:
    server, ring = a_server(tmp_path / "s", "--workers", workers)
    with server:
        caller = Caller(server, ring)
        the_callers_own(caller, query=True)
        server.stop()
    search = search_all(server, caller, list(ring.keys.values()))
    assert not search.hits, "\n".join(map(str, search.hits))
    assert any(b"cid=c1" in answer for _, answer in caller.answers), "the rest of the address is told"


# -- the search itself ---------------------------------------------------------------------------------------------


def test_a_key_that_comes_out_is_found_wherever_it_does(tmp_path: Path) -> None:
    planted = a_key("planted")
    server, ring = a_server(tmp_path / "s", "--workers", "1", "--log-format", "json", app=KEYS_APP)
    file = tmp_path / "s" / "planted.txt"
    file.write_text(planted.text)
    with server:
        caller = Caller(server, ring)
        caller.rollout(tells="file", path=str(file))
        server.stop()
    search = search_all(server, caller, [planted])
    places = " ".join(sorted(hit.place for hit in search.hits))
    for place in ("the answer to", "out.txt", "err.txt", "kept.db > rollouts[0] > inflated"):
        assert place in places, places
    told = spans(tmp_path / "s" / "out.txt")
    assert Search([planted]).look(told.encode(), "spans"), "its content shows it"


FORMS: dict[str, Callable[[str], bytes]] = {
    "whole": str.encode,
    "its beginning": lambda key: key[:6].encode(),
    "its end": lambda key: key[-6:].encode(),
    "reversed": lambda key: key[::-1].encode(),
    "URL-quoted": lambda key: quote(key, safe="").encode(),
    "JSON": lambda key: json.dumps({"key": key}).encode(),
    "base64": lambda key: base64.b64encode(f"me:{key}".encode()),
    "base64, one further": lambda key: base64.b64encode(f"you:{key}".encode()),
    "URL-safe base64": lambda key: base64.urlsafe_b64encode(f"they:{key}".encode()),
    "hex": lambda key: key.encode().hex().encode(),
    "UTF-16": lambda key: key.encode("utf-16"),
    "SHA-256": lambda key: hashlib.sha256(key.encode()).hexdigest().encode(),
    "its raw digest": lambda key: hashlib.sha256(key.encode()).digest(),
}


def planted(folder: Path, holder: str, leak: bytes) -> None:
    """A file of this kind with the leak in it."""
    if holder == "text":
        (folder / "a.log").write_bytes(os.urandom(100) + leak)
    elif holder == "name":
        Path(os.fsdecode(os.fsencode(folder) + b"/" + leak)).touch()
    elif holder == "gzip":
        (folder / "a.gz").write_bytes(gzip.compress(leak))
    elif holder == "zip":
        with zipfile.ZipFile(folder / "a.whl", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("inner.gz", gzip.compress(leak))
    else:
        connection = sqlite3.connect(folder / "kept.db")
        connection.execute(f"PRAGMA journal_mode={holder}")
        connection.execute("CREATE TABLE rollouts (events BLOB)")
        connection.execute("INSERT INTO rollouts VALUES (?)", (zlib.compress(leak * 50, 1),))
        connection.commit()
        OPEN.append(connection)  # a journal is there as long as the database is open


OPEN: list[sqlite3.Connection] = []


@pytest.mark.parametrize("holder", ["text", "name", "gzip", "zip", "DELETE", "WAL"])
def test_every_form_is_found_in_every_file(tmp_path: Path, holder: str) -> None:
    key, other = a_key("planted"), Search([a_key("another")])
    for number, form in enumerate(FORMS.values()):
        leak = b"before " + form(key.text) + b" behind"
        if holder == "name" and (b"/" in leak or b"\0" in leak):
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        planted(folder, holder, leak)
        search = Search([key])
        search.folder(folder)
        assert {hit.key for hit in search.hits} == {"planted"}, number
    other.folder(tmp_path)
    assert other.hits == []
    while OPEN:
        OPEN.pop().close()
