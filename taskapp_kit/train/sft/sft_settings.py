"""The settings of a fine-tuning job, from its config. This module does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from taskapp_kit.errors import ConfigError
from taskapp_kit.jobs.client.config.review import Review
from taskapp_kit.jobs.client.config.rl_config import load_rl_config
from taskapp_kit.jobs.client.config.schema import from_section, value_at
from taskapp_kit.jobs.client.config.sft_config import SftConfig
from taskapp_kit.train.config_keys import LIMITS
from taskapp_kit.train.job_settings import LoraSettings, check_limit, lora_settings
from taskapp_kit.train.update.update_settings import UpdateSettings

LOSS, HELD_OUT_LOSS = "loss", "eval_loss"
"""The names of the metrics."""
LIMITED = (("model", "trainer_mode"), ("lora", "dropout"))
"""Keys that accept only some values, as in an RL config."""


@dataclass(frozen=True, slots=True)
class ReservedSeeds:
    """Seeds that are not trained on, in any split.

    An `environment` of None reserves them in all environments. `config` is the path of the RL config that lists them.
    """

    environment: str | None
    seeds: frozenset[int]
    config: str


@dataclass(frozen=True, slots=True)
class SftSettings:
    """The settings of a job, as in `SftDocument`.

    `evaluate_every` and `save_every` are numbers of updates. None means one epoch.
    """

    model: str
    aliases: Mapping[str, str]
    lora: LoraSettings | None
    update: UpdateSettings
    epochs: int
    batch_size: int
    train: Path
    held_out: Path | None
    evaluate_every: int | None
    save_every: int | None
    held_out_share: float = 0.1
    min_reward: float | None = None
    reserved: ReservedSeeds | None = None


def sft_settings(config: SftConfig) -> SftSettings:
    """Return the settings. Raises JobConfigError for unsupported values, and ConfigError if the RL config is invalid."""
    review, values = Review(), config.values
    for place in LIMITED:
        check_limit(review, place, value_at(values, place), LIMITS[place])
    mode, data, training = values.model.trainer_mode, values.data, values.training
    lora = lora_settings(review, values.lora, ("lora",)) if mode == "lora" else None
    if mode == "full" and "lora" in values.model_fields_set:
        review.problem(("lora",), '[lora]: found with trainer_mode = "full". Use "lora", or remove this section.')
    config.check(review)
    return from_section(
        SftSettings,
        data,
        model=config.model,
        aliases=values.models.alias or {},
        lora=lora,
        update=from_section(UpdateSettings, training),
        epochs=training.num_epochs,
        batch_size=training.batch_size,
        train=Path(str(data.train)),
        held_out=None if data.held_out is None else Path(data.held_out),
        reserved=None if data.rl_config is None else _reserved(data.rl_config),
        evaluate_every=values.evaluation.every_n_iters,
        save_every=values.checkpoints.every_n_iters,
    )


def _reserved(path: str) -> ReservedSeeds:
    try:
        config = load_rl_config(path).values
    except FileNotFoundError as error:
        raise ConfigError(f"[data] rl_config: {error}") from None
    if not config.evaluation.seeds:
        raise ConfigError(
            f"[data] rl_config: {path} has no [evaluation] seeds, so no seeds can be reserved for evaluations.",
            hint="Add [evaluation] seeds to the RL config, or remove [data] rl_config.",
        )
    return ReservedSeeds(config.rollout.env_name, frozenset(config.evaluation.seeds), path)
