"""Access to the models of a rollout's policy, judges and user simulators. Only the parent process has addresses and keys.

TASKAPP_{ROLE}_URL, TASKAPP_{ROLE}_MODEL and TASKAPP_{ROLE}_KEY configure the model of a role, for example TASKAPP_JUDGE_URL.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Literal

from taskapp_kit.config import Settings
from taskapp_kit.declare.app import Exposure
from taskapp_kit.errors import FieldProblem, RequestError, Unavailable
from taskapp_kit.net.addresses import AddressPolicy, Place, check_address
from taskapp_kit.records.content import Json
from taskapp_kit.records.protocols import Clock
from taskapp_kit.records.scorecard import POLICY
from taskapp_kit.rollout.models.client import HttpModelClient
from taskapp_kit.rollout.models.model_settings import Credentials, ModelNames, caller_key
from taskapp_kit.wire.chat.conversation import Ask, ChatReply, Endpoint, ModelFailed, role_variable, stopped_failure
from taskapp_kit.wire.inference_url import INFERENCE_URL, GivenUrl, complete_url
from taskapp_kit.wire.rollout import RolloutRequest

CONFIG: Place = INFERENCE_URL[:-1]
MAX_MODEL_LETTERS = 512


def endpoint_of(
    config: Mapping[str, Any],
    top_level: str | None,
    address: GivenUrl | None,
    *,
    rules: AddressPolicy,
    keys: Credentials,
    cache: bool = False,
) -> Endpoint | None:
    """Return the endpoint of the policy's model, or None if the request has no address for a model.

    top_level: the request's top-level `inference_url`. address: the result of `given_url` for the request.
    cache: whether replies may come from the response cache. Raises RequestError, which names the field, for an invalid value.
    """
    if address is None or address[1] != INFERENCE_URL:
        keys.check_config({"inference_url": top_level}, loc=("body",))
    # check the whole config, since any field may reach the endpoint or the store
    keys.check_config(config)
    if address is None:
        return None
    url, loc = address
    model = config.get("model")
    if model is not None and not (isinstance(model, str) and 0 < len(model) <= MAX_MODEL_LETTERS):
        message = f"policy.config.model is invalid; expected a string of 1 to {MAX_MODEL_LETTERS} characters."
        raise RequestError(message, fields=(FieldProblem((*CONFIG, "model"), message, "type_error"),))
    # checked here, so that the client gets a 422 before the episode begins, not a failed rollout
    called = check_address(complete_url(url), rules.exposure, rules, loc=loc)
    sample = config.get("sample")
    return Endpoint(called, model, caller_key(config), cache, sample if type(sample) is int else 0)


def role_endpoint(settings: Settings, role: str, *, reward_model: bool = False) -> Endpoint | None:
    """Return the endpoint of a role's model (`judge`, `user`, …), or None if no model is configured for the role.

    reward_model: whether to use the address unchanged (such as `…/classify`) instead of adding `/chat/completions`.
    """
    variable = role_variable(role)
    url = settings.variable(variable)
    if url is None:
        return None
    name = variable.removesuffix("URL")
    return Endpoint(
        # reward models have no common path
        url if reward_model else complete_url(url),
        settings.variable(f"{name}MODEL"),
        settings.variable(f"{name}KEY"),
    )


class ModelAccess:
    """The models of one server. called: the roles whose model was requested, whether it is configured or not."""

    def __init__(self, client: HttpModelClient, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self.called: set[str] = set()

    @property
    def congestion(self) -> int:
        """How often a model's host has returned 429 or 503, or has not responded in time."""
        return self._client.throttle.signs

    def of_policy(self, request: RolloutRequest, address: GivenUrl | None) -> Endpoint:
        """Check the model that the request names for the policy, and return its endpoint. address: the result of `given_url`.

        Raises RequestError if the address must not be called, or if the request contains an API key of this server.
        """
        config, client = request.policy.config, self._client
        # no cache in training, because cached replies come from older weights
        cache = request.mode != "rl"
        endpoint = endpoint_of(
            config, request.inference_url, address, rules=client.rules, keys=client.keys, cache=cache
        )
        assert endpoint is not None, "the policy is a model only where an address is given"
        return endpoint

    def configured(self, role: str) -> bool:
        """Return whether a model is configured for this role."""
        return role_endpoint(self._settings, role) is not None

    def cost(self, role: str, usage: Mapping[str, float]) -> float | None:
        """Return the cost in US dollars of a call to the role's model with this usage, or None if no price is known."""
        endpoint = role_endpoint(self._settings, role)
        price = None if endpoint is None else self._client.names.price(endpoint.url, endpoint.model)
        return None if price is None else price.cost(usage)

    def of_rollout(self, policy: Endpoint | None, seconds: float) -> Ask:
        """Return the function that calls the models of one rollout.

        policy: the endpoint of the policy's model. seconds: the time until the rollout's deadline, which limits each call.
        """
        until = time.monotonic() + seconds

        async def ask(role: str, body: dict[str, Json]) -> ChatReply | ModelFailed:
            scalar = body.get("kind") == "reward_model"
            self.called.add(role)
            endpoint = policy if role == POLICY else role_endpoint(self._settings, role, reward_model=scalar)
            if endpoint is None:
                variable = role_variable(role)
                raise Unavailable(
                    f"No model is configured for the role {role!r}.",
                    hint=f"Set {variable}, {variable.removesuffix('URL')}MODEL and …KEY in the server's environment.",
                )
            try:
                seconds = until - time.monotonic()
                # show paths only for roles: the operator chose these addresses, but a caller's path may contain a key
                return await self._client.chat(endpoint, body, seconds=seconds, names_path=role != POLICY)
            except ModelFailed as failed:
                # few endpoints report that the model name is missing
                if endpoint.model is None and failed.failure.code == "model_refused":
                    failed.failure.hint = _no_model_name(role)
                # returned, not raised, because it is sent to worker processes as a value
                return failed

        return ask

    async def close(self) -> None:
        """Close all connections to models."""
        await self._client.close()


def model_access(
    settings: Settings, exposure: Exposure, clock: Clock, *, is_server_key: Callable[[str], bool] | None = None
) -> ModelAccess:
    """Return the models that these settings configure.

    Args:
        settings: The addresses, the keys and the rules for addresses.
        exposure: `local` also allows private and loopback addresses.
        clock: The clock for waits.
        is_server_key: A function that recognizes API keys of this server, including keys that are not in the settings.

    Raises:
        ConfigError: A setting or `models.toml` cannot be read.
    """
    client = HttpModelClient(
        exposure, settings, clock, is_server_key=is_server_key, model_names=ModelNames.of(settings, Path.cwd())
    )
    return ModelAccess(client, settings)


def _no_model_name(role: str) -> str:
    """Return the hint for a request that the endpoint rejected and that had no model name."""
    if role == POLICY:
        return "The request had no model name; set policy.config.model."
    variable = role_variable(role).removesuffix("URL") + "MODEL"
    return f"The request had no model name; set {variable} in the server's environment."


class ThreadPort:
    """A `ModelPort` for code in an environment's thread in the server's process. Create it on the event loop."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self._under_way: concurrent.futures.Future[ChatReply | ModelFailed] | None = None
        self._stopped: Literal["timeout", "cancelled"] | None = None

    def ask(self, role: str, body: dict[str, Json]) -> ChatReply:
        """Call the model and block until the reply. Raises ModelFailed, or Unavailable if no model has the role."""
        if self._stopped is not None:
            raise stopped_failure(self._stopped)
        work: Coroutine[Any, Any, ChatReply | ModelFailed] = _awaited(self._ask(role, body))
        self._under_way = future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            came = future.result()
        except concurrent.futures.CancelledError:
            # `stop` cancelled the call from the event loop while this thread waited for it
            raise stopped_failure(self._stopped or "cancelled") from None
        finally:
            self._under_way = None
        if isinstance(came, ModelFailed):
            raise came
        return came

    def stop(self, reason: Literal["timeout", "cancelled"]) -> None:
        """Cancel the current call and reject later calls. Called on the event loop."""
        self._stopped = self._stopped or reason
        if self._under_way is not None:
            self._under_way.cancel()


async def _awaited(work: Awaitable[ChatReply | ModelFailed]) -> ChatReply | ModelFailed:
    # `run_coroutine_threadsafe` requires a coroutine and rejects other awaitables
    return await work
