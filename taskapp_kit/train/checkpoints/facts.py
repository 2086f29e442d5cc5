"""What a checkpoint says about itself besides its weights, as JSON, and the names of trained models.

A name is `rl:<model>:<job>:<checkpoint>`, or `ft:…` for a model that was fine-tuned on conversations.
"""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, Self, get_args

import orjson

from taskapp_kit.errors import BadArgument, CheckpointError
from taskapp_kit.version import __version__

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


FORMAT = 1
"""Grows when an older kit could misread a newer checkpoint."""

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors")


@dataclass(frozen=True, slots=True)
class JobPosition:
    """How far a job is. iteration: how many it has finished. incarnation: grows by one at each resume. done: the places
    of rollouts that were finished beyond these iterations."""

    iteration: int
    incarnation: int
    done: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """What the weights were made from. licence: of the base model, such as `Apache-2.0`. notice: that and how the base
    was changed, which such licences require."""

    base: str
    licence: str
    notice: str


def installed_versions() -> dict[str, str]:
    """Return the versions of taskapp-kit, Python and the packages that compute, without importing them."""
    found = {"taskapp-kit": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """What a checkpoint says of itself.

    weights_version: of the policy, the number of updates that made it. score: of the evaluation of these weights, the
    larger the better; None without one. config: the job's whole config. seeds: by name; `train` and `evaluation` are lists,
    or None where the task app's ranges have them, and `environments` names those of fine-tuning. kind: of the job.
    versions: `installed_versions`.
    """

    job: str
    position: JobPosition
    weights_version: int
    origin: ModelOrigin
    config: Mapping[str, Any]
    seeds: Mapping[str, Any]
    score: float | None = None
    kind: Kind = "rl"
    versions: Mapping[str, str] = field(default_factory=installed_versions)

    @property
    def name(self) -> TrainedModelName:
        """The checkpoint's name. Raises BadArgument when base or job cannot be parts of one."""
        return TrainedModelName.of(self.origin.base, self.job, f"checkpoint-{self.position.iteration}", self.kind)

    @property
    def order(self) -> tuple[int, int]:
        """The later of two checkpoints of a job has the larger order: a resumed job repeats iterations."""
        return (self.position.incarnation, self.position.iteration)

    def encoded(self) -> bytes:
        """Return the facts as JSON. Raises BadArgument for what JSON could not give back as it was."""
        try:
            raw = orjson.dumps({"format": FORMAT, **asdict(self)}, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
            if decoded(raw) == self:
                return raw
        except (orjson.JSONEncodeError, CheckpointError) as error:
            raise BadArgument(f"The facts of a checkpoint cannot be written as JSON: {error}") from error
        raise BadArgument(
            "The facts of a checkpoint are not plain JSON, such as tuples or numbers that are not finite."
        )


def decoded(raw: bytes) -> CheckpointFacts:
    """Return the facts that `encoded` wrote. Raises CheckpointError."""
    try:
        value = orjson.loads(raw)
        if value.pop("format") != FORMAT:
            raise CheckpointError(
                "It was written by another version of taskapp-kit, in a format that this one cannot read."
            )
        position, origin = value.pop("position"), value.pop("origin")
        done = tuple(position.pop("done"))
        facts = CheckpointFacts(position=JobPosition(**position, done=done), origin=ModelOrigin(**origin), **value)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"Its facts cannot be read: {error}") from error
    numbers = (facts.position.iteration, facts.position.incarnation, facts.weights_version)
    texts = (facts.job, *done, facts.origin.base, facts.origin.licence, facts.origin.notice, *facts.versions.values())
    if (
        any(type(number) is not int or number < 0 for number in numbers)
        or any(type(text) is not str for text in texts)
        or facts.kind not in KINDS
        or not all(isinstance(each, dict) for each in (facts.config, facts.seeds, facts.versions))
        or not (facts.score is None or (isinstance(facts.score, int | float) and math.isfinite(facts.score)))
    ):
        raise CheckpointError("Its facts cannot be read: a field has the wrong type.")
    return facts
