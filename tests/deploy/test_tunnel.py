"""The way in from outside: which one is chosen, and what cloudflared (scripted; the real one never ran here) leads to."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.deploy.tunnel.gateway_tunnel import gateway_tunnel
from taskapp_kit.deploy.tunnel.open_tunnel import Cloudflared, open_tunnel
from taskapp_kit.deploy.tunnel.tunnel_settings import Timing, TunnelPlan, plan_tunnel
from taskapp_kit.errors import BadArgument, TunnelError
from taskapp_kit.net.response import json_answer
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.train.gateway.gateway_options import GatewayOptions
from tests.deploy import tiny_app
from tests.deploy.tunnel_peers import (
    ADDRESS,
    BOX,
    GARBAGE,
    QUIET,
    REFUSED,
    Edge,
    FakeCloudflared,
    free_port,
    gone,
)
from tests.waiting import alive

pytestmark = pytest.mark.process

KEY = "sentinel-key-of-the-tunnel"
TOKEN = "sentinel-token-of-the-tunnel"
QUICKLY = Timing(attempts=1, address_seconds=20.0, tries=2, first_seconds=0.0, pause_seconds=0.05)
SEEN = frozenset({"healthy"})


class App:
    """Answers every request in one way, and notes what it was asked with."""

    def __init__(self, body: Any = None, status: int = 200, headers: Any = ()) -> None:
        self.body, self.status, self.headers = {"healthy": True} if body is None else body, status, list(headers)
        self.asked: list[dict[str, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self.asked.append({name.decode(): value.decode() for name, value in scope["headers"]})
            await json_answer(self.body, self.status, self.headers)(scope, receive, send)


def opened(
    plan: TunnelPlan, local: str = "http://127.0.0.1:8114", key: str | None = KEY, seen: frozenset[str] | None = SEEN
) -> Any:
    return open_tunnel(plan, local, key, seen, threading.Event())


# which way


@pytest.mark.parametrize(
    ("given", "environ", "way"),
    [
        ({"backend_url": "http://127.0.0.1:8500/api"}, {}, "local"),
        ({"backend_url": "http://localhost:8500"}, {}, "local"),
        ({"backend_url": "http://[::1]:8500"}, {}, "local"),
        ({}, {"BACKEND_BASE_URL": "http://127.0.0.1:8500"}, "local"),
        ({}, {"PROD_BACKEND_URL": "http://127.9.9.9"}, "local"),
        ({"backend_url": "https://backend.example.org"}, {"BACKEND_BASE_URL": "http://127.0.0.1:1"}, "quick"),
        ({"backend_url": "localhost:8500"}, {}, "local"),
        ({"backend_url": "http://app.localhost"}, {}, "local"),
        ({"backend_url": "http://127.0.0.1.example.org"}, {}, "quick"),
        ({"backend_url": "https://localhost.example.org"}, {}, "quick"),
        ({"backend_url": "http://0.0.0.0"}, {}, "quick"),
        ({"backend_url": "http://10.0.0.1"}, {}, "quick"),
        ({"backend_url": "http://["}, {}, "quick"),
        ({}, {}, "quick"),
        ({"mode": "local", "backend_url": "https://backend.example.org"}, {}, "local"),
        ({"mode": "quick", "backend_url": "http://127.0.0.1:8500"}, {}, "quick"),
        ({"preconfigured_url": "https://app.example.org/"}, {}, "preconfigured"),
        ({}, {"SYNTH_TASK_APP_URL": "https://app.example.org"}, "preconfigured"),
        ({"backend_url": "http://127.0.0.1:8500"}, {"SYNTH_TASK_APP_URL": "https://app.example.org"}, "preconfigured"),
        ({"mode": "local"}, {"SYNTH_TASK_APP_URL": "https://app.example.org", "SYNTH_TUNNEL_MODE": "quick"}, "local"),
        ({}, {"SYNTH_TUNNEL_MODE": "local"}, "local"),
        ({}, {"SYNTH_TUNNEL_MODE": "auto", "BACKEND_BASE_URL": "http://localhost"}, "local"),
        ({"hostname": "app.example.org", "token": TOKEN}, {}, "named"),
        ({"mode": "named"}, {"SYNTH_TUNNEL_HOSTNAME": "app.example.org", "SYNTH_TUNNEL_TOKEN": TOKEN}, "named"),
        ({"mode": "named", "hostname": "app.example.org"}, {"TUNNEL_TOKEN": TOKEN}, "named"),
    ],
)
def test_which_way_is_taken(given: dict[str, Any], environ: dict[str, str], way: str) -> None:
    plan = plan_tunnel(given.pop("mode", "auto"), cloudflared=sys.executable, environ=environ, **given)
    assert plan.way == way
    assert plan.url == ("https://app.example.org" if way in ("named", "preconfigured") else None)
    assert TOKEN not in repr(plan)


URL = "https://a.example.org"


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("tunnel_mode", {"mode": "qiuck"}),
        ("preconfigured_url", {"mode": "quick", "preconfigured_url": URL}),
        ("tunnel_hostname", {"mode": "quick", "hostname": "a.example.org"}),
        ("preconfigured_url", {"mode": "preconfigured"}),
        ("preconfigured_auth_token", {"preconfigured_url": URL, "preconfigured_auth_header": "X"}),
        ("preconfigured_auth_header", {"preconfigured_url": URL, "preconfigured_auth_token": KEY}),
        ("task-app.example.org", {"preconfigured_url": "https://u:sentinel@a.example.org"}),
        ("task-app.example.org", {"preconfigured_url": "ftp://a.example.org"}),
        ("task-app.example.org", {"preconfigured_url": f"{URL}:x"}),
        ("task-app.example.org", {"preconfigured_url": f"{URL}/?key=sentinel"}),
        ("tunnel_hostname", {"mode": "named"}),
        ("tunnel_token", {"mode": "named", "hostname": "a.example.org"}),
        ("token", {"mode": "named", "hostname": "a.example.org", "token": f"{TOKEN}\n"}),
        *(
            (
                "preconfigured_auth",
                {"preconfigured_url": URL, "preconfigured_auth_header": name, "preconfigured_auth_token": value},
            )
            for name, value in (("X Y", "v"), ("X", "a\r\nY: b"))
        ),
    ],
)
def test_what_does_not_go_together_names_its_option(option: str, given: dict[str, Any]) -> None:
    with pytest.raises(BadArgument, match=option) as raised:
        plan_tunnel(**{"mode": "auto", "cloudflared": sys.executable, "environ": {}, **given})
    assert isinstance(raised.value, ValueError)
    assert "sentinel" not in str(raised.value)


def test_without_cloudflared_a_sentence_says_what_to_do() -> None:
    with pytest.raises(
        TunnelError, match=r'program nix-da was not found.*Install cloudflared.*tunnel_mode="local"'
    ) as raised:
        plan_tunnel(backend_url="https://backend.example.org", cloudflared="nix-da", environ={})
    assert "the backend is on another machine" in str(raised.value)


def test_the_patience_is_read_from_the_environment() -> None:
    environ = {
        "SYNTH_TUNNEL_MAX_ATTEMPTS": "5",
        "SYNTH_TUNNEL_VERIFY_MAX_RETRIES": "7",
        "SYNTH_TUNNEL_VERIFY_DELAY_SECS": "0.5",
        "SYNTH_TUNNEL_VERIFY_INITIAL_DELAY_SECS": "0",
        "SYNTH_TUNNEL_VERIFY_TLS": "false",
    }
    assert Timing.of(environ, "quick") == Timing(5, 30.0, 7, 0.0, 0.5, check_tls=False)
    assert Timing.of({}, "quick") == Timing()
    assert (Timing.of({}, "preconfigured").tries, Timing.of({}, "preconfigured").pause_seconds) == (10, 1.0)
    for name, value in (("SYNTH_TUNNEL_MAX_ATTEMPTS", "0"), ("SYNTH_TUNNEL_VERIFY_DELAY_SECS", "nan")):
        with pytest.raises(BadArgument, match=name):
            Timing.of({name: value}, "quick")
    with pytest.raises(BadArgument, match="SYNTH_TUNNEL_MODE"):
        plan_tunnel(environ={"SYNTH_TUNNEL_MODE": "sentinel"})


# preconfigured


@pytest.mark.server
def test_an_address_that_leads_here_is_tried_with_the_key_and_its_own_header() -> None:
    app = App()
    with BackgroundServer(app) as server:
        plan = plan_tunnel(
            preconfigured_url=server.url + "/",
            preconfigured_auth_header="X-Way-In",
            preconfigured_auth_token="let-me",
            timing=QUICKLY,
            environ={},
        )
        tunnel = opened(plan)
        tunnel.close()
    assert tunnel.url == server.url
    assert (app.asked[0]["x-api-key"], app.asked[0]["x-way-in"]) == (KEY, "let-me")
    assert "let-me" not in repr(plan)


@pytest.mark.server
@pytest.mark.parametrize(
    ("app", "words"),
    [
        (App(status=401), "HTTP 401"),
        (App(status=302, headers=[(b"location", b"https://login.example.org/")]), "HTTP 302"),
        (App(body={"hello": "world"}), "HTTP 200"),
        (App(status=530), r"HTTP 530 \(2 "),
    ],
)
def test_an_address_that_leads_elsewhere_is_no_tunnel(app: App, words: str) -> None:
    with BackgroundServer(app) as server:
        plan = plan_tunnel(preconfigured_url=server.url, timing=QUICKLY, environ={})
        with pytest.raises(TunnelError, match=f"/health: {words}") as raised:
            opened(plan)
    assert KEY not in str(raised.value)


@pytest.mark.server
def test_nobody_there_and_not_asked() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(TunnelError, match="/health: .*refuses"):
        opened(plan_tunnel(preconfigured_url=url, timing=QUICKLY, environ={}))
    assert opened(plan_tunnel(preconfigured_url=url, skip_verification=True, environ={})).url == url


@pytest.mark.server
def test_an_answer_without_end_is_not_read() -> None:
    with BackgroundServer(App(body={"healthy": "x" * 1_000_000})) as server, pytest.raises(TunnelError):
        opened(plan_tunnel(preconfigured_url=server.url, timing=QUICKLY, environ={}))


# quick and named: cloudflared


def quick(fake: FakeCloudflared, timing: Timing = QUICKLY, *, skip: bool = True) -> TunnelPlan:
    return plan_tunnel("quick", cloudflared=fake.path, skip_verification=skip, timing=timing, environ={})


def test_the_address_is_read_from_what_cloudflared_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ENVIRONMENT_API_KEY", KEY)
    fake = FakeCloudflared(tmp_path, BOX)
    tunnel = opened(quick(fake))
    (call,) = fake.calls()
    try:
        assert tunnel.url == ADDRESS
        assert call["argv"] == [
            "tunnel", "--no-autoupdate", "--config", os.devnull, "--url", "http://127.0.0.1:8114",
        ]  # fmt: skip
        assert "ENVIRONMENT_API_KEY" not in call["names"]
        time.sleep(0.5)  # it logs on, more than a pipe holds, and is heard
        assert alive(call["pid"])
    finally:
        tunnel.close()
    assert gone(call["pid"], 0.5)
    tunnel.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "taskapp-tunnel"]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.server
def test_the_tunnel_is_tried_through_its_public_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edge, fake, app = Edge(tmp_path), FakeCloudflared(tmp_path, BOX), App()
    monkeypatch.setenv("HTTPS_PROXY", edge.url)
    timing = Timing(1, 20.0, 2, 0.0, 0.05, check_tls=False)
    try:
        with BackgroundServer(app) as server:
            edge.target = server.port
            tunnel = opened(quick(fake, timing, skip=False))
            tunnel.close()
            assert tunnel.url == ADDRESS
            assert edge.asked == [f"{ADDRESS.removeprefix('https://')}:443"]
            assert app.asked[0]["x-api-key"] == KEY
            with pytest.raises(TunnelError, match="certificate"):
                opened(quick(fake, QUICKLY, skip=False))
    finally:
        edge.close()
    assert all(gone(call["pid"]) for call in fake.calls())


def test_a_cloudflared_that_gives_up_is_tried_three_times_and_quoted(tmp_path: Path) -> None:
    fake = FakeCloudflared(tmp_path, REFUSED)
    with pytest.raises(TunnelError, match=r"\b3 times\): .*status 1: .*ERR failed to request") as raised:
        opened(quick(fake, Timing(3, 20.0, 1, 0.0, 0.01)))
    assert len(fake.calls()) == 3
    assert "preconfigured" in raised.value.hint


@pytest.mark.ci
@pytest.mark.parametrize("behaviour", [QUIET, GARBAGE])
def test_a_cloudflared_that_says_nothing_useful_is_ended(tmp_path: Path, behaviour: str) -> None:
    fake = FakeCloudflared(tmp_path, behaviour)
    with pytest.raises(TunnelError, match=r"cloudflared .*1\.5 s") as raised:
        opened(quick(fake, Timing(1, 1.5, 1, 0.0, 0.01)))
    assert str(raised.value).isprintable()
    assert all(gone(call["pid"]) for call in fake.calls())


def test_a_program_that_is_none(tmp_path: Path) -> None:
    fake = FakeCloudflared(tmp_path, "")
    fake.path.write_text("#!/no/such/interpreter\n")
    with pytest.raises(TunnelError, match="status 127: .*cloudflared"):
        opened(quick(fake))


def test_a_tunnel_that_ends_by_itself_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeCloudflared(tmp_path, f'say("{ADDRESS}")\ntime.sleep(0.3)\nsys.exit(7)\n')
    process = Cloudflared([str(fake.path)])
    try:
        assert process.wait_for_address(20.0, threading.Event()) == ADDRESS
        assert process.ended.wait(20.0)
    finally:
        process.close()
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR] == [
        f"the tunnel {ADDRESS} ended, because cloudflared exited with status 7"
    ]


def test_waiting_can_be_left(tmp_path: Path) -> None:
    fake, leave = FakeCloudflared(tmp_path, QUIET), threading.Event()
    threading.Timer(0.3, leave.set).start()
    begun = time.monotonic()
    with pytest.raises(TunnelError):
        open_tunnel(quick(fake, Timing(3, 300.0)), "http://127.0.0.1:8114", KEY, SEEN, leave)
    assert time.monotonic() - begun < 60


@pytest.mark.server
def test_a_named_tunnel_gets_its_token_where_nobody_else_reads_it(tmp_path: Path) -> None:
    fake = FakeCloudflared(tmp_path, QUIET)

    class Edge530(App):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            self.status = 200 if fake.calls() else 530  # as Cloudflare answers for a tunnel without a program
            await super().__call__(scope, receive, send)

    with BackgroundServer(Edge530()) as server:
        patient = Timing(1, 20.0, 400, 0.0, 0.05)
        plan = plan_tunnel("named", hostname=server.url, token=TOKEN, cloudflared=fake.path, timing=patient, environ={})
        tunnel = opened(plan)
        tunnel.close()
    (call,) = fake.calls()
    assert tunnel.url == server.url
    assert call["argv"][-3:] == ["--url", "http://127.0.0.1:8114", "run"]
    assert TOKEN not in " ".join(call["argv"])
    assert call["token"] == TOKEN


@pytest.mark.server
def test_a_token_is_not_repeated(tmp_path: Path) -> None:
    fake = FakeCloudflared(tmp_path, f'say("ERR bad token {TOKEN}")\nsys.exit(1)\n')
    url = f"http://127.0.0.1:{free_port()}"
    slow = Timing(1, 20.0, 100, 0.0, 0.1)
    plan = plan_tunnel("named", hostname=url, token=TOKEN, cloudflared=fake.path, timing=slow, environ={})
    with pytest.raises(TunnelError, match="status 1: ERR bad token …") as raised:
        opened(plan)
    assert "Check the token" in str(raised.value)


def test_it_gets_no_key_of_anybody_and_no_other_tunnel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "SYNTH_API_KEY", "HF_TOKEN", "TUNNEL_TOKEN", "TUNNEL_NAME", "TUNNEL_HOSTNAME"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("TUNNEL_TRANSPORT_PROTOCOL", "http2")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    fake = FakeCloudflared(tmp_path, BOX)
    opened(quick(fake)).close()
    names = set(fake.calls()[0]["names"])
    assert {"PATH", "TUNNEL_TRANSPORT_PROTOCOL", "https_proxy"} <= names
    assert not names & {"OPENAI_API_KEY", "SYNTH_API_KEY", "HF_TOKEN", "TUNNEL_TOKEN", "TUNNEL_NAME", "TUNNEL_HOSTNAME"}


# what happens to us


PROGRAM = """
import sys, time
from taskapp_kit.deploy.local.in_process import InProcessTaskApp
if __name__ == "__main__":
    app, fake, port = sys.argv[1:]
    task_app = InProcessTaskApp(
        task_app_path=app, port=int(port), tunnel_mode="quick", cloudflared=fake, skip_tunnel_verification=True
    )
    with task_app:
        print(task_app.url, flush=True)
        time.sleep(600)
"""


@contextmanager
def running(tmp_path: Path, fake: FakeCloudflared) -> Iterator[subprocess.Popen[str]]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, str(program), tiny_app.__file__, str(fake.path), str(free_port())],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 — a shell's child ignores it
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.server
def test_ctrl_c_ends_everything_and_comes_out_as_itself(tmp_path: Path) -> None:
    fake = FakeCloudflared(tmp_path, BOX)
    with running(tmp_path, fake) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == ADDRESS
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)
        assert process.returncode in (-signal.SIGINT, 130)
        assert complaint.rstrip().endswith("KeyboardInterrupt")
        assert "Exception ignored" not in complaint
        assert gone(fake.calls()[0]["pid"], 1.0)


# of a gateway


def test_a_gateways_tunnel_has_an_https_address_and_a_port_that_stays(tmp_path: Path) -> None:
    fake = FakeCloudflared(tmp_path, BOX + QUIET)
    with gateway_tunnel(GatewayOptions(tunnel=True), cloudflared=fake.path, timing=QUICKLY) as options:
        assert options == GatewayOptions(port=options.port, url=ADDRESS, tunnel=True)
        (call,) = fake.calls()
        assert f"http://127.0.0.1:{options.port}" in call["argv"]
        pid = call["pid"]
        assert alive(pid)
    assert gone(pid)


def test_a_gateways_tunnel_that_cannot_be_opened_says_what_to_do_instead(tmp_path: Path) -> None:
    fake = FakeCloudflared(tmp_path, REFUSED)
    with (
        pytest.raises(TunnelError) as raised,
        gateway_tunnel(GatewayOptions(tunnel=True), cloudflared=fake.path, timing=QUICKLY),
    ):
        pass
    assert "no such host" in str(raised.value)
    assert "--gateway-url https://" in str(raised.value)
    with (
        pytest.raises(TunnelError, match="--gateway-tunnel requires cloudflared"),
        gateway_tunnel(GatewayOptions(tunnel=True), cloudflared=tmp_path / "not-there"),
    ):
        pass
