"""Exported checkpoints, and archives from strangers."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from taskapp_kit.errors import CheckpointError
from taskapp_kit.train.checkpoints.library import export_checkpoint, import_checkpoint
from taskapp_kit.train.checkpoints.stored import (
    FACTS,
    MANIFEST,
    OPTIMIZER,
    WEIGHTS,
    StoredCheckpoint,
    StoredFile,
    encoded_manifest,
)
from taskapp_kit.train.checkpoints.writer import CheckpointWriter
from tests.train.checkpoints.facts import content, facts, parts


@pytest.fixture
def saved(tmp_path: Path) -> StoredCheckpoint:
    with CheckpointWriter(tmp_path / "saved") as writer:
        return writer.save(facts(5, score=0.9), parts(Random(1).randbytes(5000)))


def files_below(root: Path) -> list[str]:
    return (
        sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.name != ".lock") if root.exists() else []
    )


@pytest.mark.parametrize("name", ["best.tar", "best.tar.gz"])
def test_an_exported_checkpoint_is_imported_without_its_optimizer(
    tmp_path: Path, saved: StoredCheckpoint, name: str
) -> None:
    archive = tmp_path / "out" / name
    archive.parent.mkdir()
    export_checkpoint(saved, archive)
    first = archive.read_bytes()
    export_checkpoint(saved, archive)
    assert archive.read_bytes() == first
    assert [path.name for path in archive.parent.iterdir()] == [name]
    with tarfile.open(archive) as tar:
        assert set(tar.getnames()) == {MANIFEST, FACTS, WEIGHTS, "config.json"}

    imported = import_checkpoint(archive, tmp_path / "models")
    assert imported.path == tmp_path / "models" / "rl" / "tests-tiny" / "job_1" / "checkpoint-5"
    assert imported.facts == saved.facts
    assert content(imported.path).items() - content(saved.path).items() == {
        (MANIFEST, encoded_manifest({name: file for name, file in saved.files.items() if name != OPTIMIZER}))
    }
    with pytest.raises(CheckpointError, match="already exists"):
        import_checkpoint(archive, tmp_path / "models")
    export_checkpoint(imported, tmp_path / "again.tar")
    assert import_checkpoint(tmp_path / "again.tar", tmp_path / "others").facts == saved.facts


def test_an_export_to_a_folder_that_is_not_there_is_refused(tmp_path: Path, saved: StoredCheckpoint) -> None:
    with pytest.raises(CheckpointError, match="could not be written"):
        export_checkpoint(saved, tmp_path / "missing" / "x.tar")


Member = tuple[tarfile.TarInfo, bytes]


def members_of(saved: StoredCheckpoint) -> list[Member]:
    return [member(name, raw) for name, raw in sorted(content(saved.path).items())]


def member(name: str, raw: bytes = b"{}", **fields: Any) -> Member:
    header = tarfile.TarInfo(name)
    header.size = len(raw)
    for field, value in fields.items():
        setattr(header, field, value)
    return header, raw


def pack(path: Path, members: list[Member], tar_format: int = tarfile.GNU_FORMAT) -> Path:
    with tarfile.open(path, "w", format=tar_format) as tar:
        for header, raw in members:
            tar.addfile(header, io.BytesIO(raw))
    return path


HOSTILE: dict[str, Callable[[], Member]] = {
    "parent folder": lambda: member("../outside.json"),
    "absolute": lambda: member("/tmp/outside.json"),
    "inside a folder": lambda: member("a/b.json"),
    "a folder": lambda: member("folder.json", b"", type=tarfile.DIRTYPE),
    "a folder of old": lambda: member("folder.json/", b"", type=tarfile.AREGTYPE),
    "symbolic link": lambda: member("link.json", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "hard link": lambda: member("link.json", b"", type=tarfile.LNKTYPE, linkname=WEIGHTS),
    "character device": lambda: member("zero.json", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=5),
    "block device": lambda: member("disk.json", b"", type=tarfile.BLKTYPE, devmajor=8, devminor=0),
    "pipe": lambda: member("pipe.json", b"", type=tarfile.FIFOTYPE),
    "contiguous": lambda: member("contiguous.json", type=tarfile.CONTTYPE),
    "sparse": lambda: member("sparse.json", type=tarfile.GNUTYPE_SPARSE),
    "unknown type": lambda: member("unknown.json", type=b"Z"),
    "pickle": lambda: member("pytorch_model.bin"),
    "code": lambda: member("modeling.py"),
    "hidden": lambda: member(".hidden.json"),
    "long name": lambda: member("a" * 300 + ".json"),
    "not in the manifest": lambda: member("more.json"),
    "twice": lambda: member(WEIGHTS, b"other weights"),
}


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_member_is_refused_and_nothing_left(
    tmp_path: Path, saved: StoredCheckpoint, case: str, place: int, tar_format: int
) -> None:
    members = members_of(saved)
    import_checkpoint(pack(tmp_path / "control.tar", members), tmp_path / "control")
    members.insert(place % (len(members) + 1), HOSTILE[case]())
    archive = pack(tmp_path / "a.tar", members, tar_format)
    before = files_below(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be imported"):
        import_checkpoint(archive, tmp_path / "models")
    assert files_below(tmp_path) == sorted([*before, "models"])
    assert not Path("/tmp/outside.json").exists()


@pytest.mark.parametrize("job", ["../job", "/job", "job:1", "", "a/b"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, saved: StoredCheckpoint, job: str) -> None:
    """With a manifest that fits."""
    raw = (saved.path / FACTS).read_bytes().replace(b'"job_1"', f'"{job}"'.encode())
    archive = pack(tmp_path / "a.tar", members_with(saved, FACTS, raw))
    with pytest.raises(CheckpointError, match="cannot be a part"):
        import_checkpoint(archive, tmp_path / "models")
    assert files_below(tmp_path / "models") == []


def members_with(saved: StoredCheckpoint, name: str, raw: bytes) -> list[Member]:
    import hashlib

    manifest = encoded_manifest(saved.files | {name: StoredFile(len(raw), hashlib.sha256(raw).hexdigest())})
    return [member(each, raw) for each, raw in {**content(saved.path), name: raw, MANIFEST: manifest}.items()]


def test_a_member_that_announces_more_than_may_be_is_refused_before_it_is_written(
    tmp_path: Path, saved: StoredCheckpoint
) -> None:
    archive = pack(tmp_path / "a.tar", members_of(saved))
    whole = sum(file.stat().st_size for file in saved.path.iterdir())
    with pytest.raises(CheckpointError, match=f"more than {whole - 1} bytes"):
        import_checkpoint(archive, tmp_path / "models", largest_bytes=whole - 1)
    header, _ = member("large.json")
    large: dict[str, Any] = {"largest_bytes": 10**16}
    for size, options, said in ((10**15, {}, "more than"), (10**15, large, "free"), (-512, {}, "not a regular file")):
        header.size = size
        (tmp_path / "b.tar").write_bytes(header.tobuf(tarfile.GNU_FORMAT) + bytes(10_000))
        with pytest.raises(CheckpointError, match=said):
            import_checkpoint(tmp_path / "b.tar", tmp_path / "models", **options)
    assert files_below(tmp_path / "models") == []


def test_a_small_archive_of_zeros_does_not_fill_the_disk(tmp_path: Path) -> None:
    header, _ = member("zeros.json")
    header.size = 2**40
    with gzip.open(tmp_path / "bomb.tar.gz", "wb") as packed:
        packed.write(header.tobuf(tarfile.GNU_FORMAT))
        for _ in range(50):
            packed.write(bytes(2**20))
    with pytest.raises(CheckpointError, match="more than 1000000 bytes"):
        import_checkpoint(tmp_path / "bomb.tar.gz", tmp_path / "models", largest_bytes=10**6)
    many = [member(f"{number}.json") for number in range(1000)]
    with pytest.raises(CheckpointError, match="more than 64 files"):
        import_checkpoint(pack(tmp_path / "many.tar", many), tmp_path / "models")
    assert files_below(tmp_path / "models") == []


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_damaged_archives_are_refused(tmp_path: Path, saved: StoredCheckpoint, name: str) -> None:
    """Cut anywhere, or with a bit turned where it counts; an unharmed one is imported after all of them."""
    archive, random = tmp_path / name, Random(name)
    export_checkpoint(saved, archive)
    whole = archive.read_bytes()
    with tarfile.open(archive) as tar:
        last = tar.getmembers()[-1]
        end = len(whole) if name.endswith(".gz") else last.offset_data + last.size
    for cut in (*(random.randrange(end) for _ in range(30)), end - 8, end - 1):
        archive.write_bytes(whole[:cut])
        with pytest.raises(CheckpointError):
            import_checkpoint(archive, tmp_path / "models")
    refused = 0
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[random.randrange(end)] ^= 1 << random.randrange(8)
        archive.write_bytes(damaged)
        try:
            imported = import_checkpoint(archive, tmp_path / f"models{_}")
        except CheckpointError:
            refused += 1
            assert files_below(tmp_path / f"models{_}") == []
        else:  # a bit of padding, of a date
            assert imported.facts == saved.facts
    assert refused > 30
    archive.write_bytes(whole)
    assert import_checkpoint(archive, tmp_path / "models").facts == saved.facts


@pytest.mark.parametrize(
    "raw", [None, b"", b"PK\3\4" + bytes(600), bytes(1024), b"\x1f\x8b", b"\x1f\x8b" + bytes(600), b"x" * 2000]
)
def test_other_files_are_refused(tmp_path: Path, raw: bytes | None) -> None:
    if raw is not None:
        (tmp_path / "a.tar").write_bytes(raw)
    with pytest.raises(CheckpointError, match="cannot be imported"):
        import_checkpoint(tmp_path / "a.tar", tmp_path / "models")
    assert files_below(tmp_path / "models") == []
