"""The kit as a wheel: what is in it, what is not, and that it installs."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import pytest

from taskapp_kit.deploy.packaging import source_files
from taskapp_kit.deploy.packaging.wheel import keep, kit_wheel
from tests.programs import printed

pytestmark = pytest.mark.process

CHECKOUT = source_files.KIT_DIR.parent
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
def archive(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(kit_wheel(tmp_path_factory.mktemp("wheel")))


def test_it_holds_every_module_and_the_environments_where_an_installed_kit_has_them(archive: zipfile.ZipFile) -> None:
    names = set(archive.namelist())
    assert {path.relative_to(CHECKOUT).as_posix() for path in source_files.KIT_DIR.rglob("*.py")} <= names
    assert {"taskapp_kit/_bundled/environments/crafter/app.py", "taskapp_kit/py.typed"} <= names
    assert not [
        name for name in names if source_files.is_private(name.removeprefix("taskapp_kit/")) or name.endswith(".pyc")
    ]


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


@pytest.mark.ci
def test_the_same_files_give_the_same_bytes_and_place(tmp_path: Path) -> None:
    kit = tmp_path / "kit"
    _copy(kit)
    program = "from pathlib import Path; from taskapp_kit.deploy.packaging.wheel import kit_wheel; print(kit_wheel(Path('..', 'out')))"
    first, second = (_run(kit, program) for _ in range(2))
    assert first == second
    (kit / "taskapp_kit" / "errors.py").open("a").write("\n# an edit\n")
    assert _run(kit, program) != first


def _keep(home: Path, *, tmp: Path, home_known: bool = True) -> Path:
    """What `keep` gives in a process of its own, with this home and this folder for temporary files."""
    program = (
        "from taskapp_kit.deploy.packaging.wheel import keep; p = keep(b'x', 'a.whl'); print(p, p.read_bytes() == b'x')"
    )
    tmp.mkdir(exist_ok=True)
    if not home_known:  # as for a user id that no passwd file has
        program = f"import os, pwd; os.environ.pop('HOME'); os.getuid = lambda: 2**31 - 7; {program}"
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(tmp)}
    path, _, same = printed(program, cwd=CHECKOUT, env=env).strip().rpartition(" ")
    assert same == "True"
    return Path(path)


def test_only_its_owner_may_write_where_it_is_kept_and_nothing_else_is_left(tmp_path: Path) -> None:
    old = os.umask(0)  # the most careless user
    try:
        path = _keep(tmp_path / "home", tmp=tmp_path / "tmp")
    finally:
        os.umask(old)
    top = tmp_path / "home" / ".cache" / "taskapp-kit" / "modal"
    assert path.is_relative_to(top)
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (top, path.parent)] == [0o700, 0o700]
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("known", [True, False])
def test_without_a_home_to_write_to_it_is_kept_for_as_long_as_the_process_runs(tmp_path: Path, known: bool) -> None:
    (tmp_path / "home").write_text("no folder")
    path = _keep(tmp_path / "home", tmp=tmp_path / "tmp", home_known=known)
    assert path.is_relative_to(tmp_path / "tmp")
    assert list((tmp_path / "tmp").iterdir()) == []


def test_two_at_once_both_have_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        kept = list(pool.map(lambda number: keep(f"{number % 4}".encode(), "a.whl", tmp_path), range(64)))
    assert {path.read_bytes() for path in kept} == {b"0", b"1", b"2", b"3"}
    assert len(list((tmp_path / "modal").iterdir())) == 4
    assert all(len(list(folder.iterdir())) == 1 for folder in (tmp_path / "modal").iterdir())


def test_no_private_file_gets_in(tmp_path: Path) -> None:
    kit = tmp_path / "kit"
    _copy(kit)
    for name in DECOYS:
        (kit / name).parent.mkdir(parents=True, exist_ok=True)
        (kit / name).write_text("canary-in-the-wheel")
    (kit / "taskapp_kit" / "linked.txt").symlink_to(kit / "taskapp_kit" / ".env")
    program = (
        "import zipfile; from pathlib import Path; from taskapp_kit.deploy.packaging.wheel import kit_wheel\n"
        "archive = zipfile.ZipFile(kit_wheel(Path('..', 'out')))\n"
        "print(len(archive.namelist()), [n for n in archive.namelist() if b'canary' in archive.read(n)])"
    )
    count, _, found = _run(kit, program).partition(" ")
    assert int(count) > 100 and found == "[]"


@pytest.mark.ci
def test_pip_takes_it(tmp_path: Path) -> None:
    wheel = kit_wheel(tmp_path / "cache")
    flags = ("--no-deps", "--no-index", "--no-compile", "--target", tmp_path / "site")
    subprocess.run([sys.executable, "-m", "pip", "install", *flags, wheel], check=True, timeout=120)
    (info,) = metadata.distributions(name="taskapp-kit", path=[str(tmp_path / "site")])
    assert info.version == metadata.version("taskapp-kit")


@pytest.mark.ci
def test_the_build_tool_packs_the_same_files(tmp_path: Path) -> None:
    """But for what is private by its name (a template's .gitignore), the kit's own packing is hatchling's."""
    pytest.importorskip("hatchling", reason="needs hatchling, of taskapp-kit[dev]")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=CHECKOUT, check=True, timeout=120)
    (built,) = tmp_path.glob("*.whl")
    theirs = {name for name in zipfile.ZipFile(built).namelist() if ".dist-info/" not in name}
    ours = {name for name in zipfile.ZipFile(kit_wheel(tmp_path / "ours")).namelist() if ".dist-info/" not in name}
    assert {name for name in theirs - ours if not source_files.is_private(name.removeprefix("taskapp_kit/"))} == set()
    assert ours <= theirs


def _copy(folder: Path) -> None:
    skipped = shutil.ignore_patterns("__pycache__", ".*")
    for name in ("taskapp_kit", "environments", "templates"):
        shutil.copytree(CHECKOUT / name, folder / name, ignore=skipped)
    shutil.copy(CHECKOUT / "pyproject.toml", folder)


def _run(folder: Path, program: str) -> str:
    return printed(program, cwd=folder, env={"PATH": os.environ["PATH"], "HOME": str(folder)}).strip()
