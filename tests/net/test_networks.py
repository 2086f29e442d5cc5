"""Kinds of addresses."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.net.addresses import METADATA, embedded, is_metadata, kind_of

address = ipaddress.ip_address


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("0.0.0.0", "an unspecified address"), ("::", "an unspecified address"), ("127.0.0.1", "a loopback address"),
        ("127.255.0.9", "a loopback address"), ("::1", "a loopback address"), ("10.1.2.3", "a private address"),
        ("172.31.0.1", "a private address"), ("192.168.9.9", "a private address"), ("169.254.1.1", "a link-local address"),
        ("fe80::1", "a link-local address"), ("100.64.0.1", "a carrier's shared address"),
        ("100.127.255.255", "a carrier's shared address"), ("fc00::1", "a unique-local address"),
        ("fdff::1", "a unique-local address"), ("fec0::1", "a site-local address"), ("224.0.0.1", "a multicast address"),
        ("ff02::1", "a multicast address"), ("240.0.0.1", "a reserved address"), ("255.255.255.255", "a reserved address"),
        ("0.1.2.3", "a private address"), ("192.0.2.1", "a private address"), ("198.18.0.1", "a private address"),
        ("2001:db8::1", "a private address"), ("8.8.8.8", None), ("100.63.255.255", None), ("100.128.0.1", None),
        ("172.32.0.1", None), ("2606:4700::1111", None),
    ],
)  # fmt: skip
def test_kinds(text: str, kind: str | None) -> None:
    assert kind_of(address(text)) == kind


@given(st.ip_addresses())
def test_what_the_library_calls_not_global_is_never_public(
    found: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if not found.is_global or found.is_private or found.is_multicast or found.is_loopback or found.is_link_local:
        assert kind_of(found) is not None


@pytest.mark.parametrize(
    "form",
    [
        "::ffff:{d}",
        "::{d}",
        "64:ff9b::{d}",
        "64:ff9b:1::{d}",
        "2002:{h}::1",
        "2001:db8::5efe:{d}",
        "2001:db8::200:5efe:{d}",
    ],
)
@given(inner=st.ip_addresses(v=4))
def test_an_ipv4_address_inside(form: str, inner: ipaddress.IPv4Address) -> None:
    written = f"{inner.packed[:2].hex()}:{inner.packed[2:].hex()}"
    found = address(form.format(d=inner, h=written))
    assert embedded(found) == (None if found in (address("::"), address("::1")) else inner)
    assert is_metadata(found) is (inner in METADATA)


def test_teredo() -> None:
    assert embedded(address("2001:0:4136:e378:8000:63bf:5601:5601")) == address("169.254.169.254").__class__(
        "169.254.169.254"
    )
    assert is_metadata(address("2001:0:4136:e378:8000:63bf:5601:5601"))


@pytest.mark.parametrize("text", ["2606:4700::1111", "fe80::1", "::1", "::", "8.8.8.8"])
def test_most_hold_none(text: str) -> None:
    assert embedded(address(text)) is None
