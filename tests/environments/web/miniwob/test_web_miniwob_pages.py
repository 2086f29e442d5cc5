"""The pages are the package's files, and nothing else."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from environments.web.miniwob import pages
from environments.web.miniwob.episode import answer
from environments.web.miniwob.rows import TASKS
from taskapp_kit.errors import Unavailable
from tests.environments.web.miniwob.episodes import needs_pages


@needs_pages
@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/miniwob/click-test.html", "text/html; charset=utf-8"),
        ("/core/core.css", "text/css; charset=utf-8"),
        ("/core/core.js", "text/javascript; charset=utf-8"),
        ("/common/special/checkbox-numbers/ch_0.png", "image/png"),
    ],
)
def test_a_file_is_served_with_its_type(path: str, content_type: str) -> None:
    status, served, content = pages.handle(path)
    assert (status, served) == (200, content_type)
    assert content


@needs_pages
@pytest.mark.parametrize(
    "path",
    [
        "", "/", "/miniwob", "/miniwob/", "/miniwob/nothing.html", "/miniwob/../core/core.js", "//miniwob/click-test.html",
        "/../environment.py", "/miniwob/../../environment.py", "/miniwob/..%2f..%2fenvironment.py", "/etc/passwd",
        "/miniwob/click-test.html\0", "miniwob/click-test.html", "/core/./core.js", "/flight/AA/index.html",
    ],
)  # fmt: skip
def test_nothing_else_is(path: str) -> None:
    assert pages.handle(path)[0] == 404


@needs_pages
def test_no_query_chooses_another_mode_of_a_page() -> None:
    assert pages.handle("/miniwob/click-test-transfer.html", "mode=test")[0] == 404


@needs_pages
def test_every_task_has_its_page() -> None:
    for name in TASKS:
        assert pages.handle(pages.url(name).removeprefix(pages.ORIGIN))[0] == 200, name


@needs_pages
def test_nothing_can_be_sent_to_the_origin() -> None:
    assert answer("GET", pages.url("click-test"), "").status == 200
    assert answer("POST", pages.url("click-test"), "").status == 405


@needs_pages
@pytest.mark.process
def test_the_package_is_not_imported() -> None:
    """It would load selenium."""
    code = (
        "import sys; from environments.web.miniwob import pages; pages.handle('/core/core.js'); "
        "assert not {'miniwob', 'selenium', 'gymnasium'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_missing_package_is_named_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    pages._files.cache_clear()
    try:
        with pytest.raises(Unavailable, match=r"environment 'miniwob' needs .* pip install 'taskapp-kit\[miniwob\]'"):
            pages.check()
    finally:
        pages._files.cache_clear()
