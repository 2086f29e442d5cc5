"""An open store, and programs that use one in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

from taskapp_kit.store import open_store
from taskapp_kit.store.sql import SqlStore


def opened(address: str) -> SqlStore:
    store = open_store(address)
    assert isinstance(store, SqlStore)
    return store


def child(script: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """A Python process that runs `script` with the path of this one."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": path, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
