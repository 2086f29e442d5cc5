"""Commands against servers that mean harm or are out of luck: a sentence, the right exit status, a terminal left alone."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from taskapp_kit.serve.uvicorn_server import BackgroundServer

from .conftest import ROOT, Run, assert_no_key
from .terminals import NAMES, Terminal

pytestmark = pytest.mark.server

SYNTH, TASK_APP = "canary-9f3a7c51e2-1212", "canary-b40e62d8a7-3434"
ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b1m\u202e"
CONFIG = (ROOT / "examples" / "rl_in_process_config.toml").read_text(encoding="utf-8")
EVIL = f"{ESCAPES}{SYNTH} {TASK_APP}{ESCAPES}"

TASKSET = {"taskset": {"id": f"ds{EVIL}", "splits": [EVIL, "train"], "default_split": "train"}}
INSTANCE = {
    "task": {"id": EVIL, "name": EVIL},
    "environment": EVIL,
    "dataset": {},
    "rubric": {},
    "inference": {},
    "limits": {},
}


def safe(text: str) -> None:
    assert_no_key(text, SYNTH, TASK_APP)
    assert not set(text) & set("\x1b\x9b\x07\u202e"), repr(text)
    assert "Traceback" not in text, text


@contextmanager
def answering(**routes: Any) -> Iterator[str]:
    """A server. routes: path (`/` as `__`) to JSON, a response, or a callable of the request."""

    def endpoint(told: Any) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            found = told(request) if callable(told) and not isinstance(told, Response) else told
            return found if isinstance(found, Response) else JSONResponse(found)

        return answer

    methods = ["GET", "POST", "DELETE"]
    made = [Route("/" + path.replace("__", "/"), endpoint(told), methods=methods) for path, told in routes.items()]
    with BackgroundServer(Starlette(routes=made)) as server:
        yield server.url


def task_app(request: Request) -> Any:
    rest = request.path_params["rest"]
    if rest == "task_info":
        return INSTANCE if request.query_params else TASKSET
    if rest == "info":
        return {"service": {"task": {"id": EVIL}}, "rubrics": {"outcome": {"criteria": [{"id": EVIL}]}}}
    if rest == "rollout":
        return JSONResponse({"detail": EVIL}, status_code=405)
    return {"healthy": True, "status": "ok", "service": EVIL}


def backend(status: dict[str, Any], job: Any = "rl_1") -> Callable[[Request], Any]:
    def answer(request: Request) -> Any:
        rest = request.path_params["rest"]
        if rest == "v1/crypto/public-key":
            return {"public_key": base64.b64encode(b"k" * 32).decode()}
        if rest == "rl/verify_task_app":
            return {"any_ok": True, "results": [EVIL]}
        if rest == "rl/jobs":
            return {"job_id": job, "id": job, "status": "queued"} if request.method == "POST" else {"jobs": []}
        if rest.endswith("/events/stream"):
            event = {"seq": 1, "type": EVIL, "message": EVIL, "level": EVIL, "data": {"step": 1, "reward": EVIL}}
            return Response(f"event: {ESCAPES}\ndata: {json.dumps(event)}\n\n", media_type="text/event-stream")
        if rest.endswith("/events"):
            return {"events": [{"seq": 2, "type": "rl.train.step", "message": EVIL}]}
        return {"job_id": EVIL, **status}

    return answer


@contextmanager
def both(status: dict[str, Any], tmp_path: Path, job: Any = "rl_1") -> Iterator[dict[str, str]]:
    (tmp_path / "rl.toml").write_text(CONFIG, encoding="utf-8")
    with (
        answering(**{"{rest:path}": task_app}) as app,
        answering(**{"api__{rest:path}": backend(status, job)}) as jobs,
    ):
        told = {"BACKEND_BASE_URL": jobs, "TASK_APP_URL": app, "SYNTH_API_KEY": SYNTH, "ENVIRONMENT_API_KEY": TASK_APP}
        yield {**dict.fromkeys(NAMES, ""), **told}


ENDS: dict[str, tuple[dict[str, Any], int]] = {
    "in capitals": ({"status": " SUCCEEDED ", "final_reward": EVIL, "metrics": {EVIL: EVIL, "reward": EVIL}}, 0),
    "under state": ({"state": "Completed", "final_reward": 1, "progress": {"completed": EVIL, "total": -7}}, 0),
    "in american": ({"status": "canceled", "error": EVIL}, 1),
    "failed": ({"status": "FAILED", "error": {"message": EVIL, "code": EVIL}}, 1),
    "failed with a list": ({"status": "failed", "error": [EVIL], "metrics": [1], "results": EVIL}, 1),
    "never": ({"status": EVIL, "progress": EVIL, "engine": EVIL}, 1),
    "no status": ({"status": None}, 1),
}


@pytest.mark.ci(keep=1)
@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_train_with_a_backend_that_means_harm(end: str, as_json: bool, run: Run, tmp_path: Path) -> None:
    status, exit_status = ENDS[end]
    flags = ("--poll-interval", "0.1", "--poll-timeout", "1.5", *(("--json",) if as_json else ()))
    with both(status, tmp_path) as variables:
        done = run("train", "--config", "rl.toml", *flags, **variables)
    assert done.exit_code == exit_status, done.stderr
    safe(done.stderr)
    safe(json.dumps(json.loads(done.stdout), ensure_ascii=True) if as_json and done.stdout else done.stdout)


@pytest.mark.ci(keep=2)
@pytest.mark.parametrize("job", [EVIL, "j" * 9000, None, True, [1], ".."], ids=lambda job: repr(job)[:20])
def test_a_job_whose_name_cannot_be_used_is_not_followed(job: Any, run: Run, tmp_path: Path) -> None:
    with both({"status": "running"}, tmp_path, job) as variables:
        done = run("train", "--config", "rl.toml", **variables)
    assert done.exit_code == 1
    safe(done.stderr)


def test_a_job_that_was_taken_is_taken_though_nobody_can_say_how_it_is(run: Run, tmp_path: Path) -> None:
    (tmp_path / "rl.toml").write_text(CONFIG, encoding="utf-8")
    sound = backend({"status": "running"})

    def answer(request: Request) -> Any:
        away = request.path_params["rest"] == "rl/jobs/7"
        return JSONResponse({"detail": EVIL}, status_code=500) if away else sound(request)

    with both({}, tmp_path, 7) as variables, answering(**{"api__{rest:path}": answer}) as jobs:
        variables["BACKEND_BASE_URL"] = jobs
        for flags, told in (((), "rl_1\n"), (("--json",), None)):
            done = run("train", "--config", "rl.toml", "--no-poll", *flags, status=0, **variables)
            assert told is None or done.stdout == told
            safe(done.stderr)


def test_check_with_servers_that_mean_harm(run: Run, tmp_path: Path) -> None:
    with both({}, tmp_path) as variables:
        done = run("doctor", variables["TASK_APP_URL"], "--backend", variables["BACKEND_BASE_URL"], **variables)
        safe(done.output + done.stderr)
        assert done.exit_code == 0, done.output
    pages: dict[str, Any] = {
        "page": Response("<html>" + TASK_APP, media_type="text/html"),
        "deep": Response(b"[" * 100_000, media_type="application/json"),
        "away": RedirectResponse(f"http://evil.example/{TASK_APP}", 303),
        "bytes": Response(b'{"healthy":"\xff"}', media_type="application/json"),
        "echo": JSONResponse({"detail": {"error": {"code": "unauthorised", "message": EVIL}}}, status_code=401),
        "number": Response(b'{"healthy":true,"status":1e999,"taskset":NaN}', media_type="application/json"),
    }
    for page in pages.values():
        with answering(**{"{rest:path}": page}) as url:
            done = run("doctor", url, "--backend", url, "--json", **variables)
        assert done.exit_code == 1, done.output
        assert json.loads(done.stdout)["ok"] is False
        safe(done.stdout + done.stderr)


def test_eval_of_servers_that_mean_harm(run: Run, tmp_path: Path) -> None:
    about = {"task": {"id": f"../../{EVIL}", "version": EVIL}, "environment": EVIL, "reward": {"formula": EVIL},
             "dataset": {"seeds": {EVIL: [0, 3, 0], "a": [0, 5]}}}  # fmt: skip
    evil = EVIL.replace(SYNTH, "")  # which an evaluation knows nothing of
    about = json.loads(json.dumps(about).replace(SYNTH, ""))
    answers: dict[str, Any] = {
        "no rollout": {"rollout_id": evil},
        "failed": JSONResponse({"detail": {"error": {"code": evil, "message": evil, "boundary": "environment",
                                                     "rollout_id": evil}}}, status_code=500),
        "refused": JSONResponse({"detail": evil}, status_code=403),
        "page": Response(f"<html>{TASK_APP}", media_type="text/html"),
        "away": RedirectResponse(f"http://evil.example/{TASK_APP}", 303),
    }  # fmt: skip
    for name, told in answers.items():
        routes = {"task_info": about, "info": {"versions": {"kit": evil}}, "rollout": told, "{rest:path}": {}}
        with answering(**routes) as url:
            done = run("eval", url, "--seeds", "0-2", "--policy", "random", "--key", TASK_APP)
        assert done.exit_code == 1, (name, done.stderr)
        safe(done.output + done.stderr)
    for path in (tmp_path / ".taskapp").rglob("*"):
        assert path.resolve().is_relative_to(tmp_path)
        assert not path.is_file() or TASK_APP not in path.read_text()


@pytest.mark.process
def test_setup_with_a_backend_that_means_harm(run: Run, tmp_path: Path) -> None:
    for key in ("!!!", base64.b64encode(bytes(32)).decode(), "QUJD", 7, EVIL):
        with answering(**{"api__v1__crypto__public-key": {"public_key": key}, "{rest:path}": {}}) as url:
            variables = {**dict.fromkeys(NAMES, ""), "SYNTH_API_KEY": SYNTH, "ENVIRONMENT_API_KEY": TASK_APP}
            done = run("setup", "--backend-url", url, "--upload-key", **variables)
        assert done.exit_code == 1, done.stderr
        safe(done.output + done.stderr)


@pytest.mark.ci
@pytest.mark.process
def test_a_server_that_takes_and_never_answers_is_told_of_and_left_by_one_ctrl_c(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        with Terminal(tmp_path, "eval", url, "--seeds", "0-2") as terminal:
            terminal.wait(f"Waiting for a response from {url}")
            terminal.interrupt()
            assert terminal.end() == 1
    assert "Stopped." in terminal.text
    assert "Traceback" not in terminal.text
