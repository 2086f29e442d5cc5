"""`Policy`, a service that replies to prompts."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

from taskapp_kit.config import from_environment
from taskapp_kit.errors import BadArgument
from taskapp_kit.records.content import content, text_of
from taskapp_kit.services import Actor, endpoint
from taskapp_kit.train.models.sources import find_model
from taskapp_kit.train.workflow.episode import Messages, Prompt, Response
from taskapp_kit.train.workflow.shared_folder import WeightsFolder, sent_folder, shared_folder

if TYPE_CHECKING:
    from taskapp_kit.train.sampler.transformers_sampler import TransformersSampler

MAX_TOKENS = 128


class SamplingActor(Actor):
    """The base class of actors that sample with the weights in a `WeightsFolder`.

    The constructors of subclasses set the attributes. `_partly` is whether weights files only contain trained tensors.
    """

    _partly: ClassVar[bool] = False

    _model: Any
    _sampler: TransformersSampler
    _weights: WeightsFolder
    _updating: asyncio.Lock

    @endpoint(idempotent=True, on_restart=True)
    async def update_weights(self, version: int) -> int:
        """Use the pushed weights of this version, starting with the next batch.

        Returns:
            The version.

        Raises:
            TrainingError: The version was not pushed, was removed later, or has a different architecture.
        """
        from taskapp_kit.train.checkpoints.state import load_weights

        async with self._updating:
            number = self._number_of(version)
            if number != self._sampler.version:
                weights = await asyncio.to_thread(load_weights, self._model, self._weights.existing(version))
                if self._partly:
                    weights = {**self._model.state_dict(), **weights}
                self._swapping(version, number)
                await self._sampler.swap(weights, number)
        return version

    def close(self) -> None:
        """End the sampler."""
        self._sampler.close()

    def _number_of(self, version: int) -> int:
        """Return the sampler's number for a version. The number increases with each update."""
        return version

    def _swapping(self, version: int, number: int) -> None:
        """Record which version the next batch uses."""


class Policy(SamplingActor, concurrent_calls=64):
    """A model that replies to prompts, with weights from a `Trainer`: `Policy.as_service("tiny", max_tokens=4)`.

    Up to `concurrent_calls` concurrent calls are sampled in batches. `options(with_gpus=True)` loads the model on a
    GPU.

    Args:
        model: `tiny`, a base model's name, the path of a directory, or a trained model's name, as in a training job.
        system: The system message for prompts that are strings, or "" for none.
        max_tokens: The default maximum number of tokens of a reply.
        temperature: The default temperature. For training, it must be equal to the trainer's temperature.
        seed: Determines the random stream. A replica that receives equal calls in the same order returns equal replies.
            With several replicas, use None, so that each replica has a different stream.
        folder: The directory that is shared with the trainer. None uses a temporary directory of this program.
        threads: The number of threads. None uses half of the processors.

    Raises:
        ConfigError: The model does not exist or cannot be loaded.
    """

    def __init__(
        self,
        model: str = "tiny",
        *,
        system: str = "",
        max_tokens: int = MAX_TOKENS,
        temperature: float = 1.0,
        seed: int | str | None = None,
        folder: str | None = None,
        threads: int | None = None,
    ) -> None:
        from taskapp_kit.train.models.loading import load_model
        from taskapp_kit.train.sampler.transformers_sampler import TransformersSampler
        from taskapp_kit.train.workflow.trained_policy import device, use_threads

        use_threads(threads)
        loaded = load_model(find_model(model, from_environment().models))
        self._model = loaded.model.to(device())
        self._renderer = loaded.renderer
        self._system = system
        self._max_tokens, self._temperature = max_tokens, temperature
        self._stream = secrets.token_hex(8) if seed is None else str(seed)
        self._weights = WeightsFolder(shared_folder(folder))
        self._calls: Counter[str] = Counter()
        self._counted_version = 0
        self._open = 0
        self._pushed = {0: 0}
        """The policy's version by sampler version. Sampler versions increase even if the policy returns to an older version."""
        self._updating = asyncio.Lock()
        self._sampler = TransformersSampler(self._model, open_attempts=lambda: self._open)

    @classmethod
    def sent_arguments(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Add the shared directory to the arguments."""
        return args, sent_folder(kwargs)

    @endpoint(idempotent=True)
    async def generate(
        self,
        prompt: Prompt,
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        draw: str | None = None,
    ) -> Response:
        """Return a reply to a prompt, sampled with the newest weights of this replica.

        Args:
            prompt: A user's message, or a complete conversation as in a chat-completions request.
            temperature: The temperature. Defaults to the policy's temperature.
            max_tokens: The maximum number of tokens. Defaults to the policy's `max_tokens`.
            draw: The name of the reply's random stream. Defaults to the next stream of the replica.

        Raises:
            RequestError: The messages cannot be rendered.
            BadArgument: The prompt is invalid, or too long for the model's context.
        """
        ids = self._renderer.prompt(self._messages(prompt))
        if self._counted_version != self._sampler.version:  # each update of the weights restarts the count
            self._counted_version = self._sampler.version
            self._calls.clear()
        if draw is None:
            key = f"{self._pushed[self._sampler.version]}/{hash(ids)}"  # hashes of integers are equal in all processes
            draw = f"{self._stream}/{key}/{self._calls[key]}"
            self._calls[key] += 1
        self._open += 1
        try:
            sampled = await self._sampler.sample(
                ids,
                max_tokens=self._max_tokens if max_tokens is None else max_tokens,
                temperature=self._temperature if temperature is None else temperature,
                stop_ids=self._renderer.stop_ids,
                draw=draw,
            )
        finally:
            self._open -= 1
        return Response(
            text=self._renderer.parse(sampled.token_ids)["content"] or "",
            prompt_ids=list(ids),
            token_ids=list(sampled.token_ids),
            log_probs=list(sampled.log_probs),
            version=self._pushed[sampled.version],
            cut=sampled.finish_reason == "length",
        )

    @endpoint(idempotent=True)
    async def act(self, observation: Any) -> str:
        """Return the text of a reply. The observation is a string, a conversation, or a value that is encoded as JSON."""
        prompt = observation if _is_conversation(observation) else text_of(content(observation))
        response: Response = await self.generate(prompt)
        return response.text

    @endpoint(idempotent=True)
    def version(self) -> int:
        """Return the version of the weights."""
        return self._pushed[self._sampler.version]

    def _number_of(self, version: int) -> int:
        return self._sampler.version + 1

    def _swapping(self, version: int, number: int) -> None:
        self._pushed[number] = version  # before the swap, because the first reply may arrive before this code continues

    def _messages(self, prompt: Prompt) -> Messages:
        if isinstance(prompt, str):
            opening = [{"role": "system", "content": self._system}] if self._system else []
            return [*opening, {"role": "user", "content": prompt}]
        if _is_conversation(prompt):
            return list(prompt)
        raise BadArgument(
            f"The prompt is {repr(prompt)[:80]}. Expected a string or a list of chat messages.",
            hint="DataLoader.sample returns a pair. Write: prompt, target = await dataloader.sample.route()",
        )


PolicyActor = Policy
"""An alias of `Policy`."""


def _is_conversation(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(each, dict) and "role" in each for each in value)
    )
