"""From an address to a store; and what is imported when."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from taskapp_kit.errors import ConfigError
from taskapp_kit.store import open_store
from taskapp_kit.store.sqlite import SqliteStore
from tests.programs import printed
from tests.store.opened_stores import in_use, opened
from tests.store.stored_samples import rollout

pytestmark = pytest.mark.anyio


async def use(url: str) -> str:
    """Opens, saves, closes; answers with the place."""
    async with in_use(opened(url)) as store:
        await store.save(rollout())
        assert await store.load("r1") == rollout()
        assert isinstance(store, SqliteStore)
        return store.place


@pytest.mark.parametrize("form", ["sqlite:///{}", "{}", "SQLITE:///{}", "  {} "])
async def test_a_file_by_url_or_path(tmp_path: Path, form: str) -> None:
    path = tmp_path / "deep" / "rollouts.db"
    assert await use(form.format(path)) == str(path)
    assert path.is_file()


async def test_a_relative_path_is_fixed_when_the_store_is_opened(tmp_path: Path) -> None:
    old = Path.cwd()
    try:
        os.chdir(tmp_path)
        assert await use("sqlite:///.taskapp/rollouts.db") == str(tmp_path / ".taskapp" / "rollouts.db")
    finally:
        os.chdir(old)


@pytest.mark.parametrize("url", ["memory", "MEMORY", ":memory:", "sqlite://", "sqlite:///:memory:"])
async def test_memory(url: str) -> None:
    assert await use(url) == "memory"


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("", "is empty"),
        ("none", "Pass None instead of a store"),
        (
            "redis://user:hunter2@host/0",
            "No store supports addresses that begin with redis://. Use one of: sqlite:///PATH",
        ),
        ("sqlite://rollouts.db", "three slashes"),
        ("sqlite:///rollouts.db?mode=ro", "cannot contain options"),
    ],
)
def test_invalid_store_address_is_a_config_error(url: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_store(url)
    assert sentence in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.process
def test_without_psycopg_the_extra_is_named() -> None:
    script = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from taskapp_kit.errors import Unavailable\n"
        "from taskapp_kit.store import open_store\n"
        "try:\n    open_store('postgresql://user:hunter2@host/db')\n"
        "except Unavailable as error:\n    print(error)"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    shown = printed(script, env={**os.environ, "PYTHONPATH": path})
    assert "psycopg, which is not installed. Run: pip install 'taskapp-kit[postgres]'" in shown
    assert "hunter2" not in shown


@pytest.mark.process
def test_a_plugin_brings_its_own_scheme(tmp_path: Path) -> None:
    (tmp_path / "shelf.py").write_text("def opened(url):\n    return f'shelf opened {url}'\n")
    installed = tmp_path / "shelf-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[taskapp_kit.stores]\nshelf = shelf:opened\n")
    path = os.pathsep.join([str(tmp_path), *(entry for entry in sys.path if entry)])
    script = "from taskapp_kit.store import open_store; print(open_store('shelf://here'))"
    shown = printed(script, env={**os.environ, "PYTHONPATH": path})
    assert shown.strip() == "shelf opened shelf://here"


@pytest.mark.process
def test_sqlalchemy_is_imported_when_a_store_is_opened_and_not_before() -> None:
    script = (
        "import sys; from taskapp_kit.store import open_store; before = 'sqlalchemy' in sys.modules\n"
        "open_store('memory'); print(before, 'sqlalchemy' in sys.modules)"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    shown = printed(script, env={**os.environ, "PYTHONPATH": path})
    assert shown.split() == ["False", "True"]
