"""Replicas that sample from a job's policy: `SamplerReplica`, and `ReplicatedSampler` for the gateway.

Each call contains the name of its random stream. If a replica dies, its calls are repeated on another replica, and a
deterministic job receives the same tokens.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping, Sequence

from taskapp_kit.errors import CallTimeout, EndpointRaised, ReplicaDied, Saturated, ServiceError, TrainingError
from taskapp_kit.services import ServiceHandle, endpoint
from taskapp_kit.train.models.adapters import in_sampling_type
from taskapp_kit.train.policy_services.policy_order import OrderedPolicy, PolicyOrder, leave_a_processor
from taskapp_kit.train.sampler.generation import check_prompt, check_temperature, check_version
from taskapp_kit.train.sampler.transformers_sampler import TransformersSampler
from taskapp_kit.train.turns import Sampled
from taskapp_kit.train.workflow.policy import SamplingActor
from taskapp_kit.train.workflow.shared_folder import WeightsFolder

log = logging.getLogger("taskapp_kit.train")


def own_process() -> dict[str, str | int]:
    """Return the host name (`host`) and the process id (`pid`) of this process."""
    return {"host": socket.gethostname(), "pid": os.getpid()}


class SamplerReplica(SamplingActor):
    """Samples from the policy of a job. Concurrent calls are sampled in batches."""

    _partly = True

    def __init__(self, order: PolicyOrder, replicas: int) -> None:
        leave_a_processor(replicas)
        ordered = OrderedPolicy.read(order)
        self._model = in_sampling_type(ordered.load(), ordered.settings.update.precision)
        self._sampler = TransformersSampler(self._model, deterministic=ordered.settings.deterministic)
        self._weights = WeightsFolder(ordered.weights)
        self._updating = asyncio.Lock()

    @endpoint(idempotent=True)
    async def sample(
        self, prompt_ids: Sequence[int], max_tokens: int, temperature: float, stop_ids: Sequence[int], draw: str
    ) -> Sampled:
        """Return one continuation of the prompt. See `Sampler.sample`."""
        return await self._sampler.sample(
            prompt_ids, max_tokens=max_tokens, temperature=temperature, stop_ids=frozenset(stop_ids), draw=draw
        )

    @endpoint(idempotent=True)
    def facts(self) -> dict[str, str | int]:
        """Return the host and process id of this replica."""
        return own_process()


class ReplicatedSampler:
    """A `Sampler` that uses a service of `SamplerReplica`.

    `context_tokens` limits a prompt together with its reply. `vocabulary` is the number of token ids.
    """

    def __init__(self, service: ServiceHandle, *, context_tokens: int, vocabulary: int) -> None:
        self.version = 0
        self.context_tokens = context_tokens
        self._service, self._vocabulary = service, vocabulary

    async def sample(
        self, prompt_ids: Sequence[int], *, max_tokens: int, temperature: float, stop_ids: frozenset[int], draw: str
    ) -> Sampled:
        """Return one continuation of the prompt from the least loaded replica. See `Sampler.sample`.

        Raises BadArgument for invalid arguments, and TrainingError if the model fails or two replicas die in a row.
        """
        prompt = check_prompt(prompt_ids, max_tokens, self.context_tokens, self._vocabulary)
        check_temperature(temperature)
        try:
            sampled: Sampled = await self._service.sample.route(prompt, max_tokens, temperature, sorted(stop_ids), draw)
        except (ServiceError, Saturated) as error:
            raise TrainingError(f"No sampler replica completed the generation: {error.message}") from error
        return sampled

    async def use(self, version: int) -> None:
        """Load this version of the weights, which has already been written. After this method returns, all samples use it.

        A restarted replica loads it before it samples. Raises TrainingError if a replica cannot load it.
        """
        check_version(version, self.version)
        try:
            await self._service.update_weights.fanout(version)
        except (ReplicaDied, CallTimeout) as error:  # all replicas died and are restarted
            log.warning("no sampler replica has loaded the weights of version %d yet: %s", version, error.message)
        except EndpointRaised as error:
            raise TrainingError(
                f"The sampler replicas could not load the weights of version {version}: {error.error_text}"
            ) from error
        self.version = version

    async def facts(self) -> list[Mapping[str, object]]:
        """Return the host name (`host`) and the process id (`pid`) of each replica."""
        return [each for each in await self._service.facts.fanout() if each is not None]
