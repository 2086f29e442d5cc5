"""Opens a quick tunnel to a gateway of the learning engine, so that remote task apps reach this machine's policy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from taskapp_kit.deploy.tunnel.open_tunnel import open_tunnel
from taskapp_kit.deploy.tunnel.tunnel_settings import Timing, plan_tunnel
from taskapp_kit.errors import TunnelError
from taskapp_kit.serve.uvicorn_server import bind, url_of
from taskapp_kit.train.gateway.gateway_options import LISTEN, TUNNEL, URL, GatewayOptions

HINT = (
    f"{TUNNEL} needs cloudflared (developers.cloudflare.com/tunnel) and internet access. Or pass an address that leads here: "
    f"{URL} https://… {LISTEN} 127.0.0.1:PORT."
)


@contextmanager
def gateway_tunnel(
    options: GatewayOptions,
    *,
    cloudflared: str | Path = "cloudflared",
    timing: Timing | None = None,
    leave: threading.Event | None = None,
) -> Iterator[GatewayOptions]:
    """Open a tunnel while the block runs; return the options with its https address and the port that it leads to.

    The gateway need not listen yet, because `train.driver.reachability` plays a turn through the tunnel before a job.
    Blocks until cloudflared prints the address, or `leave` is set. Raises TunnelError, ConfigError.
    """
    # The tunnel opens before the gateway listens, so the port must be chosen here.
    if not options.port:
        with bind(options.host, 0) as free:
            options = replace(options, port=free.getsockname()[1])
    try:
        plan = plan_tunnel("quick", cloudflared=cloudflared, skip_verification=True, timing=timing)
        local = url_of(options.host, options.port)
        tunnel = open_tunnel(plan, local, None, None, leave or threading.Event())
    except TunnelError as error:
        raise TunnelError(error.message, hint=HINT) from None
    try:
        yield replace(options, url=tunnel.url, tunnel=True)
    finally:
        tunnel.close()
