"""`Trainer`, a service that updates a policy's weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from taskapp_kit.errors import BadArgument
from taskapp_kit.services import Actor, endpoint
from taskapp_kit.train.advantages import Scale
from taskapp_kit.train.rows import RowOptions
from taskapp_kit.train.turns import UpdateMetrics
from taskapp_kit.train.update.update_settings import UpdateSettings
from taskapp_kit.train.workflow.episode import Episode
from taskapp_kit.train.workflow.shared_folder import sent_folder, shared_folder

LEARNING_RATE = 1e-5
Returns = Literal["loss", "loss_and_kl"]


class Trainer(Actor, call_seconds=3600.0):
    """Updates a model with episodes, in one replica: `Trainer.as_service("tiny", learning_rate=5e-4)`.

    A new or restarted trainer continues from the newest weights or checkpoint in its directory. Only `save` stores the
    optimizer's state.

    Args:
        model: The model, as for `Policy`. All of its weights are trained.
        learning_rate: The learning rate of AdamW.
        loss: `grpo`, `gspo` or `reinforce`.
        beta: The weight of the KL divergence from the initial model.
        temperature: The policy's temperature.
        minibatches: The number of optimizer steps of one update.
        warmup: The number of updates during which the learning rate increases.
        scale: The divisor of the difference between an episode's reward and its baseline.
        returns: What `train_step` returns: `loss` or `loss_and_kl`.
        precision: `fp32` or `bf16`.
        folder: The directory that is shared with the policies. None uses a temporary directory of this program.
        threads: The number of threads, as for `Policy`.

    Raises:
        BadArgument: An option is invalid, or two options contradict each other.
        CheckpointError: Another trainer uses the directory.
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
            raise BadArgument(f"`returns` is {returns!r}. Expected one of {', '.join(get_args(Returns))}.")
        if returns == "loss_and_kl" and not beta:
            raise BadArgument(
                'returns="loss_and_kl" requires a beta greater than 0. With beta 0, no KL divergence is computed.'
            )
        if scale not in get_args(Scale):
            raise BadArgument(f"`scale` is {scale!r}. Expected one of {', '.join(get_args(Scale))}.")
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
        """Add the shared directory to the arguments."""
        return args, sent_folder(kwargs)

    @endpoint
    def train_step(self, batch: Sequence[Episode] | None) -> float | tuple[float, float]:
        """Make one update.

        Args:
            batch: A list of episodes, such as the result of `ReplayBuffer.sample`.

        Returns:
            The loss or, with returns="loss_and_kl", the loss and the KL divergence per token.

        Raises:
            BadArgument: The batch is None or empty, or an episode is unsuitable for training. Nothing has changed.
            TrainingError: A gradient is not finite.
        """
        if not batch or not all(isinstance(each, Episode) for each in batch):
            shown = "an empty batch" if isinstance(batch, list | tuple) and not batch else repr(batch)[:80]
            raise BadArgument(
                f"train_step received {shown}. Expected a list of at least one Episode.",
                hint="If the result of ReplayBuffer.sample is None, add more episodes first.",
            )
        self._metrics = self._policy.learn(batch)
        if self._returns == "loss":
            return self._metrics.loss
        assert self._metrics.kl is not None, "beta is above 0, so each row has a gradient"
        return self._metrics.loss, self._metrics.kl

    @endpoint
    def push_weights(self, version: int) -> str:
        """Write the weights for `Policy.update_weights(version)`. The last few versions are retained.

        Args:
            version: An integer greater than 0, chosen by the caller.

        Returns:
            The path of the file.

        Raises:
            BadArgument: The version is invalid.
            TrainingError: The weights cannot be written.
        """
        return self._policy.push(version)

    @endpoint(idempotent=True)
    def metrics(self) -> UpdateMetrics | None:
        """Return the metrics of the last update, or None before the first update."""
        return self._metrics

    @endpoint
    def save(self) -> str:
        """Save a checkpoint of the weights and the optimizer. The last two checkpoints are retained.

        Returns:
            The path of the checkpoint's directory, which can also be used as a model.

        Raises:
            CheckpointError: The checkpoint cannot be saved. Earlier checkpoints are unchanged.
        """
        return self._policy.save()

    @endpoint
    def restore(self) -> int:
        """Restore the last complete checkpoint.

        Returns:
            The number of updates in the checkpoint.

        Raises:
            CheckpointError: No checkpoint exists.
        """
        return self._policy.restore()

    def close(self) -> None:
        """Unlock the directory for other trainers."""
        self._policy.close()
