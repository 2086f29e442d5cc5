"""What updates a policy's weights: `Trainer`."""

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
    """Updates a model from episodes, in one replica: `Trainer.as_service("tiny", learning_rate=5e-4)`.

    A trainer that finds weights or checkpoints in its folder goes on from the newest: so does a restarted one, from the last
    push or save. The optimizer's state is part of `save` only.

    Args:
        model: As that of `Policy`; all of its weights are trained.
        learning_rate: Of AdamW.
        loss: `grpo`, `gspo` or `reinforce`.
        beta: Weight of the KL divergence from the model as it was at the start.
        temperature: That of the policy.
        minibatches: Optimizer steps of one update.
        warmup: Updates before the learning rate has its value.
        scale: What an episode's distance from its baseline is divided by.
        returns: What `train_step` returns.
        precision: `fp32` or `bf16`.
        folder: Shared with the policies; None for one of this program.
        threads: As of `Policy`.

    Raises:
        BadArgument: An option has another value, or two of them contradict each other.
        CheckpointError: Another trainer has the folder.
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
        """Make one update.

        Args:
            batch: Episodes, as `ReplayBuffer.sample` returns them.

        Returns:
            The loss, or with returns="loss_and_kl" the loss and the KL divergence per token.

        Raises:
            BadArgument: There is no batch, or its episodes cannot be trained on; nothing has changed then.
            TrainingError: A gradient is not finite.
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
        """Write the weights for `Policy.update_weights(version)`. Those of the last few pushes stay.

        Args:
            version: Any number that the caller counts with, above 0.

        Returns:
            The path of their file.

        Raises:
            BadArgument: It is no such number.
            TrainingError: The weights cannot be written.
        """
        return self._policy.push(version)

    @endpoint(idempotent=True)
    def metrics(self) -> UpdateMetrics | None:
        """Return the numbers of the last update; None before the first one."""
        return self._metrics

    @endpoint
    def save(self) -> str:
        """Save a checkpoint of weights and optimizer. The last two stay.

        Returns:
            The path of its folder, which is a model, too.

        Raises:
            CheckpointError: It cannot be saved; earlier ones are as they were.
        """
        return self._policy.save()

    @endpoint
    def restore(self) -> int:
        """Go back to the last whole checkpoint.

        Returns:
            How many updates made its weights.

        Raises:
            CheckpointError: There is none.
        """
        return self._policy.restore()

    def close(self) -> None:
        """Let another trainer use the folder."""
        self._policy.close()
