"""Importing the client is quick: each public name is loaded when it is used."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.process
def test_importing_it_is_light() -> None:
    code = "import taskapp_kit.client, sys, json; print(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(ran.stdout))
    assert not loaded & {"aiohttp", "pydantic", "fastapi", "nacl", "click"}
    assert not [name for name in loaded if name.startswith("taskapp_kit.client.")]
