"""`from_program`: programs play episodes as child processes and in sandboxes that only reach the policy."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import tempfile
import textwrap
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from taskapp_kit import RolloutFailed, TaskApp
from taskapp_kit.interop.programs.program import LOST, PROGRAM_LIMITS, from_program
from taskapp_kit.records.rollout import Rollout
from tests.interop.peers import peer
from tests.rollout.models.raw_server import Arrived, http, raw_server, said
from tests.rollouts import app_from, one_model_rollout
from tests.sandbox.boxes import LEVELS

pytestmark = [pytest.mark.server, pytest.mark.process]

APP = '''
app = TaskApp("errands", version="1")


@app.environment("errands", splits={"train": range(20)}, max_steps=200)
class Errands:
    """Says a word, has a ledger, and takes an answer."""

    def reset(self, seed: int) -> str:
        self.ledger = []
        return f"Seed {seed}: say blue."

    @action
    def book(self, amount: int) -> Step:
        """Write an amount into the ledger."""
        self.ledger.append(amount)
        return Step(f"{len(self.ledger)} booked", reward=0.0)

    @action
    def submit(self, text: str, files: dict[str, str] = {}) -> Step:
        """End the errand."""
        done = [text.strip() == "BLUE", files.get("note.txt") == "noted", self.ledger == [7]]
        return Step("Done.", reward=sum(done) / 3, terminated=True)
'''
PROGRAM = """
import json, os, sys, urllib.error, urllib.request

def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return response.read()

def chat(text, **more):
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    return json.loads(post(url, {"model": "mine", "messages": [{"role": "user", "content": text}], **more}))

asked = sys.stdin.read()
"""
ALL = """
message = chat(asked, temperature=0.5)["choices"][0]["message"]
open("note.txt", "w").write(open("given.txt").read())
booked = json.loads(post(os.environ["TASKAPP_STEP_URL"], {"tool": "book", "args": {"amount": 7}}))
assert booked == {"observation": "1 booked", "reward": 0.0, "refused": None}, booked
print(message["content"])
"""


def shout(arrived: Arrived) -> bytes:
    """The last word of the conversation, in capitals."""
    words = str(orjson.loads(arrived.body)["messages"][-1]["content"])
    return http(200, said(words.rstrip(".").split()[-1].upper(), usage={"prompt_tokens": 3, "completion_tokens": 1}))


def play(
    folder: Path,
    program: str,
    answers: Callable[[Arrived], bytes] = shout,
    *,
    boxed: bool = False,
    safety: dict[str, float] | None = None,
    **options: Any,
) -> tuple[Rollout, list[dict[str, Any]]]:
    """One rollout, and the bodies that the model received."""
    given: dict[str, Any] = {"command": ["python", "agent.py"], "answer": "submit", **options}
    inputs = {"agent.py": PROGRAM + textwrap.dedent(program), **given.pop("inputs", {})}
    app: TaskApp = app_from(Path(tempfile.mkdtemp(dir=folder)), APP)
    app.rollout(from_program(inputs=inputs, boxed=boxed, **given))

    async def main() -> tuple[Rollout, list[dict[str, Any]]]:
        async with raw_server([answers]) as model:
            rollout = await asyncio.to_thread(one_model_rollout, app, model.url, seed=3, safety=safety or {})
            return rollout, [orjson.loads(request.body) for request in model.requests]

    return asyncio.run(main())


needs_box = pytest.mark.skipif(3 not in LEVELS, reason="needs bubblewrap (Debian: apt-get install bubblewrap)")


@pytest.fixture(params=[False, pytest.param(True, marks=needs_box)], ids=["child", "box"])
def boxed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_answer_files_and_actions_of_the_program_are_scored(tmp_path: Path, boxed: bool) -> None:
    rollout, bodies = play(tmp_path, ALL, boxed=boxed, files=["note.txt", "none.txt"], inputs={"given.txt": "noted"})
    assert (rollout.trajectory.status, rollout.scorecard.reward) == ("terminated", 1.0)
    assert [step.tool for step in rollout.trajectory.steps] == ["book", "submit"]
    (body,) = bodies
    assert body == {"model": "m", "temperature": 0.5, "messages": [{"role": "user", "content": "Seed 3: say blue."}]}
    first = rollout.trajectory.turns[0].answer
    assert [message["role"] for message in first.messages] == ["user", "assistant"]
    assert rollout.usage == {"prompt_tokens": 3, "completion_tokens": 1}


def test_every_api_works_with_a_chat_completions_model(tmp_path: Path, boxed: bool) -> None:
    program = """
        base, text = os.environ["OPENAI_BASE_URL"], {"role": "user", "content": "blue"}
        response = json.loads(post(base + "/responses", {"input": [text], "instructions": "Shout."}))
        claude = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages?beta=true"
        message = json.loads(post(claude, {"messages": [text], "max_tokens": 9, "stop_sequences": ["x"]}))
        stream = post(base + "/chat/completions", {"messages": [text], "stream": True}).decode()
        pieces = [json.loads(line[6:]) for line in stream.split("\\n\\n") if line.startswith("data: {")]
        events = post(claude, {"messages": [text], "max_tokens": 9, "stream": True}).decode().count("event: ")
        streamed = "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces)
        print(response["output"][0]["content"][0]["text"], message["content"][0]["text"], streamed, events)
    """
    rollout, bodies = play(tmp_path, program, boxed=boxed)
    assert rollout.trajectory.steps[-1].args == {"text": "BLUE BLUE BLUE 6", "files": {}}
    assert [message["role"] for message in bodies[0]["messages"]] == ["system", "user"]
    assert (bodies[1]["max_tokens"], bodies[1]["stop"]) == (9, ["x"])
    assert all("stream" not in body and body["model"] == "m" for body in bodies)


@needs_box
def test_sandbox_reaches_only_the_policy(tmp_path: Path) -> None:
    program = """
        import socket
        reached = []
        def attempt(name, family, address):
            with socket.socket(family) as caller:
                caller.settimeout(2)
                try:
                    caller.connect(address)
                except OSError:
                    return
                reached.append(name)
        targets = json.load(open("targets.json"))
        for port in targets["ports"]:
            attempt(f"port {port}", socket.AF_INET, ("127.0.0.1", port))
        attempt("machine", socket.AF_INET, (targets["machine"], targets["ports"][0]))
        attempt("world", socket.AF_INET, ("192.0.2.1", 443))
        attempt("six", socket.AF_INET6, ("::1", targets["ports"][0]))
        attempt("file", socket.AF_UNIX, targets["file"])
        attempt("abstract", socket.AF_UNIX, "\\0" + targets["abstract"])
        try:
            socket.getaddrinfo("localhost.example", 80)
            reached.append("names")
        except OSError:
            pass
        codes = []
        for path in ("/v1/chat/completions", "/step", "/../v1/messages"):
            try:
                post(os.environ["OPENAI_BASE_URL"].partition("/v1")[0].rpartition("/")[0] + path, {})
            except urllib.error.HTTPError as error:
                codes.append(error.code)
        print(reached, codes, chat("blue")["choices"][0]["message"]["content"])
    """
    with (
        socket.create_server(("0.0.0.0", 0)) as everywhere,
        socket.socket(socket.AF_UNIX) as file,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        file.bind(str(tmp_path / "s"))
        abstract.bind(f"\0taskapp-{tmp_path.name}")
        for listener in (file, abstract):
            listener.listen()
        targets = {
            "ports": [everywhere.getsockname()[1], 22, 80],
            "machine": socket.gethostbyname(socket.gethostname()),
            "file": str(tmp_path / "s"),
            "abstract": f"taskapp-{tmp_path.name}",
        }
        rollout, _ = play(tmp_path, program, boxed=True, inputs={"targets.json": json.dumps(targets)})
    assert rollout.trajectory.steps[-1].args["text"] == "[] [404, 404, 404] BLUE"


def test_program_receives_neither_key_nor_address_of_the_model(tmp_path: Path, boxed: bool) -> None:
    rollout, _ = play(tmp_path, "print(json.dumps(dict(os.environ)))", boxed=boxed, variables={"MINE": "1"})
    seen = json.loads(rollout.trajectory.steps[-1].args["text"])
    assert seen.keys() >= {"OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "TASKAPP_STEP_URL", "MINE", "PATH", "HOME"}
    assert {name for name in seen if "KEY" in name} == {"OPENAI_API_KEY", "ANTHROPIC_API_KEY"}
    assert (seen["OPENAI_API_KEY"], seen["TASKAPP_TASK"], seen["MINE"]) == ("none", "null", "1")


def test_child_process_logs_that_nothing_isolates_it(caplog: pytest.LogCaptureFixture) -> None:
    from_program(["agent"], boxed=True)
    assert caplog.text == ""
    from_program(["agent"], boxed=False)
    assert "agent runs as a child process without isolation" in caplog.text


@pytest.mark.ci
def test_program_at_its_limit_is_killed_and_truncates(tmp_path: Path, boxed: bool) -> None:
    limits = replace(PROGRAM_LIMITS, wall_seconds=3)
    rollout, _ = play(tmp_path, "chat(asked); import time; time.sleep(600)", boxed=boxed, limits=limits)
    assert (rollout.trajectory.status, rollout.trajectory.stop_reason) == ("truncated", "program_stopped")


@pytest.mark.ci(keep=1)
def test_rollout_deadline_ends_an_idle_program(tmp_path: Path, boxed: bool) -> None:
    began = time.monotonic()
    command = ["python", "agent.py", mark := secrets.token_hex()]
    with pytest.raises(RolloutFailed) as failed:
        play(tmp_path, "import time; time.sleep(600)", boxed=boxed, command=command, safety={"max_time_s": 2.0})
    failure = failed.value.failure
    assert (failure.boundary, failure.code) == ("timeout", "deadline")
    assert "blocks its thread" not in failure.message
    assert time.monotonic() - began < PROGRAM_LIMITS.wall_seconds / 2
    assert not [each for each in psutil.process_iter(["cmdline"]) if mark in (each.info["cmdline"] or ())]


@pytest.mark.parametrize("program", ["sys.exit('no idea')", "os.kill(os.getpid(), 9)"])
def test_failing_program_fails_the_rollout(tmp_path: Path, boxed: bool, program: str) -> None:
    with pytest.raises(RolloutFailed) as failed:
        play(tmp_path, program, boxed=boxed)
    assert (failed.value.failure.boundary, failed.value.failure.code) == ("policy", "policy_raised")


def test_failing_model_ends_the_rollout_even_if_the_program_continues(tmp_path: Path) -> None:
    program = """
        try:
            chat(asked)
        except urllib.error.HTTPError as error:
            print(error.code)
            import time
            time.sleep(600)
    """
    refused = {"error": {"message": "no such model", "code": "x"}}
    with pytest.raises(RolloutFailed) as failed:
        play(tmp_path, program, lambda _: http(400, refused))
    assert failed.value.failure.code == "model_refused"
    overflow = {"error": {"message": "too long", "code": "context_length_exceeded"}}
    rollout, _ = play(tmp_path, program, lambda _: http(400, overflow))
    assert (rollout.trajectory.status, rollout.trajectory.stop_reason) == ("truncated", "context_overflow")


def test_invalid_request_is_answered_and_the_rollout_continues(tmp_path: Path) -> None:
    program = """
        codes = []
        for route, body in (
            ("responses", {"input": "x", "previous_response_id": "r"}), ("chat/completions", {"messages": []}),
            ("chat/completions", {"messages": [{}], "n": 2}), ("embeddings", {}),
        ):
            try:
                post(os.environ["OPENAI_BASE_URL"] + "/" + route, body)
            except urllib.error.HTTPError as error:
                codes.append([error.code, json.load(error)["error"]["message"].split()[0]])
        try:
            post(os.environ["TASKAPP_STEP_URL"], {"tool": 3})
        except urllib.error.HTTPError as error:
            codes.append([error.code, json.load(error)["error"]["message"].split()[0]])
        print(json.dumps(codes))
    """
    rollout, bodies = play(tmp_path, program)
    names = ["previous_response_id", "messages", "n", "The", "tool"]
    assert json.loads(rollout.trajectory.steps[-1].args["text"]) == [
        [404 if name == "The" else 422, name] for name in names
    ]
    assert bodies == []


def test_abandoned_and_repeated_call_runs_once(tmp_path: Path) -> None:
    """As SDKs do after a timeout: both calls get the same answer."""
    program = """
        import socket, time
        body = {"messages": [{"role": "user", "content": "say blue"}]}
        request = urllib.request.Request(
            os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode()
        )
        try:
            urllib.request.urlopen(request, timeout=0.3)
        except TimeoutError:
            print(chat("say blue", model=None) and "again", end="")
        print(json.loads(urllib.request.urlopen(request, timeout=30).read())["choices"][0]["message"]["content"])
    """
    calls = []

    def slow(arrived: Arrived) -> bytes:
        calls.append(arrived)
        if len(calls) == 1:
            time.sleep(1)
        return shout(arrived)

    rollout, bodies = play(tmp_path, program, slow)
    assert rollout.trajectory.steps[-1].args["text"] == "againBLUE"
    assert len(bodies) == 2, "the call with another body, and the repeated call"


@pytest.mark.interop
@needs_box
def test_openai_sdk_agent_plays_in_a_sandbox(tmp_path: Path) -> None:
    """Its packages are a virtual environment that the box shows; it calls `responses`, and the model speaks chat only."""
    python = peer("openai-agents-0.24.0").python
    agent = Path("examples/agents/with_openai_agents.py").read_text(encoding="utf-8")
    rollout, bodies = play(
        tmp_path,
        "",
        boxed=True,
        command=[str(python), "sdk.py"],
        inputs={"sdk.py": agent},
        readable=[str(python.parents[1])],
    )
    assert rollout.trajectory.steps[-1].args["text"] == "BLUE"
    assert bodies[0]["messages"] == [
        {"role": "system", "content": "Which key?"},
        {"role": "user", "content": "Seed 3: say blue."},
    ]


def test_programs_actions_end_the_episode_without_an_answering_action(tmp_path: Path) -> None:
    program = """
        post(os.environ["TASKAPP_STEP_URL"], {"tool": "book", "args": {"amount": 7}})
        try:
            post(os.environ["TASKAPP_STEP_URL"], {"tool": "submit", "args": {"text": "BLUE"}})
        except OSError:
            pass
    """
    rollout, _ = play(tmp_path, program, answer=None)
    assert [step.tool for step in rollout.trajectory.steps] == ["book", "submit"]
    assert (rollout.trajectory.status, rollout.scorecard.reward) == ("terminated", pytest.approx(2 / 3))
    rollout, _ = play(tmp_path, "pass", answer=None)
    assert (rollout.trajectory.status, rollout.trajectory.stop_reason) == ("truncated", "rollout_returned")


def test_answering_action_must_take_one_string(tmp_path: Path) -> None:
    with pytest.raises(RolloutFailed):
        play(tmp_path, "pass", answer="nothing")
    with pytest.raises(TypeError):
        from_program("agent.py")


@needs_box
def test_sandbox_shows_readable_directories(tmp_path: Path) -> None:
    for name in ("shown", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "here.py").write_text("word = 'seen'")
    program = f"""
        sys.path.append({str(tmp_path / "shown")!r})
        import here
        try:
            open({str(tmp_path / "shown" / "new")!r}, "w")
        except OSError as error:
            print(here.word, os.path.exists({str(tmp_path / "other")!r}), error.strerror)
    """
    rollout, _ = play(tmp_path, program, boxed=True, readable=[str(tmp_path / "shown")])
    assert rollout.trajectory.steps[-1].args["text"] == "seen False Read-only file system"


def test_program_may_open_more_connections_than_are_served(tmp_path: Path, boxed: bool) -> None:
    """Silent ones among them; in a box with few processes and little memory."""
    program = """
        import socket
        from urllib.parse import urlparse
        url = urlparse(os.environ["TASKAPP_STEP_URL"])
        def connected():
            connection = socket.create_connection((url.hostname, url.port))
            connection.settimeout(60)
            return connection
        body = json.dumps({"tool": "book", "args": {"amount": 7}}).encode()
        request = f"POST {url.path} HTTP/1.1\\r\\nHost: a\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n".encode() + body
        silent = [connected() for _ in range(40)] if os.path.exists("/code/policy.sock") else []
        held = [connected() for _ in range(100)]
        for connection in held:
            connection.sendall(request)
        answered = sum(b" 200 " in connection.recv(20) for connection in held)
        last = json.loads(post(os.environ["TASKAPP_STEP_URL"], {"tool": "book", "args": {"amount": 1}}))
        print(answered, last["observation"])
    """
    limits = replace(PROGRAM_LIMITS, processes=8, memory_bytes=2**28, open_files=200)
    rollout, _ = play(tmp_path, program, boxed=boxed, limits=limits)
    assert rollout.trajectory.steps[-1].args["text"] == "100 101 booked"


def test_rejected_requests_leave_nothing_and_bodies_are_read_in_order(tmp_path: Path) -> None:
    program = """
        import http.client, threading
        from urllib.parse import urlparse
        url, codes = urlparse(os.environ["TASKAPP_STEP_URL"]), []
        def refused(number):
            connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
            connection.request("POST", url.path, json.dumps({"tool": number, "pad": "x" * 4_000_000}))
            codes.append(connection.getresponse().status)
        threads = [threading.Thread(target=refused, args=(number,)) for number in range(30)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
        connection.putrequest("POST", url.path)
        connection.putheader("Content-Length", str(2**30))
        connection.endheaders()
        codes.append(connection.getresponse().status)
        print(sorted(codes))
    """
    tracemalloc.start()
    try:
        rollout, _ = play(tmp_path, program)
        now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert json.loads(rollout.trajectory.steps[-1].args["text"]) == [413] + [422] * 30
    assert now < 2**24, "less than four of the thirty bodies"
    assert peak < 2**26


@needs_box
def test_sandbox_that_loses_its_connection_fails_the_rollout(tmp_path: Path) -> None:
    """The program ends as the forwarder does where it breaks."""
    with pytest.raises(RolloutFailed) as failed:
        play(tmp_path, f"sys.exit({LOST})", boxed=True)
    assert failed.value.failure.boundary == "environment"
