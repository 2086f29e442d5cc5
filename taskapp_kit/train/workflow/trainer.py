"""What updates a policy's weights: `Trainer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from taskapp_kit.errors import BadArgument
from taskapp_kit.services import Actor, endpoint
from taskapp_kit.train.advantages import Scale
from taskapp_kit.train.rows import RowOptions
from taskapp_kit.train.turns import UpdateMetrics
from taskapp_kit.train.update.settings import UpdateSettings
from taskapp_kit.train.workflow.episode import Episode
from taskapp_kit.train.workflow.shared_folder import sent_folder, shared_folder

LEARNING_RATE = 1e-5
Returns = Literal["loss", "loss_and_kl"]


class Trainer(Actor, call_seconds=3600.0):
    """Updates a model from episodes, in one replica: `Trainer.as_service("tiny", learning_rate=5e-4)`.

    model: as that of `Policy`; all of its weights are trained. loss: `grpo`, `gspo` or `reinforce`. beta: weight of the KL
    divergence from the model as it was at the start. temperature: that of the policy. minibatches: optimizer steps of one
    update. scale: what an episode's distance from its baseline is divided by. returns: what `train_step` returns.
    precision: `fp32` or `bf16`. folder: shared with the policies; None for one of this program. threads: as of `Policy`.

    A trainer that finds weights or checkpoints in its folder goes on from the newest: so does a restarted one, from the last
    push or save. The optimizer's state is part of `save` only.
    """

    def __init__(
        self,
        model: str = "tiny",
        *,
        learning_rate: float = LEARNING_RATE,
        loss: Literal["grpo", "gspo", "reinforce"] = "grpo",
        beta: float = 0.0,
        temperature: float = 1.0,
        minibatches: int = 1,
        warmup: int = 0,
        scale: Scale = "none",
        returns: Returns = "loss",
        precision: Literal["fp32", "bf16"] = "fp32",
        folder: str | None = None,
        threads: int | None = None,
    ) -> None:
        from taskapp_kit.train.workflow.trained_policy import TrainedPolicy

        if returns not in get_args(Returns):
            raise BadArgument(f"returns is {returns!r}; expected one of {', '.join(get_args(Returns))}.")
        if returns == "loss_and_kl" and not beta:
            raise BadArgument(
                'returns="loss_and_kl" with beta 0 has no KL divergence to return; expected a beta above 0.'
            )
        if scale not in get_args(Scale):
            raise BadArgument(f"scale is {scale!r}; expected one of {', '.join(get_args(Scale))}.")
        settings = UpdateSettings(
            learning_rate,
            loss=loss,
            beta=beta,
            temperature=temperature,
            minibatches=minibatches,
            warmup=warmup,
            precision=precision,
            draw="workflow",
        )
        self._returns = returns
        self._metrics: UpdateMetrics | None = None
        self._policy = TrainedPolicy(model, settings, RowOptions(scale), shared_folder(folder), threads)

    @classmethod
    def sent_arguments(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Name the shared folder."""
        return args, sent_folder(kwargs)

    @endpoint
    def train_step(self, batch: Sequence[Episode] | None) -> float | tuple[float, float]:
        """Make one update; return its loss, or with returns="loss_and_kl" the loss and the KL divergence per token.

        Raises BadArgument for no batch and for episodes that cannot be trained on, before anything changes; TrainingError
        when a gradient is not finite.
        """
        if not batch or not all(isinstance(each, Episode) for each in batch):
            found = "an empty batch" if isinstance(batch, list | tuple) and not batch else repr(batch)[:80]
            raise BadArgument(
                f"train_step was given {found}; expected a list of at least one Episode.",
                hint="ReplayBuffer.sample returns None while it has too few: wait, or add episodes first.",
            )
        self._metrics = self._policy.learn(batch)
        if self._returns == "loss":
            return self._metrics.loss
        assert self._metrics.kl is not None, "beta is above 0: each row counts"
        return self._metrics.loss, self._metrics.kl

    @endpoint
    def push_weights(self, version: int) -> str:
        """Write the weights for `Policy.update_weights(version)`; return the path of their file. The last few stay.

        version: any number that the caller counts with, above 0. Raises BadArgument, TrainingError.
        """
        return self._policy.push(version)

    @endpoint(idempotent=True)
    def metrics(self) -> UpdateMetrics | None:
        """Return the numbers of the last update; None before the first one."""
        return self._metrics

    @endpoint
    def save(self) -> str:
        """Save a checkpoint of weights and optimizer; return the path of its folder, which is a model, too.

        The last two stay. Raises CheckpointError.
        """
        return self._policy.save()

    @endpoint
    def restore(self) -> int:
        """Go back to the last whole checkpoint; return how many updates made its weights. Raises CheckpointError if there is
        none."""
        return self._policy.restore()

    def close(self) -> None:
        """Let another trainer use the folder."""
        self._policy.close()
