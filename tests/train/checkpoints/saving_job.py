"""A job that does nothing but save checkpoints, to be killed: `saving_job.py ROOT ITERATIONS bytes|weights`.

It goes on from its last checkpoint, prints `saving N` before and `saved N` after each, and a digest of its state at the
end. A state follows from the one before: with `bytes` it is a hash chain, with `weights` a model and AdamW.
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
WIDTH = 707


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

    def digest(self) -> str:
        return self.link.hex()


class WeightsJob:
    """A million weights and AdamW's state, 12 MB; the batch of an iteration follows from its number."""

    def __init__(self, checkpoint: StoredCheckpoint | None) -> None:
        import torch

        from taskapp_kit.train.checkpoints.state import restore_optimizer, restore_weights

        torch.set_num_threads(1)
        torch.manual_seed(0 if checkpoint is None else 1)
        self.model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        if checkpoint is not None:
            restore_weights(self.model, checkpoint)
            restore_optimizer(self.model, self.optimizer, checkpoint)

    def update(self, iteration: int) -> None:
        import torch

        batch = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(iteration))
        self.optimizer.zero_grad()
        (self.model(batch) - batch).square().mean().backward()
        self.optimizer.step()

    def parts(self) -> dict[str, CheckpointPart]:
        from taskapp_kit.train.checkpoints.state import state_parts

        return state_parts(self.model, self.optimizer)

    def digest(self) -> str:
        found = hashlib.sha256()
        for parameter in self.model.parameters():
            for tensor in (parameter.detach(), *self.optimizer.state[parameter].values()):
                found.update(tensor.numpy().tobytes())
        return found.hexdigest()


def run(root: Path, iterations: int, kind: type[ByteJob | WeightsJob]) -> None:
    with CheckpointWriter(root) as writer:
        checkpoint = latest_checkpoint(root)
        job = kind(checkpoint)
        done = 0 if checkpoint is None else checkpoint.facts.position.iteration
        incarnation = 1 if checkpoint is None else checkpoint.facts.position.incarnation + 1
        for iteration in range(done + 1, iterations + 1):
            job.update(iteration)
            print(f"saving {iteration}", flush=True)
            writer.save(facts(iteration, incarnation, score=1 / iteration), job.parts())
            print(f"saved {iteration}", flush=True)
        print(job.digest(), flush=True)


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), {"bytes": ByteJob, "weights": WeightsJob}[sys.argv[3]])
