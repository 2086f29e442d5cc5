"""Which task apps a backend calls."""

from __future__ import annotations

import asyncio

import pytest

from taskapp_kit.errors import ConfigError, RequestError
from taskapp_kit.jobs.server.opened_task_app import OpenedTaskApp
from taskapp_kit.jobs.server.task_app_addresses import TaskAppAddresses


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
    with pytest.raises(RequestError, match="link-local"):
        admit(url, local=local, allow=("0.0.0.0/0", "::/0"))


@pytest.mark.parametrize("url", PRIVATE)
def test_private_addresses_are_called_by_a_local_backend_only(url: str) -> None:
    admit(url, local=True)
    with pytest.raises(RequestError, match="--allow-task-app"):
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


def test_the_backends_own_key_goes_where_its_operator_trusts() -> None:
    assert TaskAppAddresses(local=True).trusts("https://anywhere.example")
    public = TaskAppAddresses(local=False, allow=("tasks.example", "10.0.0.0/8"))
    assert public.trusts("https://tasks.example")
    assert public.trusts("http://10.1.1.1:8001")
    assert not public.trusts("https://anywhere.example")


def test_a_public_address_is_no_refusal() -> None:
    assert TaskAppAddresses(local=False).guard("https://tasks.example")("2606:4700::1111") is None


def test_a_guard_judges_the_address_itself() -> None:
    guard = TaskAppAddresses(local=False, allow=("tasks.internal",)).guard("https://tasks.internal:8443/x")
    assert guard("10.0.0.1") is None
    assert "metadata" in str(guard("169.254.169.254"))
    guard = TaskAppAddresses(local=False).guard("https://tasks.internal")
    assert guard("93.184.216.34") is None
    for address in ("10.0.0.1", "::1", "fe80::1%lo", "no address"):
        assert str(guard(address)).endswith("which this backend does not call.")


def test_a_task_apps_key_is_sent_to_another_one_only_where_that_is_trusted() -> None:
    url, key = "https://first.example.org", "k" * 20
    for local, allow in ((True, ()), (False, ("second.example.org",))):
        first = OpenedTaskApp(url, key, TaskAppAddresses(local=local, allow=allow), (key,), 0)
        second = first.elsewhere("https://second.example.org")
        assert (second.url, second.handover().key) == ("https://second.example.org", key)
    first = OpenedTaskApp(url, key, TaskAppAddresses(local=False), (key,), 0)
    with pytest.raises(ConfigError, match=r"is not sent to https://second\.example\.org"):
        first.elsewhere("https://second.example.org")
