"""The public names: all there, each loaded when it is used."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from taskapp_kit import client


def test_every_public_name_is_there() -> None:
    for name in client.__all__:
        assert getattr(client, name).__module__.startswith(
            ("taskapp_kit.client.", "taskapp_kit.jobs.client.", "taskapp_kit.records.")
        )
    assert set(client.__all__) <= set(dir(client))
    with pytest.raises(AttributeError, match="NoSuchName"):
        client.NoSuchName  # noqa: B018


@pytest.mark.process
def test_importing_it_is_light() -> None:
    code = "import taskapp_kit.client, sys, json; print(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(ran.stdout))
    assert not loaded & {"aiohttp", "pydantic", "fastapi", "nacl", "click"}
    assert not [name for name in loaded if name.startswith("taskapp_kit.client.")]
