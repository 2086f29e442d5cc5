"""What both fuzzed servers cannot be asked for: an address that is longer than their HTTP parser reads."""

from __future__ import annotations

import requests
import schemathesis

LONGEST_ADDRESS_BYTES = 65_535
"""Path and query as they are sent. A longer address is no request yet: the parser answers a plain 400, which no OpenAPI
document announces and no route can change ("Connections" in docs/contract.md)."""


def fits(case: schemathesis.Case, url: str) -> bool:
    """Whether the case's address at the server `url` is one that the parser reads."""
    sent = requests.Request(**case.as_transport_kwargs(base_url=url)).prepare()
    return len(sent.path_url.encode()) <= LONGEST_ADDRESS_BYTES
