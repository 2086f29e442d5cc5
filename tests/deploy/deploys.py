"""Deploys as a user runs them, to the control plane on loopback, and what of them can be asked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from modal_proto import api_pb2

from taskapp_kit.deploy.packaging.source_files import KIT_DIR
from tests.deploy.control_plane import ControlPlane

CHECKOUT = KIT_DIR.parent
KEY = "the-key-that-the-secret-holds"

OWN_APP = '''
"""Capitals, from rows in a file."""
from pydantic import BaseModel
from taskapp_kit import Private, TaskApp

app = TaskApp("capitals", version="1.0.0")

class Row(BaseModel):
    question: str
    answer: Private[str]

app.tasks("capitals", row=Row, prompt="{question} Answer with one word.", train=app.path("train.jsonl"))

@app.rubric
def correct(answer_text: str, task: Row) -> float:
    """The capital is named."""
    return float(task.answer.lower() in answer_text.lower())
'''

ENTRY = """
import modal

from taskapp_kit.deploy.modal import Deployment, ModalSettings

DEPLOYMENT = Deployment("capitals.py", ModalSettings(app_name="capitals", store="none"), beside=__file__)
app = DEPLOYMENT.app


@app.function(**DEPLOYMENT.function)
@modal.concurrent(**DEPLOYMENT.concurrency)
@modal.asgi_app(**DEPLOYMENT.web)
def web() -> object:
    return DEPLOYMENT.serve()
"""


@dataclass
class Deploy:
    """A deploy that was run: its exit code, what it printed, and the plane that took it."""

    code: int
    out: str
    err: str
    plane: ControlPlane

    @property
    def output(self) -> str:
        return self.out + self.err

    @property
    def function(self) -> api_pb2.Function:
        assert self.plane.function is not None, self.output
        return self.plane.function

    def mounted(self) -> set[str]:
        """Paths in the container of every file that the function mounts."""
        return {entry.filename for mount in self.function.mount_ids for entry in self.plane.mounts[mount]}

    def image_commands(self) -> list[str]:
        return [command for image in self.plane.images for command in image.dockerfile_commands]

    def packed(self) -> dict[str, bytes]:
        """The files of the kit's wheel."""
        (wheel,) = self.plane.wheels()
        archive = zipfile.ZipFile(BytesIO(wheel))
        return {name: archive.read(name) for name in archive.namelist()}

    def everything_sent(self, *, but: str = "") -> bytes:
        """All requests, uploaded files, and what is in the wheel, end to end. but: a kind of request to leave out."""
        parts = [request.SerializeToString() for kind, request in self.plane.received if kind != but]
        parts += self.plane.files.values()
        parts += self.packed().values() if self.plane.wheels() else []
        return b"\n".join(parts)


def environment(plane: ControlPlane, home: Path, **more: str) -> dict[str, str]:
    """For a process whose Modal is this plane, with an account that exists nowhere."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "COLUMNS": "200",
        "MODAL_SERVER_URL": plane.url,
        "MODAL_TOKEN_ID": "ak-none",
        "MODAL_TOKEN_SECRET": "as-none",
        "MODAL_CONFIG_PATH": str(home / "no-config"),
        **more,
    }


def run(plane: ControlPlane, folder: Path, *command: str, **more: str) -> Deploy:
    """Runs `python COMMAND` in `folder`."""
    finished = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment(plane, folder, **more),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Deploy(finished.returncode, finished.stdout, finished.stderr, plane)


def modal_deploy(plane: ControlPlane, folder: Path, **more: str) -> Deploy:
    return run(plane, folder, "-m", "modal", "deploy", "modal_app.py", **more)


def taskapp(plane: ControlPlane, folder: Path, *arguments: str, **more: str) -> Deploy:
    """`taskapp ARGUMENTS`; like the installed script, it has no working directory on its path."""
    return run(plane, folder, "-P", "-m", "taskapp_kit", *arguments, **more)


def copy_kit(folder: Path) -> None:
    """Into `folder`: the checkout's parts that a deploy reads."""
    skipped = shutil.ignore_patterns("__pycache__", ".*")
    for name in ("taskapp_kit", "environments", "templates"):
        shutil.copytree(CHECKOUT / name, folder / name, ignore=skipped)
    for name in ("pyproject.toml", "modal_app.py"):
        shutil.copy(CHECKOUT / name, folder / name)


def write_own(folder: Path) -> Path:
    """An author's own app with its data, a `modal_app.py` for it, and what must stay."""
    folder.mkdir(exist_ok=True)
    (folder / "capitals.py").write_text(OWN_APP)
    (folder / "modal_app.py").write_text(ENTRY)
    (folder / "train.jsonl").write_text(json.dumps({"question": "Capital of France?", "answer": "Paris"}) + "\n")
    (folder / "other.jsonl").write_text("{}\n")
    return folder
