"""Public auditors of graders and our doctor on the gallery of planted defects: who catches what, compared with stored results.

If a result changes for a good reason, store it and update docs/environments/doctor-compared.md:

    TASKAPP_WRITE_AUDITORS=1 pytest -p no:schemathesis -m "interop or not interop" tests/interop/auditors [-k doctor]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from taskapp_kit.sandbox import capabilities
from tests.doctor.defects.index import DEFECTS
from tests.doctor.examined import found_in
from tests.interop.auditors.comparison import AUDITORS, OURS, PAGE, Result, result_of, store, stored, written
from tests.interop.peers import PeerUnavailable, peer

WRITE = "TASKAPP_WRITE_AUDITORS"
PROGRAM = Path(__file__).with_name("audit.py")
ROOT = Path(__file__).parents[3]


def check(auditor: str, result: Result) -> None:
    if os.environ.get(WRITE):
        store(auditor, result)
    assert result == stored()[auditor]


@pytest.fixture(autouse=True)
def _sandbox(request: pytest.FixtureRequest) -> None:
    if "page" not in request.node.name and not capabilities().safe:
        pytest.skip("This machine cannot confine code.")


@pytest.mark.interop
@pytest.mark.exhaustive
@pytest.mark.process
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("auditor", AUDITORS)
def test_the_auditor_catches_what_is_stored(auditor: str, tmp_path: Path) -> None:
    try:
        (packages,) = peer(auditor).python.parent.parent.glob("lib/python*/site-packages")
    except PeerUnavailable as error:
        pytest.skip(str(error))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(PROGRAM), auditor, str(packages)],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        cwd=tmp_path, capture_output=True, text=True, timeout=3500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["app"] for line in lines] == [defect.file for defect in DEFECTS]
    found = {line["app"]: line["found"] for line in lines}
    twins = {defect.file for defect in DEFECTS if defect.twin}
    check(auditor, result_of(found, {line["app"]: line["twin"] for line in lines if line["app"] in twins}))


@pytest.mark.interop
@pytest.mark.exhaustive
@pytest.mark.process
@pytest.mark.server
@pytest.mark.timeout(3600)
def test_the_doctor_catches_what_is_stored() -> None:
    found = {defect.file: found_in(defect) for defect in DEFECTS}
    in_twins = {defect.file: found_in(defect, twin=True) for defect in DEFECTS if defect.twin}
    check(OURS, result_of(found, in_twins))


def test_the_page_shows_the_stored_results() -> None:
    page = PAGE.read_text("utf-8")
    assert page == written(page, stored())
    for result in stored().values():
        assert {name for names in result.values() for name in names} <= {defect.file for defect in DEFECTS}
