"""The metadata of a checkpoint, which is stored as JSON, and the names of trained models.

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
"""How a model was trained: with rollouts (`rl`) or on conversations (`ft`). The kind is the prefix of the model's name."""
KINDS: tuple[Kind, ...] = get_args(Kind)

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FOREIGN = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class TrainedModelName:
    """The name of one checkpoint, which `str()` returns. Each part is a valid directory name.

    `model` is the name of the model from which the job started, with `-` instead of `/`. The constructor raises
    BadArgument for an invalid part.
    """

    model: str
    job: str
    checkpoint: str
    kind: Kind = "rl"

    def __post_init__(self) -> None:
        for part in (self.model, self.job, self.checkpoint):
            if not _PART.fullmatch(part):
                raise BadArgument(
                    f"{part[:80]!r} cannot be a part of a trained model's name. Expected at most 128 characters of A-Z, "
                    "a-z, 0-9, '.', '_' and '-', starting with one of A-Z, a-z, 0-9."
                )

    @classmethod
    def of(cls, base: str, job: str, checkpoint: str, kind: Kind = "rl") -> Self:
        """Return the name of a checkpoint of a job that started from `base`.

        Raises BadArgument if a part of the name is invalid.
        """
        return cls(_FOREIGN.sub("-", base).lstrip("._-")[:128], job, checkpoint, kind)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a name that `str()` returned. Raises BadArgument if it is not the name of a trained model."""
        prefix, *parts = text.split(":")
        kind = next((each for each in KINDS if each == prefix), None)
        if kind is None or len(parts) != 3:
            raise BadArgument(
                f"{text[:200]!r} is not the name of a trained model. Expected rl:MODEL:JOB:CHECKPOINT or "
                "ft:MODEL:JOB:CHECKPOINT, such as rl:Qwen-Qwen3-0.6B:job_1:checkpoint-10."
            )
        model, job, checkpoint = parts
        return cls(model, job, checkpoint, kind)

    def folder(self, models: Path) -> Path:
        """Return the model's directory, MODELS/KIND/MODEL/JOB/CHECKPOINT, which need not exist."""
        return models / self.kind / self.model / self.job / self.checkpoint

    def __str__(self) -> str:
        return f"{self.kind}:{self.model}:{self.job}:{self.checkpoint}"


def job_folder(models: Path, base: str, job: str) -> Path:
    """Return the directory of a job's checkpoints, MODELS/rl/MODEL/JOB. The job started from the model `base`."""
    return TrainedModelName.of(base, job, "checkpoint-0").folder(models).parent


def is_trained(text: str) -> bool:
    """Return whether a name has the prefix of a trained model."""
    return text.startswith(tuple(f"{kind}:" for kind in KINDS))


FORMAT = 1
"""The version of the format. It is incremented when older versions of the kit could misread new checkpoints."""

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors")


@dataclass(frozen=True, slots=True)
class JobPosition:
    """The progress of a job.

    Attributes:
        iteration: The number of finished iterations.
        incarnation: How often the job was resumed.
        done: The finished rollouts that belong to later iterations.
    """

    iteration: int
    incarnation: int
    done: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """The origin of the weights.

    Attributes:
        base: The model from which the job started.
        licence: The base model's license, such as `Apache-2.0`.
        notice: A statement of how the base model was changed, which some licenses require.
    """

    base: str
    licence: str
    notice: str


def installed_versions() -> dict[str, str]:
    """Return the versions of taskapp-kit, Python and the packages that affect training, without importing them."""
    found = {"taskapp-kit": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """The metadata of a checkpoint.

    Attributes:
        job: The job's id.
        position: The progress of the job.
        weights_version: The number of updates of the weights.
        origin: The model from which the job started.
        config: The job's complete config.
        seeds: `train` and `evaluation` are the lists of seeds, or None for the task app's ranges. `environments` lists
            the environments of fine-tuning.
        score: The result of evaluating these weights (higher is better), or None if they were not evaluated.
        kind: The kind of the job.
        versions: The result of `installed_versions`.
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
        """The checkpoint's name. Raises BadArgument if the names of the base model or the job cannot be part of it."""
        return TrainedModelName.of(self.origin.base, self.job, f"checkpoint-{self.position.iteration}", self.kind)

    @property
    def order(self) -> tuple[int, int]:
        """A sort key that is larger for later checkpoints of a job, even if a resumed job repeats iterations."""
        return (self.position.incarnation, self.position.iteration)

    def encoded(self) -> bytes:
        """Return the metadata as JSON. Raises BadArgument for values that JSON cannot represent exactly."""
        try:
            raw = orjson.dumps({"format": FORMAT, **asdict(self)}, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
            if decoded(raw) == self:
                return raw
        except (orjson.JSONEncodeError, CheckpointError) as error:
            raise BadArgument(f"The metadata of a checkpoint cannot be encoded as JSON: {error}") from error
        raise BadArgument(
            "The metadata of a checkpoint contains values that JSON cannot represent, such as tuples or infinite numbers."
        )


def decoded(raw: bytes) -> CheckpointFacts:
    """Parse the JSON that `encoded` returned. Raises CheckpointError if it is invalid."""
    try:
        value = orjson.loads(raw)
        if value.pop("format") != FORMAT:
            raise CheckpointError(
                "This version of taskapp-kit cannot read the checkpoint's format. Use the version that wrote it."
            )
        position, origin = value.pop("position"), value.pop("origin")
        done = tuple(position.pop("done"))
        facts = CheckpointFacts(position=JobPosition(**position, done=done), origin=ModelOrigin(**origin), **value)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"The metadata (checkpoint.json) cannot be read: {error}") from error
    numbers = (facts.position.iteration, facts.position.incarnation, facts.weights_version)
    strings = (facts.job, *done, facts.origin.base, facts.origin.licence, facts.origin.notice, *facts.versions.values())
    if (
        any(type(number) is not int or number < 0 for number in numbers)
        or any(type(each) is not str for each in strings)
        or facts.kind not in KINDS
        or not all(isinstance(each, dict) for each in (facts.config, facts.seeds, facts.versions))
        or not (facts.score is None or (isinstance(facts.score, int | float) and math.isfinite(facts.score)))
    ):
        raise CheckpointError("The metadata (checkpoint.json) cannot be read: a field has the wrong type.")
    return facts
