"""The image's commands, as recorded, in an empty virtual environment: what they install serves the app.

Without a network: the packages come from wheels that are packed from what is installed here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

pytest.importorskip("modal", reason="needs taskapp-kit[modal]")

from packaging.utils import canonicalize_name

from taskapp_kit.deploy.packaging.requirements import modules_of, requirements
from tests.deploy.control_plane import ControlPlane
from tests.deploy.deploys import KEY, taskapp, write_own

PROGRAM = """
import sys
from fastapi.testclient import TestClient
import taskapp_kit
assert "site-packages" in taskapp_kit.__file__, taskapp_kit.__file__
from taskapp_kit.declare.discovery import find_app
with TestClient(find_app(sys.argv[1]).asgi()) as client:
    body = {"run_id": "r", "env": {"seed": 0}, "policy": {"config": {"policy": "constant", "action": "Paris"}},
            "ops": [], "mode": "eval"}
    print(client.post("/rollout", json=body, headers={"X-API-Key": sys.argv[2]}).json()["reward"])
"""


def uv() -> str | None:
    try:
        from uv import find_uv_bin  # type: ignore[import-untyped]
    except ImportError:
        return shutil.which("uv")
    return str(find_uv_bin())


def repack(distribution: metadata.Distribution, folder: Path) -> None:
    """A wheel of an installed distribution; scripts are left behind."""
    tags = [
        line.removeprefix("Tag: ") for line in (distribution.read_text("WHEEL") or "").splitlines() if "Tag: " in line
    ]
    pythons, abis, platforms = (sorted({tag.split("-")[at] for tag in tags}) for at in range(3))
    stem = f"{canonicalize_name(distribution.metadata['Name']).replace('-', '_')}-{distribution.version}"
    name = f"{stem}-{'.'.join(pythons)}-{'.'.join(abis)}-{'.'.join(platforms)}.whl"
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_STORED) as archive:
        record = []
        for file in distribution.files or []:
            path = Path(str(distribution.locate_file(file)))
            inside = file.as_posix()
            if inside.startswith("..") or "__pycache__" in inside or not path.is_file():
                continue
            top, _, rest = inside.partition("/")
            if top.endswith(".dist-info"):
                inside = f"{stem}.dist-info/{rest}"
            if inside.endswith(".dist-info/RECORD"):
                continue
            archive.write(path, inside)
            record.append(f"{inside},,\n")
        archive.writestr(f"{stem}.dist-info/RECORD", "".join(record) + f"{stem}.dist-info/RECORD,,\n")


def wheelhouse(folder: Path) -> None:
    """Wheels of everything that the kit's requirements bring, as installed here."""
    modules, _ = modules_of(requirements())
    by_module = metadata.packages_distributions()
    for name in sorted({name for module in modules for name in by_module[module]}):
        repack(metadata.distribution(name), folder)


def place_files(plane: ControlPlane, mount: str, folder: Path) -> None:
    """Puts the files of a mount where the container would have them."""
    for entry in plane.mounts.get(mount, []):
        place = folder / entry.filename.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(plane.files[entry.sha256_hex])


@pytest.mark.exhaustive
@pytest.mark.skipif(uv() is None, reason="needs uv, which is what the image installs with")
def test_the_recorded_commands_work_in_an_empty_environment(tmp_path: Path) -> None:
    own = write_own(tmp_path / "own")
    with ControlPlane({"capitals-env": {"ENVIRONMENT_API_KEY"}}).running() as plane:
        done = taskapp(plane, own, "deploy", "capitals.py", "--store", "none", "--no-wait")
        assert done.code == 0, done.output
    image, houses = tmp_path / "image", tmp_path / "wheels"
    houses.mkdir()
    wheelhouse(houses)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(image / "venv")], check=True, timeout=120)
    environ = {
        "PATH": f"{image / 'venv' / 'bin'}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "VIRTUAL_ENV": str(image / "venv"),
        "UV_CACHE_DIR": str(tmp_path / "uv"),
        "UV_OFFLINE": "1",
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": str(houses),
    }
    base, *layers = plane.images
    assert base.dockerfile_commands[0].startswith("FROM python:")
    ran = 0
    for layer in layers:
        place_files(plane, layer.context_mount_id, image)
        for command in layer.dockerfile_commands:
            if not command.startswith("RUN "):
                continue
            line = command.removeprefix("RUN ").replace("/.uv/uv", str(uv())).replace("/opt/", f"{image}/opt/")
            told = subprocess.run(
                ["/bin/sh", "-c", line], env=environ, capture_output=True, text=True, timeout=600, check=False
            )
            assert told.returncode == 0, f"{line}\n{told.stderr}"
            ran += 1
    assert ran == 2  # the packages, then the kit's wheel
    for mount in done.function.mount_ids:
        place_files(plane, mount, image)
    served = subprocess.run(
        [str(image / "venv" / "bin" / "python"), "-c", PROGRAM, str(image / "root/task_app/capitals.py"), KEY],
        cwd=image / "root",
        env={**environ, "ENVIRONMENT_API_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert served.returncode == 0, served.stderr
    assert json.loads(served.stdout) == 1.0
