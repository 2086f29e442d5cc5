"""One cloudflared process: what it gets, the address that it prints, and what it complains about."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping, Sequence

from taskapp_kit.config import child_environment
from taskapp_kit.net.redact import without_whole
from taskapp_kit.system.child import OwnedProcess

log = logging.getLogger("taskapp_kit.deploy")

QUICK_ADDRESS = re.compile(r"https://(?!api\.|www\.)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.trycloudflare\.com(?![\w.-])")
"""The address in a box of log lines; `api.` is whom cloudflared asks for one, and stands in its errors."""
PASSED_ON = frozenset(
    {"PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"}
    | {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"}
)
"""Of our variables it gets these, and its own settings: no key of anybody."""
OTHER_TUNNELS = frozenset(
    f"TUNNEL_{name}" for name in ("TOKEN", "TOKEN_FILE", "NAME", "HOSTNAME", "URL", "CRED_FILE", "CRED_CONTENTS")
)
"""Settings of its own that name a tunnel: it would open that one instead of the one that it is started for."""
END_SECONDS = 3.0
"""The time that it has to disconnect from Cloudflare before it is killed."""


class Cloudflared(OwnedProcess[str]):
    """The cloudflared process. arguments: the program's full path first. secret: variables that go to it alone.

    Raises OSError when no process can be started.
    """

    def __init__(self, arguments: Sequence[str], *, secret: Mapping[str, str] | None = None) -> None:
        secrets = dict(secret or {})
        self.address: str | None = None
        """As it was printed."""
        self._closing = False
        super().__init__(
            arguments,
            env={**_environment(), **secrets},
            name="taskapp-tunnel",
            clean=lambda line: without_whole(line, secrets.values(), "…"),
            ready=_address_in,
            on_exit=self._report_end,
            end_seconds=END_SECONDS,
        )

    @property
    def last_words(self) -> str:
        """The last line in which it complains, else its last line; "" when it said nothing."""
        lines = self.lines
        complaints = [line for line in lines if re.search(r"\b(ERR|FTL|error|failed)\b", line, re.IGNORECASE)]
        return (complaints or lines or [""])[-1]

    def wait_for_address(self, seconds: float, leave: threading.Event) -> str | None:
        """The address that it prints; None when it ends, or the time does, or `leave` is set."""
        self.address = self.wait_ready(seconds, leave)
        return self.address

    def close(self) -> None:
        """Ends it and whatever it started. May be called twice."""
        self._closing = True
        super().close()

    def _report_end(self, status: int) -> None:
        if not self._closing and self.address is not None:
            log.error("the tunnel %s ended (cloudflared, exit status %s)", self.address, status)


def _address_in(line: str) -> str | None:
    address = QUICK_ADDRESS.search(line)
    return None if address is None else address[0]


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in child_environment().items()
        if name in PASSED_ON or (name.startswith("TUNNEL_") and name not in OTHER_TUNNELS)
    }
