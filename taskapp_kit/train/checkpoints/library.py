"""Lists, finds, removes, exports and imports the trained models in MODELS/KIND/MODEL/JOB/CHECKPOINT.

An archive is a checkpoint as one tar file, compressed if its name ends in `.gz`, without the state of the optimizer and the
job. Archives come from strangers, so `tarfile` does not unpack them: each member must be a regular file with a plain name,
and its content is written to a new file in a new directory.
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import tarfile
import tempfile
import zlib
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from taskapp_kit.errors import BadArgument, CheckpointError
from taskapp_kit.system.private_files import flush, make_private_folder, open_private, replaced
from taskapp_kit.train.checkpoints.facts import KINDS, CheckpointFacts, TrainedModelName
from taskapp_kit.train.checkpoints.stored import (
    ADAPTER,
    MANIFEST,
    MOST_FILES,
    OPTIMIZER,
    TO_GO_ON,
    StoredCheckpoint,
    check_file_name,
    checkpoint_folders,
    encoded_manifest,
    read_checkpoint,
)
from taskapp_kit.train.checkpoints.writer import REMOVED, as_one_writer, check_free_space


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A trained model, according to its facts and file sizes; its weights are not read.

    Attributes:
        name: The model's name.
        path: Its directory.
        facts: Its facts.
        size: The bytes of all files.
        resumable: Whether it has the optimizer's state.
        adapter: Whether it needs its base model.
        modified: Seconds since 1970.
    """

    name: TrainedModelName
    path: Path
    facts: CheckpointFacts
    size: int
    resumable: bool
    adapter: bool
    modified: float


def trained_models(models: Path) -> list[TrainedModel]:
    """Return the trained models by kind, model, job and iteration. Logs a warning for models with unreadable facts."""
    found = []
    for kind in KINDS:
        for job in sorted((models / kind).glob("[!.]*/[!.]*")):
            if not job.is_dir():
                continue
            for path, facts in checkpoint_folders(job).items():
                with suppress(BadArgument, OSError):
                    name = TrainedModelName(job.parent.name, job.name, path.name, kind)
                    files = {file.name: file.stat().st_size for file in path.iterdir()}
                    size, modified = sum(files.values()), path.stat().st_mtime
                    found.append(TrainedModel(name, path, facts, size, OPTIMIZER in files, ADAPTER in files, modified))
    return found


def trained_model(models: Path, name: TrainedModelName) -> StoredCheckpoint:
    """Return the model of this name after checking its files. Raises CheckpointError."""
    return read_checkpoint(_existing(models, name))


def remove_trained_model(models: Path, name: TrainedModelName) -> int:
    """Remove a model and directories that become empty, and return the number of freed bytes.

    Raises CheckpointError if the model does not exist, cannot be removed, or its job is running.
    """
    path = _existing(models, name)
    size = sum(file.stat().st_size for file in path.iterdir())
    try:
        with as_one_writer(path.parent):
            removed = path.with_name(f"{REMOVED}{path.name}")  # so that no reader finds a part of it
            path.rename(removed)
            flush(path.parent)
            shutil.rmtree(removed)
            last = not any(each.is_dir() for each in path.parent.iterdir())
        if last:
            shutil.rmtree(path.parent)
            with suppress(OSError):  # not empty
                path.parent.parent.rmdir()
    except OSError as error:
        raise CheckpointError(f"{name} could not be removed: {error.strerror or error}.") from error
    return size


def _existing(models: Path, name: TrainedModelName) -> Path:
    path = name.folder(models)
    if not path.is_dir():
        raise CheckpointError(f"{models} has no trained model {name}.", hint="`taskapp models list` shows all models.")
    return path


LARGEST_CHECKPOINT = 64 * 2**30
"""The most bytes of an imported checkpoint."""

_BLOCK = 512
_CHUNK = 2**20
_GZIP = b"\x1f\x8b"
_IMPORTING = ".importing-"


def export_checkpoint(checkpoint: StoredCheckpoint, archive: Path) -> None:
    """Write a checkpoint to an archive, replacing an existing file. Equal checkpoints have equal archives.

    Raises CheckpointError, without leaving an incomplete archive.
    """
    files = {name: file for name, file in checkpoint.files.items() if name not in TO_GO_ON}
    manifest = encoded_manifest(files)
    try:
        check_free_space(
            archive.parent, sum(file.size for file in files.values()), f"Exporting {checkpoint.facts.name}"
        )
        with replaced(archive) as new, new.open("wb") as raw:
            if archive.suffix == ".gz":
                # level 1: weights are nearly random, so higher levels save nothing
                with gzip.GzipFile("", "wb", compresslevel=1, fileobj=raw, mtime=0) as packed:
                    _pack(packed, checkpoint.path, list(files), manifest)
            else:
                _pack(raw, checkpoint.path, list(files), manifest)
    except OSError as error:
        raise CheckpointError(f"{archive} could not be written: {error.strerror or error}.") from error


def import_checkpoint(archive: Path, models: Path, *, largest_bytes: int = LARGEST_CHECKPOINT) -> StoredCheckpoint:
    """Unpack an archive into the models directory, check the checkpoint, and return it. Its facts determine its name.

    Raises CheckpointError, without leaving files, if the archive is incomplete, invalid or larger than `largest_bytes`, or
    if the checkpoint exists.
    """
    try:
        with as_one_writer(models):
            for left in models.glob(f"{_IMPORTING}*"):
                shutil.rmtree(left)
            with tempfile.TemporaryDirectory(prefix=_IMPORTING, dir=models, ignore_cleanup_errors=True) as temporary:
                unpacked = Path(temporary) / "checkpoint"
                unpacked.mkdir(mode=0o700)
                with archive.open("rb") as raw:
                    compressed = raw.read(len(_GZIP)) == _GZIP
                    raw.seek(0)
                    _unpack(gzip.GzipFile(fileobj=raw) if compressed else raw, unpacked, largest_bytes)
                checkpoint = read_checkpoint(unpacked)
                name = checkpoint.facts.name
                place = name.folder(models)
                if place.exists():
                    raise CheckpointError(f"{name} already exists.", hint=f"Remove it first: taskapp models rm {name}")
                make_private_folder(place.parent)
                flush(unpacked)
                unpacked.rename(place)
                flush(place.parent)
            return replace(checkpoint, path=place)
    except (OSError, EOFError, zlib.error, BadArgument, CheckpointError) as error:
        raise CheckpointError(f"{archive} cannot be imported. {error}") from error


def _pack(target: IO[bytes] | gzip.GzipFile, folder: Path, names: list[str], manifest: bytes) -> None:
    with tarfile.open(fileobj=target, mode="w", format=tarfile.GNU_FORMAT) as tar:
        header = tarfile.TarInfo(MANIFEST)
        header.size = len(manifest)
        tar.addfile(header, io.BytesIO(manifest))
        for name in names:
            with (folder / name).open("rb") as file:
                header = tarfile.TarInfo(name)
                header.size = os.fstat(file.fileno()).st_size
                tar.addfile(header, file)


def _unpack(source: IO[bytes] | gzip.GzipFile, folder: Path, largest_bytes: int) -> None:
    """Write the members of a tar archive into an empty directory."""
    total = 0
    for _ in range(MOST_FILES + 2):  # also the manifest and the end
        header = _header(source)
        if header is None:
            # gzip compares its checksum only at the end of the stream, after tar's last blocks
            if len(source.read(tarfile.RECORDSIZE + 1)) > tarfile.RECORDSIZE:
                raise CheckpointError("It has data after the end of the archive.")
            return
        check_file_name(header.name)
        total += header.size
        if total > largest_bytes:
            raise CheckpointError(f"It has more than {largest_bytes} bytes.")
        check_free_space(folder, header.size, "It")
        with open(open_private(folder / header.name, os.O_WRONLY | os.O_EXCL), "wb") as file:  # noqa: PTH123
            left = header.size
            while left:
                chunk = source.read(min(left, _CHUNK))
                if not chunk:
                    raise CheckpointError(f"The archive is truncated: it ends inside {header.name}.")
                file.write(chunk)
                left -= len(chunk)
            file.flush()
            os.fsync(file.fileno())
        source.read(-header.size % _BLOCK)
    raise CheckpointError(f"It has more than {MOST_FILES} files.")


def _header(source: IO[bytes] | gzip.GzipFile) -> tarfile.TarInfo | None:
    """Return the header of the next member, None at the end. Raises CheckpointError if it is not a regular file."""
    block = source.read(_BLOCK)
    if block == bytes(_BLOCK):
        return None
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    except (tarfile.HeaderError, ValueError) as error:
        raise CheckpointError(f"It is not an archive of a checkpoint: {error}.") from error
    if header.type != tarfile.REGTYPE or header.size < 0:
        raise CheckpointError(f"Its member {header.name[:80]!r} is not a regular file.")
    return header
