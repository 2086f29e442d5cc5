"""Where the browser is searched for, and the command line that starts it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from taskapp_kit.errors import Unavailable

VARIABLE = "TASKAPP_CHROMIUM"
"""Environment variable with the path of a Chromium. If it is set, no other path is tried."""

HEADLESS_SHELL = Path("/usr/lib/chromium/chromium-headless-shell")
"""The program in Debian's package `chromium-headless-shell`. It starts faster than Chromium, with a third of the memory."""

SAME_PICTURES = (
    "--disable-gpu",
    "--disable-gpu-rasterization",
    "--num-raster-threads=1",
    "--disable-partial-raster",
    "--disable-skia-runtime-opts",
    "--font-render-hinting=none",
    "--disable-lcd-text",
    "--disable-font-subpixel-positioning",
    "--force-device-scale-factor=1",
    "--disable-threaded-animation",
    "--disable-threaded-scrolling",
    "--disable-checker-imaging",
    "--disable-smooth-scrolling",
    "--disable-image-animation-resync",
    "--run-all-compositor-stages-before-draw",
    "--hide-scrollbars",
    "--lang=en-US",
)
"""Flags that make every run on one machine render a page in the same way."""

NO_NETWORK = (
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--proxy-server=http://127.0.0.1:9",
    "--proxy-bypass-list=<-loopback>",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
)
"""Flags that stop requests which bypass the routing: no host name resolves, and the proxy is a closed port."""

ARGUMENTS = (*SAME_PICTURES, *NO_NETWORK)


def find(environ: Mapping[str, str] = os.environ, shell: Path = HEADLESS_SHELL, playwrights: str | None = None) -> Path:
    """Return the browser's program.

    Args:
        environ: Environment variables.
        shell: Path of the headless shell of Debian.
        playwrights: Path that playwright itself would use.

    Raises:
        Unavailable: No browser was found. The message lists the paths that were tried.
    """
    if given := environ.get(VARIABLE):
        if not os.access(given, os.X_OK):
            raise Unavailable(f"{VARIABLE} is set to {given}, which is not an executable program.")
        return Path(given)
    on_path = shutil.which("chromium", path=environ.get("PATH"))
    for candidate in (str(shell), on_path, playwrights):
        if candidate and os.access(candidate, os.X_OK):
            return Path(candidate)
    raise Unavailable(
        f"The environment 'web' needs Chromium, which was not found: {VARIABLE} is not set, {shell} does not exist, "
        f"`chromium` is not on the PATH, and playwright has none ({playwrights or 'no path'}). Install it: "
        "apt-get install chromium-headless-shell (Debian), or playwright install --only-shell chromium."
    )
