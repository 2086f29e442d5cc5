"""Lists, finds, removes, exports and imports the trained models in MODELS/KIND/MODEL/JOB/CHECKPOINT.

An archive is a tar file of a checkpoint without the state of the optimizer and the job. It is compressed if its name
ends in `.gz`. Archives are untrusted, so `tarfile` does not unpack them. Each member must be a regular file with a
plain name, and its content is written to a new file in a new directory.
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
    """A trained model, described by its metadata and file sizes. Its weights are not read.

    Attributes:
        name: The model's name.
        path: The model's directory.
        facts: The model's metadata.
        size: The total size of the files in bytes.
        resumable: Whether the optimizer's state is included, so that a job can resume.
        adapter: Whether the model is an adapter, which needs the base model.
        modified: The time of the last change, as a Unix timestamp.
    """

    name: TrainedModelName
    path: Path
    facts: CheckpointFacts
    size: int
    resumable: bool
    adapter: bool
    modified: float


def trained_models(models: Path) -> list[TrainedModel]:
    """Return the trained models, sorted by kind, model, job and iteration. Skip models with unreadable metadata."""
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
    """Check the files of the model with this name and return the model. Raises CheckpointError if a check fails."""
    return read_checkpoint(_existing(models, name))


def remove_trained_model(models: Path, name: TrainedModelName) -> int:
    """Remove a model, and parent directories that become empty. Return the number of freed bytes.

    Raises CheckpointError if the model does not exist, cannot be removed, or belongs to a running job.
    """
    path = _existing(models, name)
    size = sum(file.stat().st_size for file in path.iterdir())
    try:
        with as_one_writer(path.parent):
            removed = path.with_name(f"{REMOVED}{path.name}")  # so that readers never find a partly removed model
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
        raise CheckpointError(f"{models} has no trained model {name}.", hint="List all models: taskapp models list")
    return path


LARGEST_CHECKPOINT = 64 * 2**30
"""Maximum size of an imported checkpoint in bytes."""

_BLOCK = 512
_CHUNK = 2**20
_GZIP = b"\x1f\x8b"
_IMPORTING = ".importing-"


def export_checkpoint(checkpoint: StoredCheckpoint, archive: Path) -> None:
    """Write a checkpoint to an archive, and replace an existing file. Equal checkpoints produce equal archives.

    If this fails, no incomplete archive remains and CheckpointError is raised.
    """
    files = {name: file for name, file in checkpoint.files.items() if name not in TO_GO_ON}
    manifest = encoded_manifest(files)
    try:
        check_free_space(
            archive.parent, sum(file.size for file in files.values()), f"Exporting {checkpoint.facts.name}"
        )
        with replaced(archive) as new, new.open("wb") as raw:
            if archive.suffix == ".gz":
                # level 1, because weights are nearly random and higher levels save nothing
                with gzip.GzipFile("", "wb", compresslevel=1, fileobj=raw, mtime=0) as packed:
                    _pack(packed, checkpoint.path, list(files), manifest)
            else:
                _pack(raw, checkpoint.path, list(files), manifest)
    except OSError as error:
        raise CheckpointError(f"{archive} could not be written: {error.strerror or error}.") from error


def import_checkpoint(archive: Path, models: Path, *, largest_bytes: int = LARGEST_CHECKPOINT) -> StoredCheckpoint:
    """Unpack an archive into the models directory, check the checkpoint, and return it. The metadata contains its name.

    Raises CheckpointError if the archive is incomplete, invalid or larger than `largest_bytes`, or if the checkpoint
    already exists. In this case no files remain.
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
                    raise CheckpointError(f"{name} already exists.", hint=f"Remove it with: taskapp models rm {name}")
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
    for _ in range(MOST_FILES + 2):  # two more: the manifest and the end of the archive
        header = _header(source)
        if header is None:
            # gzip verifies its checksum only at the end of the stream, after tar's last blocks
            if len(source.read(tarfile.RECORDSIZE + 1)) > tarfile.RECORDSIZE:
                raise CheckpointError("The file has data after the end of the archive.")
            return
        check_file_name(header.name)
        total += header.size
        if total > largest_bytes:
            raise CheckpointError(f"The checkpoint has more than {largest_bytes} bytes.")
        check_free_space(folder, header.size, "The archive")
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
    raise CheckpointError(f"The archive has more than {MOST_FILES} files.")


def _header(source: IO[bytes] | gzip.GzipFile) -> tarfile.TarInfo | None:
    """Return the next member's header, or None at the end. Raises CheckpointError if the member is not a regular file."""
    block = source.read(_BLOCK)
    if block == bytes(_BLOCK):
        return None
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    except (tarfile.HeaderError, ValueError) as error:
        raise CheckpointError(f"The file is not an archive of a checkpoint: {error}.") from error
    if header.type != tarfile.REGTYPE or header.size < 0:
        raise CheckpointError(f"The archive's member {header.name[:80]!r} is not a regular file.")
    return header
