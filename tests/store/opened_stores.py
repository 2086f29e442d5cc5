"""An open store, and programs that use one in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from taskapp_kit.store import open_store
from taskapp_kit.store.sql import SqlStore

S = TypeVar("S", bound=SqlStore)


def opened(address: str) -> SqlStore:
    store = open_store(address)
    assert isinstance(store, SqlStore)
    return store


@asynccontextmanager
async def in_use(store: S) -> AsyncIterator[S]:
    """The store, closed at the end."""
    try:
        yield store
    finally:
        await store.close()


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
