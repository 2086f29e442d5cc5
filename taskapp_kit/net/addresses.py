"""The rules for addresses that a server may call. Clients choose these addresses, so they are parsed strictly.

Before a rollout, `check_address` checks the syntax, the scheme and numeric addresses. A host name is checked when it is
resolved: the resolver calls `AddressPolicy.refusal` for each IP address, and again for the address of the socket
(`GuardedResolver` in `http.py`).
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote, urlsplit

from taskapp_kit.errors import ConfigError, FieldProblem, RequestError
from taskapp_kit.wire.inference_url import INFERENCE_URL

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# clouds serve credentials to their machines at these addresses; a client could make a server call them to obtain the
# credentials
METADATA = frozenset(
    ipaddress.ip_address(address)
    for address in (
        "169.254.169.254",  # AWS, Google, Azure, Oracle, DigitalOcean, Hetzner, …
        "169.254.169.253",  # AWS's resolver
        "169.254.170.2",  # the credentials of an ECS task
        "169.254.170.23",  # the credentials of an EKS pod
        "169.254.0.23",  # Tencent
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Azure's host
        "192.0.0.192",  # Oracle, older
        "fd00:ec2::254",
        "fd00:ec2::253",
        "fd00:ec2::23",
        "fd20:ce::254",  # Google
        "fe80::a9fe:a9fe",  # the first address, as OpenStack writes it
    )
)
METADATA_NAMES = frozenset(
    """metadata instance-data metadata.google.internal metadata.goog metadata.tencentyun.com
    metadata.platformequinix.com metadata.packet.net instance-data.ec2.internal""".split()
)

# for `ipaddress`, this network is neither private nor global; carriers and clouds use it for their own machines
_CARRIER = ipaddress.ip_network("100.64.0.0/10")
_UNIQUE_LOCAL = ipaddress.ip_network("fc00::/7")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_NAT64_LOCAL = ipaddress.ip_network("64:ff9b:1::/48")
_COMPATIBLE = ipaddress.ip_network("::/96")
_NO_NETWORK = (ipaddress.ip_address("::"), ipaddress.ip_address("::1"))


def embedded(address: Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address inside an IPv6 address, or None if it contains none.

    These formats are known: mapped, compatible, NAT64, 6to4, Teredo and ISATAP.
    """
    if not isinstance(address, ipaddress.IPv6Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    last = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    # 5efe marks ISATAP; the masked bit only states whether the IPv4 address is globally unique
    if address in _NAT64 or address in _NAT64_LOCAL or (int(address) >> 32) & 0xFDFFFFFF == 0x5EFE:
        return last
    return last if address in _COMPATIBLE and address not in _NO_NETWORK else None


def is_metadata(address: Address) -> bool:
    """Return whether this is the address of a cloud's metadata service, which returns credentials."""
    return address in METADATA or embedded(address) in METADATA


def is_metadata_name(host: str) -> bool:
    """Return whether this is the host name of a cloud's metadata service. host: normalized by `read_url`."""
    return host in METADATA_NAMES


def kind_of(address: Address) -> str | None:
    """Return the kind of an address as a phrase ("a private address"), or None for a public address."""
    if address.is_unspecified:
        return "an unspecified address"
    if address.is_loopback:
        return "a loopback address"
    if address.is_link_local:
        return "a link-local address"
    if address.is_multicast:
        return "a multicast address"
    if isinstance(address, ipaddress.IPv4Address):
        if address in _CARRIER:
            return "a carrier's shared address"
    elif address in _UNIQUE_LOCAL:
        return "a unique-local address"
    elif address.is_site_local:
        return "a site-local address"
    if address.is_reserved:
        return "a reserved address"
    if address.is_private:
        return "a private address"
    return None if address.is_global else "a reserved address"


Exposure = Literal["public", "local"]
Place = tuple[str | int, ...]
ALLOW = "TASKAPP_INFERENCE_ALLOW"
MAX_URL_LETTERS = 4096
NEVER = "a metadata or link-local address"
"""The reason that `AddressPolicy(link_local=False)` returns for metadata, link-local and multicast addresses."""

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<netloc>[^/?#]*)(?P<path>[^?#]*)(?P<query>\?[^#]*)?(#.*)?")
_UNSEEN = re.compile(r"[\x00-\x20\x7f-\xa0\\]")
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PRINTED = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"


class NotAnAddress(ValueError):
    """The string is not a valid address. The exception's message is a clause that follows the name of a field."""


@dataclass(frozen=True, slots=True)
class ParsedUrl:
    """A parsed address.

    Attributes:
        host: The host in ASCII and lower case, without brackets.
        url: The normalized address, which requests use.
    """

    scheme: str
    host: str
    port: int
    url: str

    @property
    def place(self) -> str:
        """Return `host:port` for messages, or `host` if the port is the scheme's default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _port_of(self.scheme) else f"{host}:{self.port}"

    def same_origin(self, other: ParsedUrl) -> bool:
        """Return whether the other address has the same scheme, host and port."""
        return (self.scheme, self.host, self.port) == (other.scheme, other.host, other.port)


def read_url(url: str) -> ParsedUrl:
    """Parse and normalize an address, so that all later parsers parse it identically. Raises NotAnAddress if it is invalid."""
    if len(url) > MAX_URL_LETTERS:
        raise NotAnAddress(f"has {len(url)} characters; expected at most {MAX_URL_LETTERS}")
    if _UNSEEN.search(url):
        raise NotAnAddress("contains a space, a control character or a backslash")
    parts = _URL.fullmatch(url)
    if parts is None:
        raise NotAnAddress("is not an address; expected http://HOST/… or https://HOST/…")
    scheme = parts["scheme"].lower()
    if scheme not in ("http", "https"):
        raise NotAnAddress(f"has the scheme {scheme[:20]!r}; expected http or https")
    # normalized first, because another parser may treat a full-width @ as @
    if "@" in unicodedata.normalize("NFKC", parts["netloc"]):
        raise NotAnAddress("contains a user name before the host; send a key in policy.config.api_key instead")
    host, port = _host_and_port(parts["netloc"], scheme)
    # escapes stay unchanged: %2F in a gateway's path is not a slash, and a signed query must match its signature
    rest = quote((parts["path"] or "/") + (parts["query"] or ""), safe=_PRINTED)
    netloc = f"[{host}]" if ":" in host else host
    netloc += "" if port == _port_of(scheme) else f":{port}"
    return ParsedUrl(scheme, host, port, f"{scheme}://{netloc}{rest}")


def server_url(text: str) -> str:
    """Validate a server's address and remove a trailing slash.

    Raises NotAnAddress if the address is invalid. The message does not contain the address.
    """
    text = text.strip()
    if not text.isprintable() or re.search(r'[\s\\"<>]', text):
        raise NotAnAddress("contains white space, a control character, a backslash, a quote or a bracket")
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        raise NotAnAddress("is not a valid URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise NotAnAddress("does not begin with http://HOST or https://HOST")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise NotAnAddress("contains a user name, a query or a fragment; expected only the address of a server")
    return text.rstrip("/")


def read_address(url: str, *, example: str = "http://127.0.0.1:8001") -> str:
    """Validate a server's address and remove a trailing slash.

    Raises ConfigError if the address is invalid. The message does not contain the address.
    """
    try:
        return server_url(url)
    except NotAnAddress as wrong:
        raise ConfigError(f"The URL {wrong}.", hint=f"Use an address such as {example}, without a key.") from None


def _port_of(scheme: str) -> int:
    return 443 if scheme == "https" else 80


def _host_and_port(netloc: str, scheme: str) -> tuple[str, int]:
    if netloc.startswith("["):
        host, bracket, tail = netloc[1:].partition("]")
        if not bracket or (tail and not tail.startswith(":")):
            raise NotAnAddress("has an invalid host; expected [IPv6] or [IPv6]:PORT")
        port = tail[1:]
        try:
            host = str(ipaddress.IPv6Address(host))
        except ValueError:
            raise NotAnAddress("has a host in brackets that is not an IPv6 address") from None
        # `IPv6Address` accepts a zone, which would select a network interface
        if "%" in host:
            raise NotAnAddress("names a network interface in its host (%…); expected an address without %")
    else:
        host, _, port = netloc.partition(":")
        host = _name(host)
    if port and not (port.isascii() and port.isdecimal() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise NotAnAddress("has an invalid port; expected a number from 1 to 65535")
    return host, int(port) if port else _port_of(scheme)


def _name(host: str) -> str:
    """Validate a host name or an IPv4 address, and return it in ASCII and lower case."""
    # as in browsers and resolvers, which accept 127。0。0。1 as an address
    plain = unicodedata.normalize("NFKC", host).replace("\u3002", ".").lower().removesuffix(".")
    if not plain.isascii():
        try:
            plain = plain.encode("idna").decode("ascii").lower()
        except UnicodeError:
            raise NotAnAddress("has an invalid host name") from None
    if _NUMBER.fullmatch(plain.rpartition(".")[2]):  # resolvers treat such a host as an IPv4 address
        try:
            return str(ipaddress.IPv4Address(plain))
        except ValueError:
            raise NotAnAddress("has an invalid IPv4 address; expected four decimal numbers") from None
    if len(plain) > 253 or not _NAME.fullmatch(plain):
        raise NotAnAddress("has an invalid host; expected a host name or an IP address")
    return plain


class AddressPolicy:
    """The rules for the addresses that one server may call. Metadata addresses are never called.

    Args:
        exposure: If `local`, private and loopback addresses may also be called.
        allow: Host names (`*.example.org` for subdomains), addresses and networks that may always be called.
        setting: The name of the setting that contains `allow`, for messages.
        link_local: If False, link-local and multicast addresses are never called, even if `allow` contains them.
    """

    def __init__(
        self, exposure: Exposure, allow: Sequence[str] = (), *, setting: str = ALLOW, link_local: bool = True
    ) -> None:
        """Create the rules for addresses. Raises ConfigError if `exposure` or an entry of `allow` is invalid."""
        self._setting, self._link_local = setting, link_local
        if exposure not in ("public", "local"):
            raise ConfigError(f"The exposure {exposure!r} is unknown.", hint="Use public or local.")
        self.exposure = exposure
        self._names: set[str] = set()
        self._below: list[str] = []
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for entry in allow:
            self._add(entry)

    def _add(self, entry: str) -> None:
        with contextlib.suppress(ValueError):
            self._networks.append(ipaddress.ip_network(entry.strip().strip("[]")))
            return
        entry = entry.strip()
        below = entry.startswith("*.")
        try:
            name = _name(entry.removeprefix("*."))
        except NotAnAddress:
            raise ConfigError(
                f"{self._setting} contains {entry[:80]!r}, which is not a host or a network.",
                hint="Write a host (gpu.example.org, *.example.org), an address (10.0.0.5) or a network (10.0.0.0/8), without "
                "scheme, port and path. Separate several entries with commas.",
            ) from None
        if below:
            self._below.append("." + name)
        else:
            self._names.add(name)

    def allows_name(self, host: str) -> bool:
        """Return whether `allow` contains this host name.

        If so, all its addresses except metadata addresses may be called.
        """
        return host in self._names or any(host.endswith(end) for end in self._below)

    def allows(self, host: str) -> bool:
        """Return whether `allow` contains this host name or IP address."""
        if self.allows_name(host):
            return True
        try:
            return self._in_networks(ipaddress.ip_address(host))
        except ValueError:
            return False

    def refusal(self, host: str, address: str) -> str | None:
        """Return why `address`, to which `host` resolves, may not be called, or None if it may be called.

        The reason is a phrase such as "a loopback address".
        """
        try:
            found: Address = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return "no address"
        inner = embedded(found)
        # checked first, because an operator who allows a network does not mean to expose the machine's credentials
        if is_metadata(found) or is_metadata_name(host):
            return "a cloud's metadata address" if self._link_local else NEVER
        if not self._link_local and any(one.is_link_local or one.is_multicast for one in (found, inner or found)):
            return NEVER
        if self.exposure == "local" or self.allows_name(host) or self._in_networks(found):
            return None
        # rejected even if the inner address is public, because a translator decides where the packets go
        if inner is not None:
            return f"an IPv4 address inside an IPv6 address ({kind_of(inner) or 'a public address'})"
        return kind_of(found)

    def _in_networks(self, address: Address) -> bool:
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return any(one in network for network in self._networks for one in (address, mapped) if one is not None)

    def refusal_of(self, called: ParsedUrl) -> str | None:
        """Return why a parsed address may not be called, or None if it may be called. A host name is not resolved."""
        if is_metadata_name(called.host):
            return "a cloud's metadata address"
        try:
            ipaddress.ip_address(called.host)
        except ValueError:
            # these names are loopback by RFC 6761, so they can be rejected before the rollout begins
            local = called.host == "localhost" or called.host.endswith(".localhost")
            if local and self.exposure == "public":
                return self.refusal(called.host, "127.0.0.1")
            return None
        return self.refusal(called.host, called.host)

    def hint(self, host: str, why: str) -> str:
        """Return a hint for a rejected host: what to do, with the exact setting. why: the result of `refusal`."""
        if "metadata" in why:
            return "No setting allows this address. Use the address of a model endpoint."
        return f"Use a public address, or set {ALLOW}={host} on this server. Separate several entries with commas."


def check_address(
    url: str, exposure: Exposure, allow: Sequence[str] | AddressPolicy = (), *, loc: Place = INFERENCE_URL
) -> str:
    """Validate and normalize an address in a request. A host name is not resolved.

    loc: the path of the field that contains the address. Raises RequestError for this field if the address is invalid
    or may not be called.
    """
    rules = allow if isinstance(allow, AddressPolicy) else AddressPolicy(exposure, allow)
    field = ".".join(str(part) for part in loc if part != "body")
    try:
        called = read_url(url)
    except NotAnAddress as wrong:
        message = f"{field} {wrong}."
        raise RequestError(message, fields=(FieldProblem(loc, message, "address"),), code="invalid_address") from None
    why = rules.refusal_of(called)
    if why is not None:
        message = f"{field} is {why} ({called.place}), which this server does not call."
        raise RequestError(
            message,
            fields=(FieldProblem(loc, message, "address_refused"),),
            code="address_refused",
            hint=rules.hint(called.host, why),
        )
    return called.url
