"""Finds a model on this machine by its name.

A name is `tiny` (in the package), one of `fetched.FETCHED` (fetched once), a folder's name below MODELS/base, the path of
a folder (`./x`, `/x`), or a trained model's, `rl:MODEL:JOB:CHECKPOINT` or `ft:…`, below MODELS/rl or MODELS/ft. Aliases let
a config's name, such as a hub's, stand for one of these.

FOLDER/
  config.json, tokenizer.json, model.safetensors
  chat_template.jinja        or `chat_template` in tokenizer_config.json
  origin.json                {"licence": …, "notice": …} of its `ModelOrigin`; may be missing
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
"""Models that are part of the package."""

BASE = "base"
"""The folder of prepared base models below the models folder; `rl` and `ft` are those of trained ones."""

ARCHITECTURE, TOKENIZER, TEMPLATE, ORIGIN = "config.json", "tokenizer.json", "chat_template.jinja", "origin.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
"""Where older folders have their chat template."""

DESCRIPTION = (ARCHITECTURE, TOKENIZER, TEMPLATE, TOKENIZER_CONFIG, ORIGIN, "LICENSE", "NOTICE")

LONGEST_LINEAGE = 8
"""Adapters on adapters: how many models one may be made of."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PATH_STARTS = ("/", "./", "../", "~/")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model's files are.

    name: the model's own name, after aliases. requested: the name that it was requested by. folder: has its architecture,
    tokenizer and template and, without `base`, its weights. origin: of the checkpoints of a job that starts from this
    model, so its `base` is this model; a folder given by its path has the folder's name. checkpoint: of a trained model.
    base: what the checkpoint's adapter is applied to.
    """

    name: str
    requested: str
    folder: Path
    origin: ModelOrigin
    checkpoint: StoredCheckpoint | None = None
    base: ModelSource | None = None

    @property
    def alias_note(self) -> str:
        """What a status says of an alias, "" without one."""
        return "" if self.requested == self.name else f"{self.requested} stands for {self.name}."


def find_model(name: str, models: Path, aliases: Mapping[str, str] = {}, *, paths: bool = True) -> ModelSource:
    """Return where a model is.

    models: the models folder, which need not exist. aliases: a name to the one that it stands for; an alias of an alias is
    not followed. paths: whether `name` may be the path of a folder; False for one that a request contains. What an alias
    stands for always may, so `aliases` are then the operator's. A model that is fetched is fetched for any name. Every
    file of a trained model is read once and checked. Raises ConfigError for a name that is unknown, and for files that
    are missing or damaged.
    """
    own = aliases.get(name, name)
    return replace(_found(own, models, paths or name in aliases, LONGEST_LINEAGE), requested=name)


def named_model(
    settings: TrainingSettings, models: Path, aliases: Mapping[str, str], *, open_paths: bool
) -> ModelSource:
    """Return the model of a job: its own aliases come before the operator's, which alone may stand for any folder.

    Raises ConfigError.
    """
    name = settings.aliases.get(settings.model, settings.model)
    operators = {} if settings.model in settings.aliases else aliases
    return replace(find_model(name, models, operators, paths=open_paths), requested=settings.model)


def is_path(name: str) -> bool:
    """Whether a model's name is the path of a folder."""
    return name.startswith(_PATH_STARTS) or name in (".", "..", "~")


def described_by(source: ModelSource) -> dict[str, CheckpointPart]:
    """Return the files beside the weights that a checkpoint of this model needs, to be read and served by itself."""
    return {name: CheckpointPart.of(content) for name, content in description_of(source).items()}


def description_of(source: ModelSource) -> dict[str, bytes]:
    """Return the contents of these files by their names."""
    folder = source.folder
    return {name: (folder / name).read_bytes() for name in DESCRIPTION if (folder / name).is_file()}


def seeds_trained_on(source: ModelSource, models: Path, environment: str | None) -> set[int]:
    """Return the seeds that a trained model learned from, as far as its checkpoints and those before it say.

    environment: whose seeds; None for all. A model before it that was removed is not known.
    """
    found: set[int] = set()
    facts = None if source.checkpoint is None else source.checkpoint.facts
    for _ in range(LONGEST_LINEAGE):
        if facts is None:
            break
        rollout = facts.config.get("rollout")  # of an imported checkpoint, anything
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
                f"The model {name!r} is the path of a folder, which this server does not open for a request.",
                hint="Its operator can give the folder a name: TASKAPP_MODEL_ALIASES=NAME=/path/of/the/folder.",
            )
        return _folder(name, Path(name).expanduser())
    if name in BUNDLED:
        return _folder(name, BUNDLED[name])
    if name in FETCHED:
        return _folder(name, fetch(name, models / BASE))
    if _NAME.fullmatch(name) and (models / BASE / name).is_dir():
        return _folder(name, models / BASE / name)
    raise ConfigError(
        f"There is no model {name[:200]!r} on this machine, and none is fetched from a hub.",
        hint=f"Expected one of {', '.join(_known(models))}, the path of a folder (./x or /x), or rl:MODEL:JOB:CHECKPOINT (ft:…). "
        f'An alias lets one of them stand for it: [models.alias] "{name[:200]}" = "tiny" in the config, or '
        f"TASKAPP_MODEL_ALIASES={name[:200]}=tiny.",
    )


def base_models(models: Path) -> list[str]:
    """Return the names of base models that `find_model` finds, but for paths of folders."""
    return _known(models)


def _known(models: Path) -> list[str]:
    prepared = models / BASE
    found = sorted(path.name for path in prepared.iterdir() if _NAME.fullmatch(path.name)) if prepared.is_dir() else []
    return list(dict.fromkeys([*BUNDLED, *FETCHED, *found]))


def _folder(name: str, folder: Path) -> ModelSource:
    if not folder.is_dir():
        raise ConfigError(f"The model {name!r} is no folder at {folder}.")
    missing = [each for each in (ARCHITECTURE, TOKENIZER) if not (folder / each).is_file()]
    if missing:
        raise ConfigError(
            f"The folder of the model {name!r} has no {' and no '.join(missing)}; expected the files of a transformers model "
            f"with its weights as {WEIGHTS}."
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
            f"There is no trained model {name} on this machine: {folder} does not exist.",
            hint="`taskapp models list` shows those that there are, `taskapp models import` adds one.",
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
        raise ConfigError(f"The trained model {name} is an adapter on more than {LONGEST_LINEAGE} others.")
    try:
        base = _found(whole.base, models, False, lineage - 1)
    except ConfigError as error:
        raise ConfigError(
            f"{name} is an adapter, and its base {whole.base} cannot be found: {error.message}",
            hint=f"Put the base into {models / BASE / whole.base}, or export the adapter merged with its base.",
        ) from None
    return ModelSource(name, name, base.folder, origin, checkpoint, base)
