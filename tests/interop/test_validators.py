"""Others' validators look at a served app. A validator that cannot be installed here is skipped with the reason."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from taskapp_kit.config import Settings
from taskapp_kit.rollout.service import Service
from taskapp_kit.serve.app import create
from tests.fuzz.sound_app import app
from tests.interop.peers import PeerUnavailable, peer

pytestmark = [pytest.mark.interop, pytest.mark.process]


def test_the_openapi_document_is_valid(tmp_path: Path) -> None:
    try:
        python = peer("openapi-spec-validator-0.9.0").python
    except PeerUnavailable as error:
        pytest.skip(str(error))
    document = create(Service(app), Settings(environment_api_key="a-key-of-the-test", protocols=("all",))).openapi()
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(document))
    command = [str(python), "-m", "openapi_spec_validator", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
