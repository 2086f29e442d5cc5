"""The sandbox is told of where an app uses it, and neither loaded nor probed elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
PROGRAM = """
import asyncio, json
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.rollout.service import Service

async def health(name):
    service = Service(find_app(name))
    service.prepare()
    try:
        return service.health()
    finally:
        await service.close()

adder = asyncio.run(health("examples/adder.py"))
import taskapp_kit.sandbox
again = asyncio.run(health("examples/adder.py"))
print(json.dumps([adder, again]))
"""


def test_health_reports_the_sandbox_level_if_the_app_uses_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, cwd=ROOT)
    without, used = json.loads(done.stdout)
    assert "sandbox" not in without
    assert used["sandbox"]["level"] in range(5) and used["sandbox"]["name"] and used["sandbox"]["walls"]
