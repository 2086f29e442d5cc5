"""The environment that openreward's `orwd init` writes, for the doctor, as `from_ors` plays it at a server of openreward's.

ORS_URL is the address that tests/interop/ors_template_served.py serves. The app is a global of this module, so that a second
process finds it as `ors_apps.py:ors_basic`.
"""

from __future__ import annotations

import os

from taskapp_kit import TaskApp
from taskapp_kit.interop.ors import from_ors

URL = os.environ.get("ORS_URL", "")

if URL:
    Basic = from_ors(URL, sample={"answer": lambda rng: {"answer": str(rng.randint(0, 20))}})
    ors_basic = TaskApp("ors_basic")
    ors_basic.environment("basic", splits=Basic.splits, max_turns=4)(Basic)
