"""A job that does nothing but save checkpoints, to be killed: `saving_job.py ROOT ITERATIONS`.

It goes on from its last checkpoint, prints `saving N` before and `saved N` after each, and its state at the end. A state
follows from the one before: it is a link of a hash chain.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from facts import facts

from taskapp_kit.train.checkpoints.stored import WEIGHTS, StoredCheckpoint, latest_checkpoint
from taskapp_kit.train.checkpoints.writer import CheckpointPart, CheckpointWriter

SIZE = 12_000_000
PIECE = 500_000


class ByteJob:
    """A link of a hash chain, repeated to 12 MB."""

    def __init__(self, checkpoint: StoredCheckpoint | None) -> None:
        self.link = bytes(32)
        if checkpoint is not None:
            content = (checkpoint.path / WEIGHTS).read_bytes()
            self.link = content[:32]
            assert content == self.content()

    def content(self) -> bytes:
        return self.link * (SIZE // 32)

    def update(self, iteration: int) -> None:
        self.link = hashlib.sha256(self.link + bytes([iteration])).digest()

    def parts(self) -> dict[str, CheckpointPart]:
        def write(path: Path) -> None:
            content = self.content()
            with path.open("wb", buffering=0) as file:
                for place in range(0, SIZE, PIECE):
                    file.write(content[place : place + PIECE])

        return {WEIGHTS: CheckpointPart(SIZE, write)}


def run(root: Path, iterations: int) -> None:
    with CheckpointWriter(root) as writer:
        checkpoint = latest_checkpoint(root)
        job = ByteJob(checkpoint)
        done = 0 if checkpoint is None else checkpoint.facts.position.iteration
        incarnation = 1 if checkpoint is None else checkpoint.facts.position.incarnation + 1
        for iteration in range(done + 1, iterations + 1):
            job.update(iteration)
            print(f"saving {iteration}", flush=True)
            writer.save(facts(iteration, incarnation, score=1 / iteration), job.parts())
            print(f"saved {iteration}", flush=True)
        print(job.link.hex(), flush=True)


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]))
