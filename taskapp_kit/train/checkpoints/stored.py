"""Reads checkpoints. A checkpoint is a directory, and its manifest lists the size and SHA-256 hash of every other file.

CHECKPOINT/
  manifest.json           {"files": {NAME: {"size": …, "sha256": …}}}
  checkpoint.json         the metadata, see facts.py
  model.safetensors       the weights, or adapter.safetensors with the trained weights
  optimizer.safetensors   the state of the optimizer
  value_head.safetensors  ppo's value head and its optimizer's state
  job_state.json          the state from which the job resumes
  config.json …           files of the model's tokenizer and architecture

An exported checkpoint has no optimizer.safetensors, value_head.safetensors or job_state.json.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from taskapp_kit.errors import CheckpointError
from taskapp_kit.system.foreign_files import read_inside
from taskapp_kit.train.checkpoints.facts import CheckpointFacts, decoded

log = logging.getLogger("taskapp_kit.train")

MANIFEST = "manifest.json"
FACTS = "checkpoint.json"
WEIGHTS = "model.safetensors"
ADAPTER = "adapter.safetensors"
OPTIMIZER = "optimizer.safetensors"
VALUE_HEAD = "value_head.safetensors"
JOB_STATE = "job_state.json"

TO_GO_ON = (OPTIMIZER, VALUE_HEAD, JOB_STATE)
"""Files that are only needed to resume a job."""

LARGEST_DESCRIPTION = 2**24
"""Maximum size in bytes of the manifest, and of the metadata. Both are read into memory."""

MOST_FILES = 64
_CHUNK = 2**20
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.(json|safetensors)|chat_template\.jinja|LICENSE|NOTICE")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a checkpoint. `size` is in bytes, and `sha256` has 64 hexadecimal digits."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint whose files were checked when it was read. `files` contains all files except the manifest."""

    path: Path
    facts: CheckpointFacts
    files: dict[str, StoredFile]


def check_file_name(name: str) -> None:
    """Raise CheckpointError for a file name that is not allowed in a checkpoint, because the file could contain code."""
    if not _FILE.fullmatch(name):
        raise CheckpointError(
            f"The file {name[:80]!r} is not allowed. Expected JSON, safetensors, LICENSE, NOTICE or chat_template.jinja."
        )


def hashed(path: Path) -> StoredFile:
    """Return a file's size and SHA-256 hash. Raises OSError if the file cannot be read."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return StoredFile(size, digest.hexdigest())


def encoded_manifest(files: dict[str, StoredFile]) -> bytes:
    """Return the manifest of these files as JSON."""
    entries = {name: {"size": file.size, "sha256": file.sha256} for name, file in sorted(files.items())}
    return orjson.dumps({"files": entries}, option=orjson.OPT_INDENT_2)


def read_facts(path: Path) -> CheckpointFacts:
    """Return the metadata of a checkpoint without checking the files. Raises CheckpointError if it cannot be read."""
    try:
        return decoded(read_inside(path, FACTS, LARGEST_DESCRIPTION))
    except OSError as error:
        raise CheckpointError(f"{FACTS} cannot be read: {error.strerror or error}.") from error


def read_checkpoint(path: Path) -> StoredCheckpoint:
    """Check and return a checkpoint. Raises CheckpointError if a file is incomplete, damaged, missing or unexpected."""
    try:
        files = _manifest(read_inside(path, MANIFEST, LARGEST_DESCRIPTION))
        present = {entry.name: entry for entry in os.scandir(path)}
        if wrong := sorted(present.keys() ^ {*files, MANIFEST}):
            raise CheckpointError(f"The files and the manifest differ: {wrong[0][:80]!r} is in only one of them.")
        for name, file in files.items():
            entry = present[name]
            if not entry.is_file(follow_symlinks=False) or entry.stat().st_size != file.size:
                raise CheckpointError(f"{name} does not have the {file.size} bytes that the manifest lists.")
            if hashed(path / name) != file:
                raise CheckpointError(f"The SHA-256 of {name} differs from the manifest.")
        return StoredCheckpoint(path, read_facts(path), files)
    except (OSError, CheckpointError) as error:
        raise CheckpointError(f"The checkpoint {path} is incomplete or damaged. {error}") from error


def checkpoint_folders(root: Path) -> dict[Path, CheckpointFacts]:
    """Return the directories of a job's checkpoints with their metadata, oldest first.

    Checkpoints with unreadable metadata are skipped with a warning in the log. Other files are not checked. Raises
    OSError if `root` cannot be listed.
    """
    found = {}
    for path in sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")):
        try:
            found[path] = read_facts(path)
        except CheckpointError as error:
            log.warning("checkpoint skipped path=%s: %s", path, error)
    return dict(sorted(found.items(), key=lambda item: item[1].order))


def latest_checkpoint(root: Path) -> StoredCheckpoint | None:
    """Return a job's last complete checkpoint, or None if it has none. Logs a warning for each damaged checkpoint.

    Raises OSError if `root` cannot be listed.
    """
    for path in reversed(checkpoint_folders(root)):
        try:
            return read_checkpoint(path)
        except CheckpointError as error:
            log.warning("checkpoint skipped path=%s: %s", path, error)
    return None


def by_score(found: dict[Path, CheckpointFacts]) -> list[Path]:
    """Return the checkpoints that have a score, highest first. If scores are equal, the earlier checkpoint is first."""
    scores = {path: facts.score for path, facts in found.items() if facts.score is not None}
    return sorted(scores, key=lambda path: -scores[path])


def _manifest(raw: bytes) -> dict[str, StoredFile]:
    try:
        value = orjson.loads(raw)
        entries: dict[str, dict[str, Any]] = value["files"]
        files = {name: StoredFile(**entry) for name, entry in entries.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{MANIFEST} cannot be read: {error}") from error
    if value.keys() != {"files"} or FACTS not in files or len(files) > MOST_FILES:
        raise CheckpointError(f"{MANIFEST} cannot be read: it must list {FACTS}, and at most {MOST_FILES} files.")
    for name, file in files.items():
        check_file_name(name)
        if type(file.size) is not int or type(file.sha256) is not str or not _SHA256.fullmatch(file.sha256):
            raise CheckpointError(f"{MANIFEST} cannot be read: the entry for {name} has no valid size and SHA-256.")
    return files
