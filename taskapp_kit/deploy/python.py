"""Python processes of our own: this interpreter, one module, and nothing of the folder that the user stands in.

`python -m` puts the working directory before everything else: a `random.py` there, an author's app perhaps, would be
imported in place of Python's by whatever runs there, and what runs there may hold keys.
"""

from __future__ import annotations

import os
import sys

from taskapp_kit.config import child_environment
from taskapp_kit.deploy.cargo import KIT_DIR
from taskapp_kit.deploy.packages import checkout_project


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs a module."""
    return [sys.executable, "-P", "-m", module, *arguments]


def process_environment() -> dict[str, str]:
    """Of such a process: without the keys of a server, and with the same kit, which may be a checkout somewhere."""
    environ = child_environment()
    if checkout_project() is not None:
        more = environ.get("PYTHONPATH", "")
        environ["PYTHONPATH"] = f"{KIT_DIR.parent}{os.pathsep}{more}" if more else str(KIT_DIR.parent)
    return environ
