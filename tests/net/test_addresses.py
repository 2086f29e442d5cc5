"""How an address is read, and which may be called. What is really connected to: test_connecting and test_trap."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from taskapp_kit.errors import ConfigError, RequestError
from taskapp_kit.net import addresses
from taskapp_kit.net.addresses import (
    AddressPolicy,
    NotAnAddress,
    check_address,
    embedded,
    is_metadata,
    kind_of,
    read_url,
)
from taskapp_kit.wire.inference_url import INFERENCE_URL

PUBLIC = AddressPolicy("public")
LOCAL = AddressPolicy("local")


@pytest.mark.parametrize(
    ("url", "called"),
    [
        ("https://api.openai.com/v1/chat/completions", "https://api.openai.com/v1/chat/completions"),
        ("HTTPS://API.OpenAI.com:443/v1?cid=a%20b&x=ä#f", "https://api.openai.com/v1?cid=a%20b&x=%C3%A4"),
        ("http://h.example.", "http://h.example/"),
        ("http://h.example:8000?cid=1", "http://h.example:8000/?cid=1"),
        ("http://bücher.example/v1", "http://xn--bcher-kva.example/v1"),
        ("http://[2606:4700:0:0::1111]:80/v1", "http://[2606:4700::1111]/v1"),
        ("https://vllm_server:8000/v1", "https://vllm_server:8000/v1"),
        ("https://h.example/rollouts/r-1/v1?cid=x%2Fy", "https://h.example/rollouts/r-1/v1?cid=x%2Fy"),
        ("https://h.example/a@b", "https://h.example/a@b"),
        ("https://８.8.8.8/", "https://8.8.8.8/"),
    ],
)
def test_reading(url: str, called: str) -> None:
    assert read_url(url).url == called
    assert read_url(called).url == called
    assert str(URL(called, encoded=True)) == called


@pytest.mark.parametrize(
    "url",
    [
        "", "h.example/v1", "//h.example/v1", "ftp://h.example/", "file:///etc/passwd", "javascript:alert(1)", "http://",
        "http:///v1", "http:h.example", "http://h.example:0/", "http://h.example:99999/", "http://h.example:8o/",
        "http://h.example:８０/", "http://u:p@h.example/", "http://u@h.example/", "http://u＠h.example/", "http://h.example\\@e/",
        "http://h example/", "http://h.example/a b", "http://h.example/\r\nX: y", "http://h.example\t/", "http://h%2eexample/",
        "http://[::1", "http://[::1]x/", "http://[fe80::1%25eth0]/", "http://[fe80::1%eth0]/", "http://[127.0.0.1]/",
        "http://2130706433/", "http://0x7f000001/", "http://0x7f.0.0.1/", "http://0177.0.0.1/", "http://127.1/", "http://127.0.1/",
        "http://0/", "http://0x/", "http://１２７.１/", "http://256.0.0.1/", "http://1.2.3.4.5/", "http://h.0x10/", "http://017700000001/",
        "http://..example/", "http://a..b/", "http://-a.example/", "http://" + "a" * 64 + ".example/", "http://h.example/" + "a" * 5000,
        "http://*.example/", "http://h.example,g.example/",
    ],
)  # fmt: skip
def test_invalid_address_is_rejected(url: str) -> None:
    with pytest.raises(NotAnAddress):
        read_url(url)
    for exposure in ("public", "local"):
        with pytest.raises(RequestError) as caught:
            check_address(url, exposure)  # type: ignore[arg-type]
        assert caught.value.fields[0].loc == INFERENCE_URL
        assert caught.value.code == "invalid_address"
        assert "u:p" not in str(caught.value)


@given(st.text(max_size=60), st.sampled_from(["http://", "https://", "http://[", "http://127.0.0.1", "http://a@", ""]))
def test_any_text_is_read_or_refused_and_no_other_reader_sees_another_host(text: str, head: str) -> None:
    try:
        called = read_url(head + text)
    except NotAnAddress:
        return
    assert called.url.isascii() and called.url.isprintable()
    for host in (urlsplit(called.url).hostname, URL(called.url, encoded=True).raw_host):
        assert host == called.host
    assert read_url(called.url) == called


@given(st.ip_addresses(v=4), st.sampled_from(["{}", "{}.", "[::ffff:{}]", "[::{}]", "[64:ff9b::{}]"]))
def test_unusual_ipv4_forms_are_rejected(address: ipaddress.IPv4Address, form: str) -> None:
    host = read_url(f"http://{form.format(address)}/").host
    plain = PUBLIC.refusal(str(address), str(address))
    if form.startswith("["):
        assert PUBLIC.refusal(host, host) is not None
    else:
        assert PUBLIC.refusal(host, host) == plain


PRIVATE = [
    "127.0.0.1", "127.0.0.1.", "１２７.０.０.１", "127。0。0。1", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]",
    "[64:ff9b::127.0.0.1]", "[2002:7f00:1::]", "[64:ff9b::8.8.8.8]", "[::ffff:8.8.8.8]", "10.0.0.1", "172.16.0.1", "192.168.0.1",
    "100.64.0.1", "169.254.1.1", "[fe80::1]", "[fc00::1]", "[fd12::1]", "0.0.0.0", "[::]", "224.0.0.1", "[ff02::1]",
    "255.255.255.255", "240.0.0.1", "192.0.2.1", "localhost", "LOCALHOST.", "a.localhost",
]  # fmt: skip
METADATA = [
    "169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "[fd00:ec2::254]", "[fd20:ce::254]",
    "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::1]", "metadata.google.internal",
    "Metadata.Google.Internal.", "metadata", "instance-data",
]  # fmt: skip


@pytest.mark.parametrize("host", PRIVATE)
def test_public_server_calls_no_private_address(host: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_address(f"http://{host}:8000/v1", "public")
    assert caught.value.code == "address_refused"
    assert caught.value.fields[0].loc == INFERENCE_URL
    assert f"TASKAPP_INFERENCE_ALLOW={read_url(f'http://{host}').host}" in caught.value.hint
    assert check_address(f"http://{host}:8000/v1", "local")


@pytest.mark.parametrize("host", PRIVATE)
def test_hint_contains_the_setting_that_allows_the_address(host: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_address(f"http://{host}/v1", "public")
    line = caught.value.hint.partition("TASKAPP_INFERENCE_ALLOW=")[2].partition(" ")[0]
    assert check_address(f"http://{host}/v1", "public", [line])


@pytest.mark.parametrize("host", METADATA)
@pytest.mark.parametrize("allow", [(), ("0.0.0.0/0", "::/0", "metadata.google.internal", "metadata", "instance-data")])
def test_metadata_address_is_always_rejected(host: str, allow: tuple[str, ...]) -> None:
    for exposure in ("public", "local"):
        with pytest.raises(RequestError) as caught:
            check_address(f"http://{host}/latest", exposure, allow)  # type: ignore[arg-type]
        assert "metadata" in caught.value.message and "No setting allows" in caught.value.hint


@pytest.mark.parametrize(
    ("allow", "host", "address", "allowed"),
    [
        ("10.0.0.0/8", "x", "10.9.8.7", True), ("10.0.0.0/8", "x", "11.0.0.1", True), ("10.0.0.0/8", "x", "192.168.0.1", False),
        ("10.0.0.5", "x", "10.0.0.5", True), ("10.0.0.5", "x", "10.0.0.6", False), ("10.0.0.0/8", "x", "::ffff:10.0.0.1", True),
        ("fd00::/8", "x", "fd00::1", True), ("[fd00::1]", "x", "fd00::1", True), ("gpu.internal", "gpu.internal", "10.0.0.1", True),
        ("GPU.internal.", "gpu.internal", "10.0.0.1", True), ("gpu.internal", "x.gpu.internal", "10.0.0.1", False),
        ("*.internal", "x.gpu.internal", "10.0.0.1", True), ("*.internal", "internal", "10.0.0.1", False),
        ("*.internal", "evilinternal", "10.0.0.1", False), ("gpu.internal", "other", "10.0.0.1", False),
        ("gpu.internal", "gpu.internal", "169.254.169.254", False), ("0.0.0.0/0", "x", "::1", False),
    ],
)  # fmt: skip
def test_allowing(allow: str, host: str, address: str, allowed: bool) -> None:
    assert (AddressPolicy("public", [allow]).refusal(host, address) is None) is allowed


@pytest.mark.parametrize(
    "entry", ["http://h", "h:80", "a b", "10.0.0.0/33", "10.0.0.1/8", "", "*", "*.*", "h/v1", "127.1"]
)
def test_invalid_allow_entry_is_a_config_error(entry: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AddressPolicy("public", [entry])
    assert "TASKAPP_INFERENCE_ALLOW" in caught.value.message and caught.value.hint


def test_host_name_is_checked_when_resolved() -> None:
    assert check_address("https://gpu.internal/v1", "public")
    assert PUBLIC.refusal("gpu.internal", "10.0.0.1") == "a private address"
    assert PUBLIC.refusal("gpu.internal", "fe80::1%eth0") == "a link-local address"
    assert PUBLIC.refusal("gpu.internal", "8.8.8.8") is None
    assert PUBLIC.refusal("gpu.internal", "nonsense") == "no address"
    assert LOCAL.refusal("gpu.internal", "10.0.0.1") is None
    assert LOCAL.refusal("gpu.internal", "169.254.169.254") == "a cloud's metadata address"


def test_an_unknown_exposure() -> None:
    with pytest.raises(ConfigError):
        AddressPolicy("elsewhere")  # type: ignore[arg-type]


# kinds of addresses


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
    assert kind_of(ipaddress.ip_address(text)) == kind


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
    found = ipaddress.ip_address(form.format(d=inner, h=written))
    assert embedded(found) == (None if found in (ipaddress.ip_address("::"), ipaddress.ip_address("::1")) else inner)
    assert is_metadata(found) is (inner in addresses.METADATA)


def test_teredo() -> None:
    teredo = ipaddress.ip_address("2001:0:4136:e378:8000:63bf:5601:5601")
    assert embedded(teredo) == ipaddress.IPv4Address("169.254.169.254")
    assert is_metadata(teredo)


@pytest.mark.parametrize("text", ["2606:4700::1111", "fe80::1", "::1", "::", "8.8.8.8"])
def test_most_hold_none(text: str) -> None:
    assert embedded(ipaddress.ip_address(text)) is None
