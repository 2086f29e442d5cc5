"""What kind of address an IP address is: public, or one of the kinds that a client must not make a server call."""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

METADATA = frozenset(
    ipaddress.ip_address(address)
    for address in (
        "169.254.169.254",  # AWS, Google, Azure, Oracle, DigitalOcean, Hetzner, …
        "169.254.169.253",  # AWS's resolver
        "169.254.170.2",  # credentials of an ECS task
        "169.254.170.23",  # credentials of an EKS pod
        "169.254.0.23",  # Tencent
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Azure's host
        "192.0.0.192",  # Oracle, older
        "fd00:ec2::254",
        "fd00:ec2::253",
        "fd00:ec2::23",
        "fd20:ce::254",  # Google
        "fe80::a9fe:a9fe",  # the first in the form of OpenStack
    )
)
METADATA_NAMES = frozenset(
    ("metadata", "instance-data", "metadata.google.internal", "metadata.goog", "metadata.tencentyun.com",
     "metadata.platformequinix.com", "metadata.packet.net", "instance-data.ec2.internal")
)  # fmt: skip

_CARRIER = ipaddress.ip_network("100.64.0.0/10")
_UNIQUE_LOCAL = ipaddress.ip_network("fc00::/7")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_NAT64_LOCAL = ipaddress.ip_network("64:ff9b:1::/48")
_COMPATIBLE = ipaddress.ip_network("::/96")
_NO_NETWORK = (ipaddress.ip_address("::"), ipaddress.ip_address("::1"))


def embedded(address: Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address inside an IPv6 one: mapped, compatible, NAT64, 6to4, Teredo, ISATAP; None when there is none."""
    if not isinstance(address, ipaddress.IPv6Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    last = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address in _NAT64 or address in _NAT64_LOCAL or (int(address) >> 32) & 0xFDFFFFFF == 0x5EFE:
        return last
    return last if address in _COMPATIBLE and address not in _NO_NETWORK else None


def is_metadata(address: Address) -> bool:
    """Return whether a cloud gives its machines their credentials at this address."""
    return address in METADATA or embedded(address) in METADATA


def is_metadata_name(host: str) -> bool:
    """Return the same for a name, as `read_url` writes it."""
    return host in METADATA_NAMES


def kind_of(address: Address) -> str | None:
    """Return the kind as a phrase, "a private address"; None for a public one."""
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
