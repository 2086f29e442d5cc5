"""The kit as a wheel: what is in it, what is not, and that it installs."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from io import BytesIO
from pathlib import Path

import pytest

from taskapp_kit.deploy import cargo
from taskapp_kit.deploy.wheel import keep, kit_wheel, wheel_bytes

CHECKOUT = cargo.KIT_DIR.parent
DECOYS = (
    "taskapp_kit/.env",
    "taskapp_kit/prod.env",
    "taskapp_kit/deploy/credentials.json",
    "taskapp_kit/deploy/service-account-1.json",
    "taskapp_kit/serve/server.pem",
    "taskapp_kit/serve/notes.sqlite",
    "environments/crafter/secrets.toml",
    "environments/crafter/.ssh/id_rsa",
    "templates/questions/.env",
    "environments/crafter/api_keys.txt",
)


@pytest.fixture(scope="module")
def archive() -> zipfile.ZipFile:
    return zipfile.ZipFile(BytesIO(wheel_bytes()))


def test_it_holds_every_module_and_the_environments_where_an_installed_kit_has_them(archive: zipfile.ZipFile) -> None:
    names = set(archive.namelist())
    assert {path.relative_to(CHECKOUT).as_posix() for path in cargo.KIT_DIR.rglob("*.py")} <= names
    assert {"taskapp_kit/_bundled/environments/crafter/app.py", "taskapp_kit/py.typed"} <= names
    assert not [name for name in names if cargo.is_private(name.removeprefix("taskapp_kit/")) or name.endswith(".pyc")]


def test_its_record_has_every_file_with_its_hash(archive: zipfile.ZipFile) -> None:
    (record,) = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
    rows = [line.split(",") for line in archive.read(record).decode().splitlines()]
    assert {row[0] for row in rows} == set(archive.namelist())
    for name, digest, size in rows:
        if name != record:
            content = archive.read(name)
            expected = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert (digest, size) == (f"sha256={expected}", str(len(content)))


def test_its_metadata_is_that_of_the_installed_kit(archive: zipfile.ZipFile) -> None:
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    import email

    told = email.message_from_bytes(archive.read(name))
    assert told["Name"] == "taskapp-kit"
    lines = told.get_all("Requires-Dist") or []
    assert any(line.startswith("pydantic") for line in lines)
    assert any(line.startswith("psycopg[binary]") and "extra == 'postgres'" in line for line in lines)


def test_the_same_files_give_the_same_bytes_and_place(tmp_path: Path) -> None:
    kit = tmp_path / "kit"
    _copy(kit)
    program = (
        "from pathlib import Path; from taskapp_kit.deploy.wheel import kit_wheel; print(kit_wheel(Path('..', 'out')))"
    )
    first, second = (_run(kit, program) for _ in range(2))
    assert first == second
    (kit / "taskapp_kit" / "errors.py").open("a").write("\n# an edit\n")
    assert _run(kit, program) != first


def test_what_nobody_used_for_a_week_goes(tmp_path: Path) -> None:
    old, used = keep(b"old", "a.whl", tmp_path), keep(b"used", "a.whl", tmp_path)
    for path in (old, used):
        os.utime(path.parent, (1.0, 1.0))
    assert keep(b"used", "a.whl", tmp_path) == used
    new = keep(b"new", "a.whl", tmp_path)
    assert (old.exists(), used.exists(), new.read_bytes()) == (False, True, b"new")


def test_no_private_file_gets_in(tmp_path: Path) -> None:
    kit = tmp_path / "kit"
    _copy(kit)
    for name in DECOYS:
        (kit / name).parent.mkdir(parents=True, exist_ok=True)
        (kit / name).write_text("canary-in-the-wheel")
    (kit / "taskapp_kit" / "linked.txt").symlink_to(kit / "taskapp_kit" / ".env")
    program = (
        "import zipfile; from pathlib import Path; from taskapp_kit.deploy.wheel import kit_wheel\n"
        "archive = zipfile.ZipFile(kit_wheel(Path('..', 'out')))\n"
        "print(len(archive.namelist()), [n for n in archive.namelist() if b'canary' in archive.read(n)])"
    )
    count, _, found = _run(kit, program).partition(" ")
    assert int(count) > 100 and found == "[]"


def test_pip_takes_it(tmp_path: Path) -> None:
    wheel = kit_wheel(tmp_path / "cache")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--no-deps",
            "--no-index",
            "--target",
            str(tmp_path / "site"),
            str(wheel),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (info,) = metadata.distributions(name="taskapp-kit", path=[str(tmp_path / "site")])
    assert info.version == metadata.version("taskapp-kit")


@pytest.mark.slow
def test_the_build_tool_packs_the_same_files(tmp_path: Path) -> None:
    """But for what is private by its name (a template's .gitignore), the kit's own packing is hatchling's."""
    pytest.importorskip("hatchling")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (built,) = tmp_path.glob("*.whl")
    theirs = {name for name in zipfile.ZipFile(built).namelist() if ".dist-info/" not in name}
    ours = {name for name in zipfile.ZipFile(BytesIO(wheel_bytes())).namelist() if ".dist-info/" not in name}
    assert {name for name in theirs - ours if not cargo.is_private(name.removeprefix("taskapp_kit/"))} == set()
    assert ours <= theirs


def _copy(folder: Path) -> None:
    skipped = shutil.ignore_patterns("__pycache__", ".*")
    for name in ("taskapp_kit", "environments", "templates"):
        shutil.copytree(CHECKOUT / name, folder / name, ignore=skipped)
    shutil.copy(CHECKOUT / "pyproject.toml", folder)


def _run(folder: Path, program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
