"""Which task apps a backend calls."""

from __future__ import annotations

import asyncio
import ipaddress

import pytest

from taskapp_kit.backend.addresses import TaskAppAddresses
from taskapp_kit.errors import ConfigError, RequestError


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
            "http://[fd00:ec2::254]", "http://[64:ff9b::a9fe:a9fe]", "http://169.254.170.2"]  # fmt: skip
PRIVATE = ["http://127.0.0.1:8001", "http://10.1.2.3", "http://192.168.0.1", "http://[::1]:8001", "http://[fd12::1]",
           "http://100.64.0.1", "http://0.0.0.0:8001", "http://[::ffff:10.0.0.1]", "http://localhost:8001"]  # fmt: skip


@pytest.mark.parametrize("url", METADATA)
@pytest.mark.parametrize("local", [True, False])
def test_metadata_is_never_called(url: str, local: bool) -> None:
    with pytest.raises(RequestError, match="metadata or link-local"):
        admit(url, local=local, allow=("0.0.0.0/0", "::/0"))


@pytest.mark.parametrize("url", PRIVATE)
def test_private_addresses_are_called_by_a_local_backend_only(url: str) -> None:
    admit(url, local=True)
    with pytest.raises(RequestError, match="does not call"):
        admit(url, local=False)


def test_an_operator_allows_hosts_and_networks() -> None:
    admit("http://10.1.2.3", local=False, allow=("10.0.0.0/8",))
    admit("http://localhost:8001", local=False, allow=("localhost",))
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
    assert TaskAppAddresses(local=False).refusal(ipaddress.ip_address("2606:4700::1111")) is None
