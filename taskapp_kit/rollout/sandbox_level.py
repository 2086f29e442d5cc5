"""How strong the sandbox is here, for an app that uses it; other apps neither probe nor load it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskapp_kit.sandbox import Capabilities


def sandbox_in_use() -> Capabilities | None:
    """The probe's report when a file that was loaded in this process imports `taskapp_kit.sandbox`, else None.

    The first call probes, which takes some tenths of a second.
    """
    if "taskapp_kit.sandbox" not in sys.modules:
        return None
    from taskapp_kit.sandbox import capabilities

    return capabilities()
