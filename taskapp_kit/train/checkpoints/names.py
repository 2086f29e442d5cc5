"""The names of trained models: `rl:<model>:<job>:<checkpoint>`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from taskapp_kit.errors import BadArgument

PREFIX = "rl"
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FOREIGN = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class TrainedModelName:
    """The name of one checkpoint. `str()` prints it. Each part can be the name of a folder, too.

    model: the base model's, with `-` for `/`. Raises BadArgument.
    """

    model: str
    job: str
    checkpoint: str

    def __post_init__(self) -> None:
        for part in (self.model, self.job, self.checkpoint):
            if not _PART.fullmatch(part):
                raise BadArgument(
                    f"{part[:80]!r} cannot be a part of a trained model's name; expected at most 128 letters, digits, "
                    "'.', '_' and '-', a letter or digit first."
                )

    @classmethod
    def of(cls, base: str, job: str, checkpoint: str) -> Self:
        """Return the name of a checkpoint of a base model such as `Qwen/Qwen3-0.6B`. Raises BadArgument."""
        return cls(_FOREIGN.sub("-", base).lstrip("._-")[:128], job, checkpoint)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the name that `str()` printed so. Raises BadArgument."""
        prefix, *parts = text.split(":")
        if prefix != PREFIX or len(parts) != 3:
            raise BadArgument(
                f"{text[:200]!r} is not the name of a trained model; expected rl:MODEL:JOB:CHECKPOINT, such as "
                "rl:Qwen-Qwen3-0.6B:job_1:checkpoint-10."
            )
        return cls(*parts)

    def __str__(self) -> str:
        return f"{PREFIX}:{self.model}:{self.job}:{self.checkpoint}"
