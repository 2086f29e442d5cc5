"""Saving and reading checkpoints: what is kept, what is skipped, what a full disk leaves."""

from __future__ import annotations

import logging
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from taskapp_kit.errors import BadArgument, CheckpointError
from taskapp_kit.train.checkpoints.facts import JobPosition, ModelOrigin
from taskapp_kit.train.checkpoints.stored import (
    FACTS,
    MANIFEST,
    WEIGHTS,
    by_score,
    checkpoint_folders,
    encoded_manifest,
    hashed,
    latest_checkpoint,
    read_checkpoint,
)
from taskapp_kit.train.checkpoints.writer import UNFINISHED, CheckpointPart, CheckpointWriter
from tests.train.checkpoints.facts import content, facts, parts

HERE = Path(__file__).parent


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.name != ".lock")


def test_a_checkpoint_is_read_as_it_was_saved(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path / "jobs" / "checkpoints") as writer:
        assert latest_checkpoint(writer.root) is None
        saved = writer.save(facts(3, score=0.5), parts())
    read = latest_checkpoint(writer.root)
    assert read == saved
    assert read.facts == facts(3, score=0.5)
    assert str(read.facts.name) == "rl:tests-tiny:job_1:checkpoint-3"
    assert {"taskapp-kit", "python"} <= read.facts.versions.keys()
    assert content(read.path).keys() == {*parts(), FACTS, MANIFEST}
    assert (read.path / WEIGHTS).read_bytes() == b"weights"
    assert {oct(path.stat().st_mode)[-3:] for path in (read.path, read.path.parent)} == {"700"}


def test_the_last_two_and_the_best_are_kept(tmp_path: Path) -> None:
    """The final one is the last."""
    with CheckpointWriter(tmp_path) as writer:
        for iteration, score in enumerate([0.1, 0.8, None, 0.8, 0.3, 0.2], start=1):
            writer.save(facts(iteration, score=score), parts())
            assert f"checkpoint-{iteration}" in names(tmp_path)
    assert names(tmp_path) == ["checkpoint-2", "checkpoint-5", "checkpoint-6"]
    assert by_score(checkpoint_folders(tmp_path))[0].name == "checkpoint-2"


def test_a_resumed_job_replaces_what_it_repeats(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path) as writer:
        writer.save(facts(8), parts(b"before 8"))
        writer.save(facts(10), parts(b"before 10"))
        (tmp_path / "checkpoint-10" / WEIGHTS).write_bytes(b"damaged")
        writer.save(facts(9, incarnation=2), parts(b"after 9"))
        assert latest_checkpoint(tmp_path).facts.position == JobPosition(9, 2, ("train/3/0",))
        writer.save(facts(10, incarnation=2), parts(b"after 10"))
    assert names(tmp_path) == ["checkpoint-10", "checkpoint-9"]
    assert (latest_checkpoint(tmp_path).path / WEIGHTS).read_bytes() == b"after 10"


def test_what_killed_processes_left_is_removed_or_put_back(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path) as writer:
        for iteration in (1, 2):
            writer.save(facts(iteration), parts())
    (tmp_path / "checkpoint-2").rename(tmp_path / ".replaced-checkpoint-2")  # killed before the second rename
    (tmp_path / f"{UNFINISHED}checkpoint-3").mkdir()
    (tmp_path / f"{UNFINISHED}checkpoint-3" / WEIGHTS).write_bytes(b"half")
    (tmp_path / ".removed-checkpoint-0").mkdir()
    assert latest_checkpoint(tmp_path).facts.position.iteration == 1
    with CheckpointWriter(tmp_path):
        assert names(tmp_path) == ["checkpoint-1", "checkpoint-2"]
    assert latest_checkpoint(tmp_path).facts.position.iteration == 2


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path), pytest.raises(CheckpointError, match="Another process"):
        CheckpointWriter(tmp_path)
    with CheckpointWriter(tmp_path):
        pass


def flip(path: Path, place: float) -> None:
    raw = bytearray(path.read_bytes())
    raw[int(place * len(raw))] ^= 1
    path.write_bytes(raw)


def truncate(path: Path, place: float) -> None:
    path.write_bytes(path.read_bytes()[: int(place * path.stat().st_size)])


def swap_for_link(path: Path, place: float) -> None:
    other = path.parent.parent / f"copy of {path.name}"
    path.rename(other)
    path.symlink_to(other)


def swap_for_folder(path: Path, place: float) -> None:
    path.unlink()
    path.mkdir()


def swap_for_pipe(path: Path, place: float) -> None:
    path.unlink()
    os.mkfifo(path)


def add_file(path: Path, place: float) -> None:
    (path.parent / f"{place}.json").write_bytes(b"{}")


@pytest.mark.parametrize(
    "damage",
    [flip, truncate, swap_for_link, swap_for_folder, swap_for_pipe, add_file, lambda path, place: path.unlink()],
)
@pytest.mark.parametrize("name", [WEIGHTS, FACTS, MANIFEST])
def test_a_damaged_checkpoint_is_skipped_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Any, name: str
) -> None:
    with CheckpointWriter(tmp_path / "c") as writer:
        for iteration in (1, 2):
            writer.save(facts(iteration, score=iteration), parts())
    random = Random(f"{damage.__name__} {name}")
    whole = content(tmp_path / "c" / "checkpoint-2")
    for _ in range(20 if damage in (flip, truncate) else 1):
        damage(tmp_path / "c" / "checkpoint-2" / name, random.random())
        with caplog.at_level(logging.WARNING):
            latest = latest_checkpoint(tmp_path / "c")
        assert latest is not None and latest.facts.position.iteration == 1
        # A server of an earlier test in this process may still be logging.
        warned = [record.getMessage() for record in caplog.records if record.name == "taskapp_kit.train"]
        assert warned and all(str(tmp_path / "c" / "checkpoint-2") in message for message in warned)
        caplog.clear()
        if damage in (flip, truncate):
            (tmp_path / "c" / "checkpoint-2" / name).write_bytes(whole[name])
            assert latest_checkpoint(tmp_path / "c").facts.position.iteration == 2


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2}, {"format": None}, {"position": None}, {"position": {"iteration": 1}}, {"more": 1},
        {"position": {"iteration": True, "incarnation": 1, "done": []}}, {"position": {"iteration": -1, "incarnation": 1, "done": []}},
        {"position": {"iteration": 1, "incarnation": 1, "done": [1]}}, {"score": "high"}, {"score": [1]}, {"config": []},
        {"seeds": 3}, {"versions": {"torch": 2}}, {"job": 5}, {"origin": {"base": "a", "licence": "b", "notice": None}},
    ],
    ids=str,
)  # fmt: skip
def test_facts_of_another_form_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    """With a manifest that fits: such as from a stranger, or from a later version."""
    with CheckpointWriter(tmp_path) as writer:
        saved = writer.save(facts(1), parts())
    value = orjson.loads((saved.path / FACTS).read_bytes())
    (saved.path / FACTS).write_bytes(orjson.dumps(value | change))
    (saved.path / MANIFEST).write_bytes(encoded_manifest(saved.files | {FACTS: hashed(saved.path / FACTS)}))
    with pytest.raises(CheckpointError, match="cannot (be )?read"):
        read_checkpoint(saved.path)
    assert latest_checkpoint(tmp_path) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"config": {"a": math.nan}}, {"config": {"a": (1, 2)}}, {"config": {"a": b"not JSON"}}, {"config": {"a": 2**70}},
        {"score": math.inf}, {"job": "../job"}, {"origin": ModelOrigin("//", "MIT", "")},
    ],
    ids=str,
)  # fmt: skip
def test_what_could_not_be_restored_is_not_saved(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with CheckpointWriter(tmp_path) as writer:
        with pytest.raises(BadArgument):
            writer.save(facts(1, **wrong), parts())
        assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["weights.bin", "model.pt", "../x.json", "a/b.json", ".json", "model.py", "x.json\n"])
def test_other_files_are_not_saved(tmp_path: Path, name: str) -> None:
    with CheckpointWriter(tmp_path) as writer:
        with pytest.raises(CheckpointError, match="safetensors"):
            writer.save(facts(1), {**parts(), name: CheckpointPart.of(b"")})
        assert names(tmp_path) == []


def test_a_part_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_bytes(b"half of it")
        raise RuntimeError("the model has gone")

    with CheckpointWriter(tmp_path) as writer:
        writer.save(facts(1), parts())
        for iteration in (2, 1):
            with pytest.raises(RuntimeError):
                writer.save(facts(iteration), {WEIGHTS: CheckpointPart(1, fail)})
        assert names(tmp_path) == ["checkpoint-1"]
        writer.save(facts(2), parts())
    assert latest_checkpoint(tmp_path).facts.position.iteration == 2


def test_a_disk_that_is_too_small_is_reported_before_the_start(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path) as writer:
        writer.save(facts(1), parts())
        with pytest.raises(CheckpointError, match="Saving checkpoint-2 needs about"):
            writer.save(facts(2), {WEIGHTS: CheckpointPart(10**15, Path.touch)})
        assert names(tmp_path) == ["checkpoint-1"]


SAVES_UNTIL_IT_FAILS = """
import sys
from pathlib import Path
from taskapp_kit.errors import CheckpointError
from taskapp_kit.train.checkpoints.stored import latest_checkpoint
from taskapp_kit.train.checkpoints.writer import CheckpointPart, CheckpointWriter
from facts import facts

root, limit = Path(sys.argv[1]), int(sys.argv[2])
if limit:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
with CheckpointWriter(root) as writer:
    for iteration in range(1, 5):
        size = 300_000 * iteration
        try:
            writer.save(facts(iteration), {"model.safetensors": CheckpointPart(1, lambda path: path.write_bytes(bytes(size)))})
        except CheckpointError as error:
            print(error)
            break
print(sorted(path.name for path in root.iterdir()))
print(latest_checkpoint(root).facts.position.iteration)
"""


@pytest.mark.process
@pytest.mark.parametrize("limit", ["largest file", "disk"])
def test_a_full_disk_leaves_the_checkpoints_from_before(tmp_path: Path, limit: str) -> None:
    """A file system of 2 MB, and a limit of 1 MB for a file: the sizes are announced too small."""
    command = [sys.executable, "-c", SAVES_UNTIL_IT_FAILS, str(tmp_path), "1000000" if limit == "largest file" else "0"]
    if limit == "disk":
        if shutil.which("unshare") is None:
            pytest.skip("needs unshare(1) for a file system of its own")
        mount = f'mount -t tmpfs -o size=2m tmpfs "{tmp_path}" && exec "$@"'
        command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh", *command]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE)
    if ran.stderr.startswith(("unshare:", "mount:")):
        pytest.skip("a user may not mount file systems in a namespace of its own here")
    assert ran.returncode == 0, ran.stderr
    reason, left, latest = ran.stdout.splitlines()
    assert reason.startswith(f"checkpoint-4 could not be saved in {tmp_path}: ")
    assert ("File too large" if limit == "largest file" else "No space left on device") in reason
    assert left == "['.lock', 'checkpoint-2', 'checkpoint-3']"
    assert latest == "3"
