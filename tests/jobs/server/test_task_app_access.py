"""Asking task apps: what is really connected to, whatever a name leads to; how long; what of its words is kept."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from taskapp_kit.errors import ConfigError, RequestError, TaskAppUnreachable
from taskapp_kit.jobs.server.task_app_access import OpenedTaskApp, TaskAppAccess, TaskAppAddresses
from tests.jobs.server.exchange import APP_KEY, Backend, ScriptedApp, backend, failure, seal, serving

pytestmark = pytest.mark.server


@pytest.mark.parametrize(
    "url",
    [None, 7, "", "  ", "ftp://host", "host:80", "http://", "http://u:p@host", "http://u@host", "https://host/?key=x",
     "http://host#x", "http://ho st", "http://host\\@evil", "http://host:99999", "http://[::1", "http://x/" + "a" * 3000],
)  # fmt: skip
def test_what_is_no_address_is_refused_and_not_repeated(url: object) -> None:
    with pytest.raises(RequestError) as refused:
        TaskAppAddresses(local=True).read(url)
    if isinstance(url, str) and len(url.strip()) > len("http://"):
        assert url not in str(refused.value)


def test_an_address_loses_its_last_slash() -> None:
    assert TaskAppAddresses(local=True).read(" https://my-app.modal.run/ ") == "https://my-app.modal.run"


def admit(url: str, *, local: bool, allow: tuple[str, ...] = ()) -> None:
    asyncio.run(TaskAppAddresses(local=local, allow=allow).admit(url))


METADATA = ["http://169.254.169.254", "http://[fe80::1]", "http://100.100.100.200", "http://[::ffff:169.254.169.254]",
            "http://[fd00:ec2::254]", "http://[64:ff9b::a9fe:a9fe]", "http://169.254.170.2", "http://[2002:a9fe:a9fe::1]",
            "http://[2001:db8::5efe:a9fe:a9fe]", "http://[::a9fe:a9fe]", "http://metadata.google.internal",
            "http://METADATA.google.internal.:80", "http://[fd00:ec2::23]", "http://224.0.0.1", "http://192.0.0.192"]  # fmt: skip
PRIVATE = ["http://127.0.0.1:8001", "http://10.1.2.3", "http://192.168.0.1", "http://[::1]:8001", "http://[fd12::1]",
           "http://100.64.0.1", "http://0.0.0.0:8001", "http://[::ffff:10.0.0.1]", "http://localhost:8001",
           "http://[2002:7f00:1::]", "http://[2001:db8::5efe:7f00:1]", "http://[::7f00:1]", "http://[fec0::1]",
           "http://2130706433", "http://127.1", "http://0x7f.0.0.1", "http://240.0.0.1", "http://192.0.2.1"]  # fmt: skip


@pytest.mark.parametrize("url", METADATA)
@pytest.mark.parametrize("local", [True, False])
def test_metadata_is_never_called(url: str, local: bool) -> None:
    with pytest.raises(RequestError):
        admit(url, local=local, allow=("0.0.0.0/0", "::/0"))


@pytest.mark.parametrize("url", PRIVATE)
def test_private_addresses_are_called_by_a_local_backend_only(url: str) -> None:
    admit(url, local=True)
    with pytest.raises(RequestError):
        admit(url, local=False)


def test_an_operator_allows_hosts_and_networks() -> None:
    admit("http://10.1.2.3", local=False, allow=("10.0.0.0/8",))
    admit("http://localhost:8001", local=False, allow=("localhost",))
    admit("http://LOCALHOST.:8001", local=False, allow=("localhost.",))
    admit("http://[fd12::1]", local=False, allow=("fd12::/16",))
    admit("http://[64:ff9b::808:808]", local=False, allow=("64:ff9b::/96",))  # a network without IPv4 calls 8.8.8.8 so
    admit("http://[::ffff:10.1.2.3]", local=False, allow=("10.0.0.0/8",))
    with pytest.raises(RequestError):
        admit("http://10.1.2.3", local=False, allow=("10.2.0.0/16",))
    admit("http://8.8.8.8", local=False)
    for wrong in ("", "http://host", "10.0.0.0/33", "u@host"):
        with pytest.raises(ConfigError):
            TaskAppAddresses(local=False, allow=(wrong,))


def test_a_guard_judges_the_address_itself() -> None:
    guard = TaskAppAddresses(local=False, allow=("tasks.internal",)).guard("https://tasks.internal:8443/x")
    assert guard("10.0.0.1") is None
    assert "metadata" in str(guard("169.254.169.254"))
    guard = TaskAppAddresses(local=False).guard("https://tasks.internal")
    assert guard("93.184.216.34") is guard("2606:4700::1111") is None
    for address in ("10.0.0.1", "::1", "fe80::1%lo", "no address"):
        assert guard(address) is not None


def test_a_task_apps_key_is_sent_to_another_one_only_where_that_is_trusted() -> None:
    url, key = "https://first.example.org", "k" * 20
    for local, allow in ((True, ()), (False, ("second.example.org",))):
        first = OpenedTaskApp(url, key, TaskAppAddresses(local=local, allow=allow), (key,), 0)
        second = first.elsewhere("https://second.example.org")
        assert (second.url, second.handover().key) == ("https://second.example.org", key)
    first = OpenedTaskApp(url, key, TaskAppAddresses(local=False), (key,), 0)
    with pytest.raises(ConfigError, match=r"was not sent to https://second\.example\.org"):
        first.elsewhere("https://second.example.org")


PUBLIC = "93.184.216.34"


class ScriptedResolver(asyncio.SelectorEventLoop):
    """A loop whose names lead where `table` says: to the addresses of the first time, of the second, …"""

    table: dict[str, list[list[str]]]

    async def getaddrinfo(self, host: Any, port: Any, **more: Any) -> list[Any]:  # type: ignore[override]
        if host not in self.table:
            return await super().getaddrinfo(host, port, **more)
        answers = self.table[host]
        told = answers.pop(0) if len(answers) > 1 else answers[0]
        families = [socket.AF_INET6 if ":" in address else socket.AF_INET for address in told]
        return [
            (family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))
            for family, address in zip(families, told, strict=True)
        ]


def resolving(
    table: dict[str, list[list[str]]],
    use: Callable[[TaskAppAccess], Awaitable[None]],
    own_key: str | None = None,
    **rule: Any,
) -> None:
    def loop() -> ScriptedResolver:
        made = ScriptedResolver()
        made.table = table
        return made

    async def no_keys(_: str) -> list[tuple[str, str]]:
        return []

    async def run() -> None:
        await use(TaskAppAccess(no_keys, None, TaskAppAddresses(**rule), own_key))

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


@pytest.fixture
def open_app() -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """The port of a task app that opens to all, and each request's path and key."""
    came: list[tuple[str, str | None]] = []

    async def health(request: Request) -> Response:
        came.append((request.url.path, request.headers.get("x-api-key")))
        return JSONResponse({"healthy": True})

    with serving(Starlette(routes=[Route("/{any:path}", health)])) as url:
        yield url.rpartition(":")[2], came


@pytest.mark.parametrize("local", [True, False])
def test_a_name_that_leads_elsewhere_the_second_time_is_not_connected_to(local: bool, open_app: Any) -> None:
    port, came = open_app

    async def use(access: TaskAppAccess) -> None:
        there = f"http://rebinding.example:{port}"
        with pytest.raises(TaskAppUnreachable):
            await access.client("org", there)
        assert (await access.verify("org", there))["any_ok"] is False

    second = "169.254.169.254" if local else "127.0.0.1"
    resolving({"rebinding.example": [[PUBLIC], [second]] * 2}, use, local=local)
    assert came == []


def test_a_name_with_a_private_address_beside_a_public_one_is_refused() -> None:
    async def use(access: TaskAppAccess) -> None:
        with pytest.raises(RequestError):
            await access.client("org", "http://mixed.example:9")

    resolving({"mixed.example": [[PUBLIC, "127.0.0.1"]]}, use, local=False)


def test_a_name_may_change_while_a_client_is_open(open_app: Any) -> None:
    port, came = open_app

    async def use(access: TaskAppAccess) -> None:
        client = OpenedTaskApp(f"http://moves.example:{port}", None, access.addresses, (), 0)
        await client.health()
        await client.aclose()  # the next request makes a connection of its own
        with pytest.raises(TaskAppUnreachable):
            await client.health()
        await client.aclose()

    resolving({"moves.example": [["127.0.0.1"], ["169.254.169.254"]]}, use, local=True)
    assert came == [("/health", None)]


def test_an_allowed_name_may_lead_to_this_machine_but_never_to_metadata(open_app: Any) -> None:
    port, came = open_app

    async def use(access: TaskAppAccess) -> None:
        await (await access.client("org", f"http://tasks.example:{port}")).aclose()
        with pytest.raises(RequestError):
            await access.client("org", f"http://metadata.google.internal:{port}")

    allow = ("tasks.example", "metadata.google.internal")
    resolving({"tasks.example": [["127.0.0.1"]]}, use, local=False, allow=allow)
    assert came == [("/health", None)]


@pytest.mark.parametrize(
    ("rule", "sent"),
    [
        ({"local": False, "allow": ["127.0.0.0/8"]}, None),  # may be called, but this host was not named
        ({"local": False, "allow": ["mine.example"]}, APP_KEY),
        ({"local": True}, APP_KEY),
    ],
)
def test_the_backends_own_key_goes_only_where_its_operator_trusts_the_address(
    rule: dict[str, Any], sent: str | None, open_app: Any
) -> None:
    """Whoever submits a job chooses the address."""
    port, came = open_app

    async def use(access: TaskAppAccess) -> None:
        there = f"http://mine.example:{port}"
        await (await access.client("org", there)).aclose()
        await access.verify("org", there)

    resolving({"mine.example": [["127.0.0.1"]]}, use, APP_KEY, **rule)
    assert {key for _, key in came} == {sent}


def sealed_into(back: Backend, **keys: str) -> None:
    public = back.http.get("/v1/crypto/public-key").json()["public_key"]
    for name, key in keys.items():
        body = {"name": name, "ciphertext_b64": seal(public, key.encode())}
        answer = back.http.post("/v1/env-keys", json=body)
        assert answer.status_code == 200, answer.text


FIRST, SECOND = "Zq8WvLmP-first-uploaded", "Hy3RtKcX-second-uploaded"


def test_a_key_that_was_refused_does_not_come_back_in_later_words() -> None:
    """The task app is shown several keys; it takes the last and repeats the others, in every place that is kept."""
    app = ScriptedApp(key=APP_KEY)
    app.info = {"taskset": {"kind": "rows", "seeds": {f"train {FIRST} {SECOND}": [0, 9]}},
                "inference": {"policies": ["random"]}}  # fmt: skip
    seen: list[int] = []

    def play(body: dict[str, Any]) -> Any:
        seen.append(1)
        words = f"keys {FIRST} {SECOND} {APP_KEY}"
        if len(seen) == 1:
            status, answer = 200, {"run_id": "r", "metrics": {"mean_return": 1.0}, "rollout_id": FIRST + APP_KEY}
        else:
            status, answer = failure(status=422)
            answer["detail"]["error"] |= {"message": words, "hint": words, "code": SECOND, "rollout_id": FIRST}
            answer["detail"]["error"].pop("boundary")
        return status, answer

    app.play = play
    with serving(app.app()) as url, backend() as back:
        sealed_into(back, ENVIRONMENT_API_KEY=FIRST, DEV_ENVIRONMENT_API_KEY=SECOND)
        body = {"model": "m", "endpoint_base_url": url, "trainer": {"batch_size": 4, "group_size": 1}}
        job_id = back.http.post("/rl/jobs", json=body).json()["job_id"]
        status, events = back.ended(job_id), back.events(job_id)
        assert status["status"] == "failed", status
        place = back.state.jobs.records._place

        def everything(connection: Any) -> str:
            rows = [connection.exec_driver_sql(f"SELECT * FROM {name}").fetchall()
                    for name in ("backend_jobs", "backend_events", "backend_rollouts", "backend_points")]  # fmt: skip
            return str(rows)

        kept = place.transact_now(everything, writes=False)
    assert "(key)" in status["error"]
    for key in (FIRST, SECOND, APP_KEY):
        for start in range(len(key) - 5):
            assert key[start : start + 6] not in str((status, events)) + kept, key[start : start + 6]


def test_verify_does_not_try_every_key_where_nobody_answers() -> None:
    with serving(ScriptedApp().app()) as url:
        pass
    with backend() as back:
        sealed_into(back, **{f"ENVIRONMENT_API_KEY_{n}": f"key-number-{n}" for n in range(5)})
        told = back.http.post("/rl/verify_task_app", json={"endpoint_base_url": url}).json()
    assert len(told["results"]) == 1
    assert told["results"][0]["health"] == {"ok": False, "status": 0}


def test_a_huge_answer_is_not_taken_in() -> None:
    big = Response(b'{"healthy": true, "x": "' + b"y" * (17 << 20) + b'"}', media_type="application/json")

    async def health(_: Request) -> Response:
        return big

    with serving(Starlette(routes=[Route("/health", health)])) as url, backend() as back:
        status = back.ended(back.submit(url))
    assert status["status"] == "failed"
    assert "more than 16 MiB" in status["error"]


def test_only_so_many_keys_are_kept() -> None:
    with backend() as back:
        sealed_into(back, **{f"K{n}": f"key-number-{n}" for n in range(64)})
        public = back.http.get("/v1/crypto/public-key").json()["public_key"]
        ciphertext = seal(public, b"another")
        refused = back.http.post("/v1/env-keys", json={"name": "K64", "ciphertext_b64": ciphertext})
        assert (refused.status_code, refused.json()["detail"]["error"]["code"]) == (422, "too_many_keys")
        assert back.http.post("/v1/env-keys", json={"name": "K7", "ciphertext_b64": ciphertext}).status_code == 200
