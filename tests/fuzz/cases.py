"""How many cases the fuzz tests draw, how, and which of them a server can be asked."""

from __future__ import annotations

import os
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase

KEY = "Tr0ub4dor-and-3-staples-9f27c1"
QUICK_CASES = 250
CASES = int(os.environ.get("FUZZ_CASES", QUICK_CASES))
QUICK = CASES <= QUICK_CASES
HYPOTHESIS: dict[str, Any] = {
    "deadline": None,
    "derandomize": QUICK,
    # the server remembers keys, so that a smaller case is not the same case: not worth minutes of a long run
    "phases": [Phase.explicit, Phase.generate, *([Phase.shrink] if QUICK else [])],
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
}
LONGEST_ADDRESS_BYTES = 65_535
"""Path and query as they are sent. A longer address is no request yet: the parser answers a plain 400, which no OpenAPI
document announces and no route can change ("Connections" in docs/operate/serving.md)."""


def share(part: float, least: int = 10) -> int:
    """The number of cases of a test that has this part of them."""
    return max(least, int(CASES * part))


def fits(case: schemathesis.Case, url: str) -> bool:
    """Whether the case's address at the server `url` is one that the parser reads."""
    sent = requests.Request(**case.as_transport_kwargs(base_url=url)).prepare()
    return len(sent.path_url.encode()) <= LONGEST_ADDRESS_BYTES
