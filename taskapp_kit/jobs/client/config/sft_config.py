"""The config for fine-tuning on conversations (`taskapp train --type sft`): a TOML file that is validated completely.

Sections and keys that also exist in RL configs have the same names and meanings in both. The tables in
`docs/train/fine-tuning.md` are generated from this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from taskapp_kit.errors import JobConfigError
from taskapp_kit.jobs.client.config.cross_section_checks import kind_of_model, names_both
from taskapp_kit.jobs.client.config.review import Document, NameCheck, Review, check_values, read_document
from taskapp_kit.jobs.client.config.schema import (
    CheckpointsSection,
    ConfigSection,
    Lora,
    Model,
    ModelsSection,
    Tags,
    optional,
    required,
    section,
)
from taskapp_kit.jobs.client.config.toml_file import read_toml, sentences
from taskapp_kit.jobs.client.config.value_types import Count, Number, PositiveShare, Share, Text
from taskapp_kit.jobs.client.config.values import Place

WHAT = "SFT config"


class SftData(ConfigSection):
    """The conversations to learn from. Paths are relative to the working directory."""

    train: Text | None = required("a file written by `taskapp export --format sft`", '"gold.jsonl"')
    held_out: Text | None = optional(
        "a second file in the same format, which is only used to measure the loss", '"held_out.jsonl"'
    )
    held_out_share: Share | None = optional(
        "instead of `held_out`: the share of the seeds in `train` to hold out; 0.1 by default", "0.1"
    )
    min_reward: Number | None = optional("conversations with a lower reward, or without a reward, are excluded", "1.0")
    rl_config: Text | None = optional("an RL config whose [evaluation] seeds are excluded", '"rl.toml"')


class SftTraining(ConfigSection):
    """The length of training and the learning rate."""

    num_epochs: Count | None = required("passes over the conversations", "3")
    batch_size: Count | None = required("conversations per update", "8")
    learning_rate: PositiveShare | None = required("the learning rate", "2e-5")
    precision: Literal["fp32", "bf16"] | None = optional("used to compute; the weights are fp32", '"fp32"')


class SftEvaluation(ConfigSection):
    """How often the held-out loss is measured. It is always measured before the first update and after the last."""

    every_n_iters: Count | None = optional("updates between measurements; by default one epoch", "10")


class SftDocument(ConfigSection):
    """The whole document, with its sections in the order of the documentation page."""

    model: Model = section(Model, required=True)
    data: SftData = section(SftData, required=True)
    training: SftTraining = section(SftTraining, required=True)
    lora: Lora = section(Lora)
    evaluation: SftEvaluation = section(SftEvaluation)
    checkpoints: CheckpointsSection = section(CheckpointsSection)
    models: ModelsSection = section(ModelsSection)
    tags: Tags = section(Tags)


@dataclass(frozen=True, slots=True)
class SftConfig:
    """A valid config.

    Attributes:
        document: The TOML document, with the model that is used.
        values: The parsed values of `document`.
        path: The path of the config file.
        warnings: Sentences about possible mistakes.
    """

    document: Document = field(repr=False)
    values: SftDocument = field(repr=False, compare=False)
    path: Path
    warnings: tuple[str, ...] = ()
    lines: Mapping[Place, int] = field(default_factory=dict, repr=False, compare=False)

    @property
    def model(self) -> str:
        """The id of the model to train."""
        return self.values.model.source or self.values.model.base or ""

    def check(self, review: Review) -> None:
        """Raise JobConfigError if the review has problems."""
        if review.problems:
            raise JobConfigError(
                f"{self.path} cannot be used as an {WHAT} (docs/train/fine-tuning.md lists every section and key):",
                problems=sentences(review.problems, self.lines, frozenset()),
            )


def load_sft_config(path: str | Path, model: str | None = None) -> SftConfig:
    """Read a config from a TOML file. model: If set, replaces the file's model.

    Raises FileNotFoundError if the file does not exist, and JobConfigError with all problems if the config is invalid.
    """
    path = Path(path)
    document, lines = read_toml(path, WHAT)
    if model is not None and isinstance(document.get("model", {}), dict):
        named: dict[str, Any] = {
            name: value for name, value in document.get("model", {}).items() if name not in ("source", "base")
        }
        document = {**document, "model": {**named, kind_of_model(model): model}}
    values, unfit = read_document(SftDocument, document)
    review = Review(unfit)
    NameCheck(review, SftDocument, needed=lambda _: True, unknown="nothing reads it").check(document, document)
    table = document.get("model")
    if isinstance(table, dict) and not {"source", "base"} & set(table):
        text = '[model]: found no model; expected base or source. Add, for example, base = "tiny".'
        review.problem(("model",), text)
    names_both(review, document, "model", "source", "base")
    _check_held_out(review, values.data)
    check_values(review, document)
    config = SftConfig(document, values, path, sentences(review.warnings, lines, frozenset()), lines)
    config.check(review)
    return config


def _check_held_out(review: Review, data: SftData) -> None:
    place, share = ("data", "held_out_share"), data.held_out_share
    if share is not None and data.held_out is not None:
        review.problem(place, "[data] held_out and held_out_share: found both; expected one. Remove one of them.")
    elif share == 1:
        review.mismatch(place, share, "less than 1", "Lower it: with 1, no conversations are left to learn from.")
