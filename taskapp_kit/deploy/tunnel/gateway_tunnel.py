"""Opens a quick tunnel to a gateway of the learning engine, so that remote task apps can call the policy."""

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
    f"{TUNNEL} requires cloudflared (developers.cloudflare.com/tunnel) and internet access. To use an existing public "
    f"address instead, pass {URL} https://… {LISTEN} 127.0.0.1:PORT."
)


@contextmanager
def gateway_tunnel(
    options: GatewayOptions,
    *,
    cloudflared: str | Path = "cloudflared",
    timing: Timing | None = None,
    leave: threading.Event | None = None,
) -> Iterator[GatewayOptions]:
    """Open a tunnel for the duration of the block, and yield `options` with the tunnel's address and local port.

    Entering the block waits until cloudflared prints the address or `leave` is set. The tunnel is not tested, because
    the gateway may not listen yet; `train.driver.reachability` plays a turn through the tunnel before the job starts.

    Raises:
        TunnelError: The tunnel could not be opened.
        ConfigError: No port is free.
    """
    # The port is chosen here, because the tunnel is opened before the gateway listens.
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
