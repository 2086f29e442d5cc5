"""The names of trained models: `rl:<model>:<job>:<checkpoint>`, and `ft:…` for those that were fine-tuned on conversations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, get_args

from taskapp_kit.errors import BadArgument

Kind = Literal["rl", "ft"]
"""How a model was trained: with rollouts, or on conversations. Its name begins with it."""
KINDS: tuple[Kind, ...] = get_args(Kind)

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FOREIGN = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class TrainedModelName:
    """The name of one checkpoint. `str()` prints it. Each part can be the name of a folder, too.

    model: the name of the model that the job started from, with `-` for `/`. Raises BadArgument.
    """

    model: str
    job: str
    checkpoint: str
    kind: Kind = "rl"

    def __post_init__(self) -> None:
        for part in (self.model, self.job, self.checkpoint):
            if not _PART.fullmatch(part):
                raise BadArgument(
                    f"{part[:80]!r} cannot be a part of a trained model's name; expected at most 128 letters, digits, "
                    "'.', '_' and '-', a letter or digit first."
                )

    @classmethod
    def of(cls, base: str, job: str, checkpoint: str, kind: Kind = "rl") -> Self:
        """Return the name of a checkpoint of a job that started from a model such as `Qwen/Qwen3-0.6B`. Raises BadArgument."""
        return cls(_FOREIGN.sub("-", base).lstrip("._-")[:128], job, checkpoint, kind)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the name that `str()` printed so. Raises BadArgument."""
        prefix, *parts = text.split(":")
        kind = next((each for each in KINDS if each == prefix), None)
        if kind is None or len(parts) != 3:
            raise BadArgument(
                f"{text[:200]!r} is not the name of a trained model; expected rl:MODEL:JOB:CHECKPOINT or "
                "ft:MODEL:JOB:CHECKPOINT, such as rl:Qwen-Qwen3-0.6B:job_1:checkpoint-10."
            )
        model, job, checkpoint = parts
        return cls(model, job, checkpoint, kind)

    def folder(self, models: Path) -> Path:
        """Return where the model is, or would be: MODELS/KIND/MODEL/JOB/CHECKPOINT."""
        return models / self.kind / self.model / self.job / self.checkpoint

    def __str__(self) -> str:
        return f"{self.kind}:{self.model}:{self.job}:{self.checkpoint}"


def job_folder(models: Path, base: str, job: str) -> Path:
    """Return where a job's checkpoints are: MODELS/rl/MODEL/JOB. base: the model that it started from. Raises BadArgument."""
    return TrainedModelName.of(base, job, "checkpoint-0").folder(models).parent


def is_trained(text: str) -> bool:
    """Whether a model's name is meant as that of a trained one."""
    return text.startswith(tuple(f"{kind}:" for kind in KINDS))
