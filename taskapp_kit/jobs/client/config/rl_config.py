"""An RL config: a TOML file that is validated completely before anything is sent.

    config = load_rl_config("rl_config.toml")
    config = config.with_overrides({"training": {"num_epochs": 5}})

Each problem states the line, what was found, what was expected and what to do. An unknown key is only a warning,
because a trainer may support more keys than the kit does. `docs/reference/rl-config.md` lists every section and key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taskapp_kit.errors import FieldProblem, JobConfigError
from taskapp_kit.jobs.client.config.cross_section_checks import (
    MODEL_KEYS,
    check_consistency,
    kind_of_model,
    models_named,
    with_whole_topology,
)
from taskapp_kit.jobs.client.config.review import (
    MAX_LEVELS,
    Document,
    NameCheck,
    Review,
    check_values,
    is_smoke_test,
    needs_gpus,
    read_document,
)
from taskapp_kit.jobs.client.config.schema import RlDocument
from taskapp_kit.jobs.client.config.toml_file import read_toml, sentences
from taskapp_kit.jobs.client.config.values import Place

WHAT = "RL config"


@dataclass(frozen=True, slots=True)
class RlConfig:
    """A valid config.

    Attributes:
        document: The TOML document, with the overrides applied.
        values: The parsed values of `document`.
        path: The path of the config file.
        warnings: Sentences about possible mistakes. They never contain a value that looks like a key.
        lines: The line in the file of each key and section.
    """

    document: Document = field(repr=False)
    values: RlDocument = field(repr=False, compare=False)
    path: Path
    warnings: tuple[str, ...] = ()
    lines: Mapping[Place, int] = field(default_factory=dict, repr=False, compare=False)

    def with_overrides(self, overrides: Mapping[str, Any]) -> RlConfig:
        """Return a validated copy in which these values replace the config's values.

        Args:
            overrides: Nested tables. Sections are merged key by key, lists are replaced completely, and None removes a
                key. A model in the overrides replaces the models of all sections. As in SDK 0.3.9, `model` may also be
                a model's id, and `task_url` sets `services.task_url`.

        Raises:
            JobConfigError: The config is invalid. The error has every problem.
        """
        return _overridden(self.document, self.path, self.lines, overrides)

    @property
    def model(self) -> str:
        """The id of the model to train."""
        return models_named(self.document)[0][2]

    @property
    def task_url(self) -> str | None:
        """The task app's address in the file without a trailing slash, or None."""
        return (self.values.services.task_url or "").strip().rstrip("/") or None

    def with_lines(self, text: str, fields: Iterable[FieldProblem]) -> str:
        """Add line numbers of the config file to a backend's error message.

        text: The message. fields: The keys that the sentences of the message are about.
        """
        for problem in fields:
            names = tuple(part for part in problem.loc if isinstance(part, str))
            if names[:3] == ("body", "data", "config") and (line := self.lines.get(names[3:])) is not None:
                text = text.replace(problem.message, f"line {line}: {problem.message}", 1)
        return text


def load_rl_config(path: str | Path, overrides: Mapping[str, Any] | None = None) -> RlConfig:
    """Read the config of a TOML file.

    Args:
        path: The file.
        overrides: See `RlConfig.with_overrides`. They are applied before the config is validated.

    Raises:
        FileNotFoundError: The file does not exist.
        JobConfigError: The config is invalid. The error has every problem.
    """
    path = Path(path)
    document, lines = read_toml(path, WHAT)
    if overrides:
        return _overridden(document, path, lines, overrides)
    return _checked(document, path, lines, frozenset())


def review_rl_document(
    document: Document, values: RlDocument, unfit: Mapping[Place, str], lines: Mapping[Place, int] | None = None
) -> Review:
    """Return all problems and warnings of a document. values and unfit: The two results of `read_document`."""
    review = Review(dict(unfit), lines=lines or {})
    short = is_smoke_test(document)
    unneeded: set[Place] = set()
    if any(place[0] == "policy" for place, _, _ in models_named(document)):
        unneeded.add(("model",))
    if "compute" not in document and not needs_gpus(document):
        unneeded.add(("compute",))
    names = NameCheck(
        review,
        RlDocument,
        needed=lambda section: not short and section not in unneeded,
        unknown="is sent with the job unchanged",
    )
    names.check(document, with_whole_topology(document))
    check_consistency(review, values, document)
    check_values(review, document)
    return review


def _checked(document: Document, path: Path, lines: Mapping[Place, int], changed: frozenset[Place]) -> RlConfig:
    values, unfit = read_document(RlDocument, document)
    review = review_rl_document(document, values, unfit, lines)
    if review.problems:
        count = "1 problem" if len(review.problems) == 1 else f"{len(review.problems)} problems"
        raise JobConfigError(
            f"{path} cannot be used as an {WHAT} (docs/reference/rl-config.md lists every section and key), {count}:",
            problems=sentences(review.problems, lines, changed),
        )
    return RlConfig(document, values, path, sentences(review.warnings, lines, changed), lines)


def _overridden(document: Document, path: Path, lines: Mapping[Place, int], overrides: Mapping[str, Any]) -> RlConfig:
    changes = _plain(overrides, path)
    if isinstance(changes.get("model"), str):
        model = changes.pop("model")
        changes["model"] = {kind_of_model(model): model}
    if isinstance(changes.get("task_url"), str) and isinstance(changes.setdefault("services", {}), dict):
        changes["services"]["task_url"] = changes.pop("task_url")
    own = _plain(document, path)
    merged, changed = _merged(_without_models(own) if models_named(changes) else own, changes, ())
    return _checked(merged, path, {place: line for place, line in lines.items() if place not in changed}, changed)


def _plain(given: Mapping[str, Any], path: Path) -> Document:
    """Return a deep copy in which all mappings are dicts and all sequences are lists.

    Raises JobConfigError if it is nested too deeply or has a key that is not a string.
    """

    def copied(value: Any, level: int) -> Any:
        if level > MAX_LEVELS:
            raise JobConfigError(f"The values for {path} are nested deeper than {MAX_LEVELS} levels. Flatten them.")
        if isinstance(value, Mapping):
            if not all(isinstance(name, str) for name in value):
                raise JobConfigError(f"The values for {path} have a key that is not a string. Use strings.")
            return {name: copied(inner, level + 1) for name, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [copied(inner, level + 1) for inner in value]
        return str(value) if isinstance(value, Path) else value

    if not isinstance(given, Mapping):
        raise JobConfigError(
            f"The overrides of {path} must be a mapping.", hint='Pass, for example, {"training": {"num_epochs": 5}}.'
        )
    made: Document = copied(given, 0)
    return made


def _merged(document: Document, changes: Document, at: Place) -> tuple[Document, frozenset[Place]]:
    """Return the merged document, and the paths of the values that changed."""
    merged, changed = dict(document), set[Place]()
    for name, value in changes.items():
        place = (*at, name)
        old = merged.get(name)
        if value is None:
            merged.pop(name, None)
            changed.add(place)
        elif isinstance(value, dict) and isinstance(old, dict):
            merged[name], inner = _merged(old, value, place)
            changed |= inner
        else:
            merged[name] = value
            changed.add(place)
    return merged, frozenset(changed)


def _without_models(document: Document) -> Document:
    """Return the document without the keys that name a model."""
    made = dict(document)
    for section, key, _ in MODEL_KEYS:
        if isinstance(made.get(section), dict):
            made[section] = {name: value for name, value in made[section].items() if name != key}
    return made
