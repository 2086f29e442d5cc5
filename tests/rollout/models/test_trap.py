"""What is really connected to: in a network namespace where every address answers, and counts who comes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("trap_program.py")


def _impossible() -> str | None:
    for program in ("unshare", "ip"):
        if shutil.which(program) is None:
            return f"needs {program} (Debian: apt-get install iproute2 util-linux)"
    tried = subprocess.run(
        ["unshare", "-n", "ip", "link", "set", "lo", "up"], check=False, capture_output=True, text=True
    )
    return None if tried.returncode == 0 else f"no network namespace can be made: {tried.stderr.strip()[:200]}"


WHY_NOT = _impossible()
pytestmark = [pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""), pytest.mark.process]


def trapped(calls: list[list[Any]], loop: str = "asyncio") -> list[list[Any]]:
    done = subprocess.run(
        ["unshare", "-n", sys.executable, str(PROGRAM), loop],
        check=False,
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)  # type: ignore[no-any-return]


HOSTS = [
    # metadata
    "169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "[fd00:ec2::254]", "[fd20:ce::254]",
    "[::ffff:169.254.169.254]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::1]", "metadata.google.internal", "metadata.example",
    # loopback, private, and the others
    "127.0.0.1", "127.8.9.1", "[::1]", "0.0.0.0", "[::]", "10.0.0.5", "172.16.3.4", "192.168.1.1", "100.64.0.1", "169.254.7.7",
    "[fe80::1]", "[fc00::1]", "[fd12::1]", "[fec0::1]", "224.0.0.1", "[ff02::1]", "240.0.0.1", "255.255.255.255", "192.0.2.1",
    # other forms of 127.0.0.1
    "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "017700000001", "127.1", "127.0.1", "0", "127.0.0.1.", "127.0.0.1..",
    "１２７.０.０.１", "127。0。0。1", "①②⑦.0.0.1", "2130706433.", "%31%32%37.0.0.1", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]",
    "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[2001:db8::5efe:7f00:1]", "[0:0:0:0:0:ffff:7f00:1]", "[::1%25lo]",
    # tricks of reading
    "public.example@127.0.0.1", "127.0.0.1#@public.example", "127.0.0.1\\@public.example", "public.example\\@127.0.0.1",
    "127.0.0.1:80\\.public.example", "127.0.0.1?@public.example", "public.example＠127.0.0.1", "127.0.0.1%00.public.example",
    # names
    "localhost", "LOCALHOST", "localhost.", "x.localhost", "private.example", "PRIVATE.example.", "loopback.example",
    "loopback6.example", "mapped.example", "nat64.example", "linklocal6.example", "mixed.example", "mixed6.example",
]  # fmt: skip
REDIRECTED = [
    f"http://public.example/redirect/{status}/http/{target}/v1"
    for status in (301, 302, 303, 307, 308)
    for target in (
        "127.0.0.1",
        "169.254.169.254",
        "10.0.0.5",
        "[::1]",
        "2130706433",
        "private.example",
        "public.example:81",
    )
]


@pytest.mark.parametrize("loop", ["asyncio", pytest.param("uvloop", marks=pytest.mark.exhaustive)])
def test_no_hostile_address_is_connected_to(loop: str) -> None:
    hosts = [f"http://{host}/v1/chat/completions" for host in HOSTS] + [
        f"http://{host}:8000/v1" for host in HOSTS if host[-1] != "."
    ]
    told = trapped([["public", [], [url]] for url in [*hosts, "http://public.example/v1"]], loop)
    assert told.pop() == ["public", "http://public.example/v1", "answered", ["93.184.216.34"]]  # so the trap does catch
    assert {outcome for _, _, outcome, _ in told} == {"address_refused", "invalid_address"}
    assert [(url, caught) for _, url, _, caught in told if caught] == []


def test_a_public_address_is_connected_to_in_each_form_of_it() -> None:
    told = trapped(
        [["public", [], [f"http://{host}/v1"]] for host in ("93.184.216.34", "[2606:4700::1111]", "９３.184.216.34.")]
    )
    assert [(outcome, caught) for _, _, outcome, caught in told] == [
        ("answered", ["93.184.216.34"]), ("answered", ["2606:4700::1111"]), ("answered", ["93.184.216.34"]),
    ]  # fmt: skip


def test_a_name_that_leads_elsewhere_the_second_time() -> None:
    """The port changes, so that the name is resolved anew."""
    told = trapped(
        [
            ["public", [], [f"http://{name}/v1", f"http://{name}:81/v1"]]
            for name in ("rebinding.example", "to-metadata.example")
        ]
    )
    assert [(outcome, caught) for _, _, outcome, caught in told] == [("address_refused", ["93.184.216.34"])] * 2


def test_no_redirect_is_followed_elsewhere() -> None:
    told = trapped([["public", [], [url]] for url in REDIRECTED])
    assert [(url, outcome, caught) for _, url, outcome, caught in told] == [
        (url, "model_redirected", ["93.184.216.34"]) for url in REDIRECTED
    ]


def test_local_exposure_allows_private_addresses_except_metadata() -> None:
    ordinary = ["127.0.0.1", "[::1]", "10.0.0.5", "private.example", "loopback.example", "[fd12::1]"]
    metadata = HOSTS[:11]
    told = trapped([["local", [], [f"http://{host}/v1"]] for host in [*ordinary, *metadata, "metadata.example"]])
    assert [(outcome, len(caught)) for _, _, outcome, caught in told[: len(ordinary)]] == [("answered", 1)] * len(
        ordinary
    )
    assert [(outcome, caught) for _, _, outcome, caught in told[len(ordinary) :]] == [("address_refused", [])] * 12


def test_only_allowed_addresses_are_called() -> None:
    told = trapped(
        [
            ["public", ["10.0.0.0/8"], ["http://10.0.0.5/v1"]],
            ["public", ["10.0.0.0/8"], ["http://private.example/v1"]],
            ["public", ["private.example"], ["http://private.example/v1"]],
            ["public", ["*.example"], ["http://metadata.example/v1"]],
            ["public", ["private.example"], ["http://private.example/v1", "http://10.0.0.5/v1"]],
            ["public", ["10.0.0.0/8"], ["http://192.168.1.1/v1"]],
            ["public", ["0.0.0.0/0", "::/0"], ["http://169.254.169.254/v1"]],
        ]
    )
    assert [(outcome, caught) for _, _, outcome, caught in told] == [
        ("answered", ["10.0.0.5"]), ("answered", ["10.0.0.5"]), ("answered", ["10.0.0.5"]), ("address_refused", []),
        ("address_refused", ["10.0.0.5"]), ("address_refused", []), ("address_refused", []),
    ]  # fmt: skip
