"""Finds a model on this machine by its name.

A name is `tiny` (included in the package), a name in `fetched.FETCHED` (downloaded once), the name of a directory in
MODELS/base, the path of a directory (`./x`, `/x`), or the name of a trained model in MODELS/rl or MODELS/ft
(`rl:MODEL:JOB:CHECKPOINT` or `ft:…`). An alias maps a name in a config, such as a hub's name, to one of these names.

DIRECTORY/
  config.json, tokenizer.json, model.safetensors
  chat_template.jinja        or `chat_template` in tokenizer_config.json
  origin.json                optional: {"licence": …, "notice": …} as in `ModelOrigin`
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from taskapp_kit.errors import BadArgument, CheckpointError, ConfigError
from taskapp_kit.train.checkpoints.facts import ModelOrigin, TrainedModelName, is_trained
from taskapp_kit.train.checkpoints.stored import WEIGHTS, StoredCheckpoint, read_checkpoint, read_facts
from taskapp_kit.train.checkpoints.writer import CheckpointPart
from taskapp_kit.train.job_settings import TrainingSettings
from taskapp_kit.train.models.fetched import FETCHED, fetch

BUNDLED = {"tiny": Path(__file__).with_name("tiny")}
"""Models that are included in the package."""

BASE = "base"
"""The directory of base models in the models directory. Trained models are in `rl` and `ft`."""

ARCHITECTURE, TOKENIZER, TEMPLATE, ORIGIN = "config.json", "tokenizer.json", "chat_template.jinja", "origin.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
"""The file with the chat template of older models."""

DESCRIPTION = (ARCHITECTURE, TOKENIZER, TEMPLATE, TOKENIZER_CONFIG, ORIGIN, "LICENSE", "NOTICE")

LONGEST_LINEAGE = 8
"""Maximum number of models in a chain of adapters."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PATH_STARTS = ("/", "./", "../", "~/")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The location of a model's files.

    Attributes:
        name: The model's name, after aliases are applied.
        requested: The requested name, before aliases are applied.
        folder: The directory with the architecture, tokenizer and template, and with the weights if `base` is None.
        origin: The origin that checkpoints record if a job starts from this model. `origin.base` is this model.
        checkpoint: The checkpoint of a trained model, or None for any other model.
        base: The base model of an adapter, or None for complete weights.
    """

    name: str
    requested: str
    folder: Path
    origin: ModelOrigin
    checkpoint: StoredCheckpoint | None = None
    base: ModelSource | None = None

    @property
    def alias_note(self) -> str:
        """The sentence in a job's status about an alias, or "" if no alias was used."""
        return "" if self.requested == self.name else f"{self.requested} is an alias of {self.name}."


def find_model(name: str, models: Path, aliases: Mapping[str, str] = {}, *, paths: bool = True) -> ModelSource:
    """Find a model. Download it if necessary, and check all files of a trained model.

    Args:
        name: The model's name.
        models: The models directory, which need not exist.
        aliases: Names by alias. An alias of an alias is not resolved. An alias may always map to a path, so if `paths`
            is False, only pass the operator's aliases.
        paths: Whether `name` may be the path of a directory. Use False for a name in a request.

    Raises:
        ConfigError: The name is unknown, or files are missing or damaged.
    """
    own = aliases.get(name, name)
    return replace(_found(own, models, paths or name in aliases, LONGEST_LINEAGE), requested=name)


def named_model(
    settings: TrainingSettings, models: Path, aliases: Mapping[str, str], *, open_paths: bool
) -> ModelSource:
    """Return the model of a job. The job's aliases take precedence, but only the operator's aliases may map to paths."""
    name = settings.aliases.get(settings.model, settings.model)
    operators = {} if settings.model in settings.aliases else aliases
    return replace(find_model(name, models, operators, paths=open_paths), requested=settings.model)


def is_path(name: str) -> bool:
    """Return whether a model's name is the path of a directory."""
    return name.startswith(_PATH_STARTS) or name in (".", "..", "~")


def described_by(source: ModelSource) -> dict[str, CheckpointPart]:
    """Return the files that a checkpoint of this model needs in addition to the weights."""
    return {name: CheckpointPart.of(content) for name, content in description_of(source).items()}


def description_of(source: ModelSource) -> dict[str, bytes]:
    """Return the contents of the files in `DESCRIPTION` that the model has, by name."""
    folder = source.folder
    return {name: (folder / name).read_bytes() for name in DESCRIPTION if (folder / name).is_file()}


def seeds_trained_on(source: ModelSource, models: Path, environment: str | None) -> set[int]:
    """Return the seeds on which a trained model and its predecessors were trained.

    The search ends at the first predecessor whose checkpoint cannot be read. `environment` restricts the seeds to one
    environment. None returns the seeds of all environments.
    """
    found: set[int] = set()
    facts = None if source.checkpoint is None else source.checkpoint.facts
    for _ in range(LONGEST_LINEAGE):
        if facts is None:
            break
        rollout = facts.config.get("rollout")  # an imported checkpoint may have any value
        own = rollout.get("env_name") if isinstance(rollout, Mapping) else None
        named, learned = facts.seeds.get("environments") or [own], facts.seeds.get("train")
        if (
            isinstance(learned, list)
            and isinstance(named, list)
            and (environment is None or None in named or environment in named)
        ):
            found.update(seed for seed in learned if isinstance(seed, int))
        base, facts = facts.origin.base, None
        with suppress(BadArgument, CheckpointError):
            facts = read_facts(TrainedModelName.parse(base).folder(models))
    return found


def _found(name: str, models: Path, paths: bool, lineage: int) -> ModelSource:
    if is_trained(name):
        return _trained(name, models, lineage)
    if is_path(name):
        if not paths:
            raise ConfigError(
                f"The model {name!r} is a path, but this server only accepts names.",
                hint="The server's operator can define a name: TASKAPP_MODEL_ALIASES=NAME=/path/of/the/directory.",
            )
        return _folder(name, Path(name).expanduser())
    if name in BUNDLED:
        return _folder(name, BUNDLED[name])
    if name in FETCHED:
        return _folder(name, fetch(name, models / BASE))
    if _NAME.fullmatch(name) and (models / BASE / name).is_dir():
        return _folder(name, models / BASE / name)
    raise ConfigError(
        f"This machine has no model {name[:200]!r}, and models are not downloaded from a hub.",
        hint=f"Use {', '.join(base_models(models))}, the path of a directory (./x or /x), or a trained model "
        f'(rl:MODEL:JOB:CHECKPOINT or ft:…). Or define an alias in the config, [models.alias] "{name[:200]}" = "tiny", or '
        f"TASKAPP_MODEL_ALIASES={name[:200]}=tiny.",
    )


def base_models(models: Path) -> list[str]:
    """Return the names of all base models: included in the package, downloaded on first use, or in MODELS/base."""
    prepared = models / BASE
    found = sorted(path.name for path in prepared.iterdir() if _NAME.fullmatch(path.name)) if prepared.is_dir() else []
    return list(dict.fromkeys([*BUNDLED, *FETCHED, *found]))


def _folder(name: str, folder: Path) -> ModelSource:
    if not folder.is_dir():
        raise ConfigError(f"The directory of the model {name!r} does not exist: {folder}.")
    missing = [each for each in (ARCHITECTURE, TOKENIZER) if not (folder / each).is_file()]
    if missing:
        raise ConfigError(
            f"The directory of the model {name!r} has no {' and no '.join(missing)}. Expected the files of a "
            f"transformers model, with its weights in {WEIGHTS}."
        )
    return ModelSource(name, name, folder, _origin(name, folder))


def _origin(name: str, folder: Path) -> ModelOrigin:
    own = folder.resolve().name if is_path(name) else name
    try:
        return ModelOrigin(base=own, **orjson.loads((folder / ORIGIN).read_bytes()))
    except FileNotFoundError:
        return ModelOrigin(own, "unknown", f"taskapp-kit does not know the licence of {own}: see its publisher's.")
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{ORIGIN} of the model {name!r} cannot be read: {error}.") from None


def _trained(name: str, models: Path, lineage: int) -> ModelSource:
    try:
        trained = TrainedModelName.parse(name)
    except BadArgument as error:
        raise ConfigError(error.message) from None
    folder = trained.folder(models)
    if not folder.is_dir():
        raise ConfigError(
            f"This machine has no trained model {name}: {folder} does not exist.",
            hint="To list all trained models, run `taskapp models list`. To add a model, run `taskapp models import`.",
        )
    try:
        checkpoint = read_checkpoint(folder)
    except CheckpointError as error:
        raise ConfigError(f"The trained model {name} cannot be used. {error}") from None
    whole = checkpoint.facts.origin
    origin = ModelOrigin(name, whole.licence, whole.notice)
    if WEIGHTS in checkpoint.files:
        return replace(_folder(name, folder), origin=origin, checkpoint=checkpoint)
    if lineage <= 1:
        raise ConfigError(f"The trained model {name} is a chain of more than {LONGEST_LINEAGE} adapters.")
    try:
        base = _found(whole.base, models, False, lineage - 1)
    except ConfigError as error:
        raise ConfigError(
            f"{name} is an adapter, and its base {whole.base} cannot be found: {error.message}",
            hint=f"Copy the base model to {models / BASE / whole.base}, or export the adapter with --merge.",
        ) from None
    return ModelSource(name, name, base.folder, origin, checkpoint, base)
