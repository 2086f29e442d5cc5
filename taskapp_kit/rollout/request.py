"""Validates a request against the app and returns the plan of the episode, before anything runs."""

from __future__ import annotations

import random
import re
from pathlib import Path

from taskapp_kit.config import CALLS_PER_ANSWER
from taskapp_kit.declare.episode_selection import (
    Instance,
    ReadConfig,
    find_environment,
    find_instance,
    read_config,
    seed_of_index,
)
from taskapp_kit.declare.specs import AppSpec, EnvironmentSpec
from taskapp_kit.errors import FieldProblem, RequestError
from taskapp_kit.records.protocols import LocalPolicy, StoredRollout, View
from taskapp_kit.records.scorecard import Blend
from taskapp_kit.records.trajectory import Decision, Recording
from taskapp_kit.rollout.episode.plan import EpisodePlan, read_ops
from taskapp_kit.rollout.models.access import ModelAccess
from taskapp_kit.rollout.policy.author_loop import AuthorLoop
from taskapp_kit.rollout.policy.caller import CallerPolicy
from taskapp_kit.rollout.policy.conversation import Conversation
from taskapp_kit.rollout.policy.options import MODEL, SESSION, chosen_name, make_policy, read_options, unknown_config
from taskapp_kit.rollout.policy.replay import as_stored, recording_of
from taskapp_kit.rollout.score.judges import skipped_warning
from taskapp_kit.rollout.score.scoring import StepRewards
from taskapp_kit.wire.chat.conversation import AsksModels, Endpoint, RemotePolicy
from taskapp_kit.wire.inference_url import (
    CORRELATION_MEMBERS,
    INFERENCE_URL,
    GivenUrl,
    correlation_id,
    given_url,
    shown_url,
)
from taskapp_kit.wire.rollout import NO_CONTROL_CHARACTERS, RolloutRequest

REPLAYED = ("body", "policy", "config", "rollout_id")


class NoPolicy:
    """A placeholder for the policy if the caller scripted every action."""

    name = "nobody"

    def decide(self, view: View) -> Decision:
        """Raise AssertionError, because this method is never called."""
        raise AssertionError(f"no policy decides in turn {view.turn}")


class RequestPlanner:
    """Plans requests for one app, or rejects them.

    folder: the directory of the author's file. max_calls: the limit on tool calls that are executed from one reply.
    skip_judges: whether to skip the judges and add a warning to the rollout. models: checks the address of the policy's
    model. If it is None, plans have no endpoint.
    """

    def __init__(
        self,
        spec: AppSpec,
        folder: Path,
        *,
        max_calls: int = CALLS_PER_ANSWER,
        skip_judges: bool = False,
        models: ModelAccess | None = None,
    ) -> None:
        self.spec = spec
        self.folder = folder
        self.max_calls = max_calls
        self.skip_judges = skip_judges
        self._models = models
        # Only the seed is not derived from other values if the request omits it. The response contains the seed.
        self._draw = random.SystemRandom()

    def plan(
        self,
        request: RolloutRequest,
        *,
        own: LocalPolicy | None = None,
        stored: StoredRollout | None = None,
        recording: Recording | None = None,
        session: bool = False,
        answered: bool = False,
    ) -> EpisodePlan:
        """Return the plan of a request.

        Args:
            request: The request.
            own: A policy object that replaces the requested policy.
            stored: The rollout that a `replay` repeats. The plan uses its environment, split, seed, config and sample.
            recording: The recording to replay if the request already has the stored episode.
            session: Whether a session's caller decides instead of the requested policy.
            answered: Whether the caller supplies the model's replies, so that the plan needs no endpoint.

        Raises:
            RequestError: The request is invalid. The error names the field.
            Unavailable: The request needs something that this server does not have.
        """
        if stored is not None:
            request, recording = as_stored(request, stored, self.spec), recording_of(stored)
        address = _address(request)
        url, trace = _addressing(request, address)
        spec = find_environment(self.spec, request.env.env_name)
        read = read_config(spec, request.env.config)
        spec = spec.configured(read.arguments)
        instance = find_instance(spec, read.split, _seed_of(request, spec, read), self._draw, read.wanted)
        program = read_ops(request.ops)
        config = request.policy.config
        # if every action is scripted, the request must not fail because of a policy that is never called
        decided = program is None or "agent" in program  # otherwise the caller scripted all actions
        blend = _blend_of(request)
        policy: LocalPolicy | RemotePolicy
        if session:
            rewards = StepRewards(self.spec, spec, blend, instance.task, read.arguments or read.given)
            policy = CallerPolicy(self.spec, spec, rewards, request.policy.policy_name or SESSION)
        else:
            policy = own or (self._policy(request, address, spec, instance, recording) if decided else NoPolicy())
        return EpisodePlan(
            request=request,
            actor=policy,
            environment=spec,
            split=instance.split,
            seed=instance.seed,
            config=read.given,
            arguments=read.arguments,
            folder=self.folder,
            task=instance.task,
            program=program,
            max_turns=spec.max_turns,
            max_steps=spec.max_steps,
            max_ops=request.safety.max_ops,
            # a request can only lower the environment's limit, because the limit also protects the server
            max_refusals=_lower(spec.max_refusals, request.safety.max_refusals),
            default_max_turns=spec.default_max_turns if program is None else None,
            max_calls=self.max_calls,
            wants_images=config.get("images") is not False,
            blend=blend,
            warnings=[
                *read.warnings,
                *unknown_config(config),
                *(skipped_warning(self.spec, spec.name) if self.skip_judges else ()),
            ],
            skip_judges=self.skip_judges,
            inference_url=url,
            correlation_id=trace,
            endpoint=None if answered else self._endpoint(request, address, policy),
            recording=recording,
        )

    def replayed(self, request: RolloutRequest) -> str | None:
        """Return the id of the stored rollout that a request replays, or None if its policy is not `replay`.

        Raises RequestError if the id is missing or the policy is invalid.
        """
        config = request.policy.config
        if "replay" not in (config.get("policy"), request.policy.policy_name):
            return None
        # Use the full rule for names, because an app may declare a policy `replay`, or an address may override the
        # name.
        if self._policy_name(request, _address(request), find_environment(self.spec, request.env.env_name)) != "replay":
            return None
        rollout_id = config.get("rollout_id")
        if not isinstance(rollout_id, str):
            message = "The policy 'replay' requires policy.config.rollout_id, the id of a stored rollout."
            raise RequestError(message, fields=(FieldProblem(REPLAYED, message),), code="bad_rollout_id")
        return rollout_id

    def instance(self, environment: str | None, split: str | None, seed: int) -> Instance:
        """Return the instance of a seed. Raises RequestError for an unknown environment, split or seed."""
        return find_instance(find_environment(self.spec, environment), split, seed, self._draw)

    def _model_policy(self, request: RolloutRequest, spec: EnvironmentSpec) -> LocalPolicy | RemotePolicy:
        """Return the policy that calls a model: the author's loop, or a `Conversation`. Raises RequestError for a bad config."""
        options = read_options(
            request.policy.config,
            output_mode=request.policy.output_mode,
            structured_config=request.policy.structured_config,
            record_logprobs=request.record.logprobs,
            mode=request.mode,
        )
        if self.spec.rollout_function is not None:
            shown = None if spec.tasks is None else spec.tasks.public
            return AuthorLoop(self.spec.rollout_function, options, MODEL, shown)
        return Conversation(self.spec, spec, options, name=MODEL, most_calls=self.max_calls)

    def _endpoint(
        self, request: RolloutRequest, address: GivenUrl | None, policy: LocalPolicy | RemotePolicy
    ) -> Endpoint | None:
        """Return the model's endpoint, or None if the policy calls no model. Raises RequestError for a forbidden address."""
        if self._models is None or policy.name != MODEL or not isinstance(policy, RemotePolicy | AsksModels):
            return None
        return self._models.of_policy(request, address)

    def _policy_name(self, request: RolloutRequest, address: GivenUrl | None, spec: EnvironmentSpec) -> str:
        """Return the name of the requested policy. Raises RequestError for an unknown policy."""
        url = None if address is None else address[0]
        return chosen_name(self.spec, spec.name, request.policy.config, request.policy.policy_name, url)

    def _policy(
        self,
        request: RolloutRequest,
        address: GivenUrl | None,
        spec: EnvironmentSpec,
        instance: Instance,
        recording: Recording | None,
    ) -> LocalPolicy | RemotePolicy:
        name = self._policy_name(request, address, spec)
        if name == MODEL:
            return self._model_policy(request, spec)
        return make_policy(
            self.spec,
            spec,
            name,
            request.policy.config,
            split=instance.split,
            seed=instance.seed,
            recording=recording,
        )


def _seed_of(request: RolloutRequest, spec: EnvironmentSpec, read: ReadConfig) -> int | None:
    """Return `env.seed` or the seed of `env.config.index`, or None if neither is set. Raises RequestError if they differ."""
    seed = request.env.seed
    if read.index is None:
        return seed
    of_index = seed_of_index(spec, read.split, read.index)
    if seed is not None and seed != of_index:
        message = f"env.seed {seed} and env.config.index {read.index} (seed {of_index}) select different episodes."
        raise RequestError(message, fields=(FieldProblem(("body", "env", "seed"), message),), hint="Omit one of them.")
    return of_index


def _lower(declared: int | None, asked: int | None) -> int | None:
    """Return the lower of two limits. None means no limit."""
    given = [limit for limit in (declared, asked) if limit is not None]
    return min(given) if given else None


def no_such_recording(rollout_id: str) -> RequestError:
    """Return the error for a `replay` of a rollout that is not stored, or that the caller may not see."""
    message = f"The rollout {rollout_id[:80]!r} is not stored."
    return RequestError(message, fields=(FieldProblem(REPLAYED, message),), code="no_such_rollout")


def _address(request: RolloutRequest) -> GivenUrl | None:
    """Return the model's address and its field in the request, or None if it is not set. Raises RequestError for a non-string."""
    return given_url(request.policy.config, request.inference_url)


def _addressing(request: RolloutRequest, address: GivenUrl | None) -> tuple[str | None, str | None]:
    """Return the model's address without a key, and the correlation id. Both are stored for every policy.

    Raises RequestError if the correlation id contains control characters.
    """
    config = request.policy.config
    raw = None if address is None else address[0]
    url = None if raw is None else shown_url(raw, config)
    trace = correlation_id(config, raw, request.trace_correlation_id)
    if trace is None or re.fullmatch(NO_CONTROL_CHARACTERS, trace) is not None:
        return url, trace if url == raw else correlation_id(config, url, request.trace_correlation_id)
    loc = INFERENCE_URL if address is None else address[1]
    for name in CORRELATION_MEMBERS:
        if config.get(name) == trace:
            loc = ("body", "policy", "config", name)
    message = f"The correlation id in {'.'.join(loc[1:])} must not contain control characters."
    raise RequestError(message, fields=(FieldProblem(loc, message, "string_pattern_mismatch"),))


def _blend_of(request: RolloutRequest) -> Blend | None:
    """Return the request's reward formula, or None if it has none."""
    asked = request.reward
    return None if asked is None else Blend(asked.env, asked.event, asked.outcome)
