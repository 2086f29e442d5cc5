"""`Episode.events()`: one episode as a generator of events.

The generator never waits and has no network access. When it yields `Called`, the driver sends the policy's `Decision`, or
throws `PolicyFailed` or the policy's `PolicyStops`. One generator therefore serves several drivers: a scripted policy runs
in a thread without interruption, a model is awaited on an event loop, and a person answers at a terminal.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace

from taskapp_kit.declare.signature import BadArguments
from taskapp_kit.declare.specs import ActionSpec
from taskapp_kit.errors import Boundary, Failure, InvalidAction, KitError, RequestError, SandboxError
from taskapp_kit.records.content import Content, Json, without_surrogates
from taskapp_kit.records.events import (
    Acted,
    Answered,
    Called,
    EpisodeEnded,
    Event,
    Failed,
    Limited,
    Observed,
    Started,
    Stepped,
)
from taskapp_kit.records.protocols import Clock, PolicyStops, Tool, View
from taskapp_kit.records.trajectory import RESERVED_METRICS, Decision, PlayedStep, Status, ToolCall
from taskapp_kit.rollout.episode.environment import (
    ConfigRefused,
    EnvironmentHost,
    EnvironmentLeft,
    EnvironmentProblem,
    auxiliary_failure,
    bad_arguments,
    too_many_calls,
    unknown_tool,
)
from taskapp_kit.rollout.episode.plan import Control, EpisodePlan, Scripted
from taskapp_kit.wire.chat.conversation import ModelFailed, ModelPort

log = logging.getLogger("taskapp_kit.run")

INVALID_ACTION = "invalid_action"
"""The stop reason of an episode that the author's `InvalidAction(text, end=True)` ended."""

EpisodeEvents = Generator[Event, "Decision | None", None]


class PolicyFailed(Exception):
    """The policy failed. The driver throws this into the episode. `__cause__` is the original exception."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class _Over(Exception):
    """The episode has ended with this status and stop reason."""

    def __init__(self, status: Status, stop_reason: str) -> None:
        self.status = status
        self.stop_reason = stop_reason


class Episode:
    """One episode. After `Called` was yielded, `view` contains the data that the policy may read.

    ops: the number of operations so far; see `EpisodePlan`. warnings: messages for the caller, complete after the end.
    """

    def __init__(
        self, plan: EpisodePlan, clock: Clock, control: Control | None = None, models: ModelPort | None = None
    ) -> None:
        self.plan = plan
        self.clock = clock
        self.control = control or Control()
        self.models = models
        self.auxiliary_calls: list[dict[str, Json]] = []
        self.host: EnvironmentHost | None = None
        self.view = View(0, None, (), (), plan.task)
        self.ops = 0
        self.warnings: list[str] = []
        self.environment_seconds = 0.0
        self.policy_seconds = 0.0
        self._steps = 0
        self._turns = 0
        self._refusals = 0
        self._counts = {"invalid_actions": 0.0, "coerced_arguments": 0.0}
        self._metrics: dict[str, float] = {}
        self._tools: dict[str, Tool] = {}
        self._text_action = plan.environment.text_action
        self._doing = ""
        """The step and the action that are running, as a string for the message of a failure."""

    # A generator, so that limits, refusals and failures are implemented once for every kind of policy: a policy in the
    # same thread, a model that is awaited between two turns, or a person.
    def events(self) -> EpisodeEvents:
        """Yield the events in order, from `started` to `ended`. Always closes the environment."""
        plan = self.plan
        host = EnvironmentHost(plan, self.models)
        self.host = host
        # the list itself, not a copy, because it grows while the environment calls models
        self.auxiliary_calls = host.auxiliary.calls
        spec = plan.environment
        yield Started(spec.name, spec.version, plan.split, plan.seed, plan.config, plan.policy)
        # the default, because an unexpected exit from the `try` is a failure
        status: Status = "failed"
        stop_reason, final_state = "", None
        failed: Failed | None = None
        try:
            try:
                yield from self._stoppable(host)
            except _Over as over:
                status, stop_reason = over.status, over.stop_reason
                final_state = self._final_state(host)
        except (GeneratorExit, ConfigRefused):  # the driver closed the generator; the caller's env.config is invalid
            raise
        # sys.exit() in an author's environment must fail its rollout, not end the server.
        except BaseException as error:
            failed = self._failure(error)
            status, stop_reason = "failed", failed.code
        finally:
            closing = self._close(host)
        # Report the first failure. A failure of `close` is often its consequence.
        if failed is None and closing is not None:
            failed, status, stop_reason = closing, "failed", closing.code
        if failed is not None:
            yield failed
        # Failed episodes also end with this event. No event follows this one.
        yield EpisodeEnded(status, stop_reason, final_state, self._numbers(host))

    def _numbers(self, host: EnvironmentHost) -> dict[str, float]:
        """Return the episode's metrics: the environment's metrics, and the kit's metrics under reserved names."""
        ours = {"steps": float(self._steps), "turns": float(self._turns), **self._counts, **host.auxiliary.spent}
        taken = sorted(name for name in self._metrics if name in ours or name in RESERVED_METRICS)
        if taken:
            # a warning, because a metric should not fail a rollout
            self.warnings.append(
                f"environment {self.plan.environment.name!r} gives metrics with names of the kit's own: "
                f"{', '.join(taken)}. They were left out; give them other names."
            )
        return {**ours, **{name: value for name, value in self._metrics.items() if name not in taken}}

    def _stoppable(self, host: EnvironmentHost) -> EpisodeEvents:
        """Play the episode, which can be stopped before each call of a policy or model."""
        try:
            yield from self._play(host)
        except PolicyStops as stops:
            yield from self._limit(stops.stop_reason, self._turns if stops.value is None else stops.value)

    def _play(self, host: EnvironmentHost) -> EpisodeEvents:
        plan, clock = self.plan, self.clock
        began = clock.monotonic()
        self._doing = "before the first step"
        observation = host.reset()
        tools = host.tools()
        self._doing = ""
        seconds = clock.monotonic() - began
        self.environment_seconds += seconds
        self._tools = {tool.name: tool for tool in tools}
        initial = observation
        results: list[PlayedStep] = []  # the steps since the last call of the policy
        self.view = View(0, observation, (), tools, plan.task, initial)
        yield Observed(observation, list(self._tools), seconds)
        control, max_steps = self.control, plan.max_steps
        for instruction in plan.instructions():
            if control.stop is not None:
                raise stop_failure(control.stop)
            by_policy = instruction == "agent"
            # A turn is one operation of the policy and one action. If only the first fits the limit, the policy is not
            # called, because its reply would cost a model call and could not be used.
            reached = self._reached(2 if by_policy else 1)
            if reached is not None:
                yield from self._limit(*reached)
            if isinstance(instruction, Scripted):
                answer = self._spoken(Decision([ToolCall(instruction.tool, instruction.args)]))
                yield Answered(self._turns, answer, scripted=True)
            else:
                asked = clock.monotonic()
                given = yield Called(self._turns)
                assert given is not None, "an episode's driver answers `called` with an Answer"
                self.ops += 1
                seconds = clock.monotonic() - asked
                self.policy_seconds += seconds
                answer = self._spoken(self._cut(given))
                results = []
                yield Answered(self._turns, answer, seconds)
            accepted = False
            # Check the limits again between the actions of one reply, which may have up to `max_calls` actions.
            for number, call in enumerate(self._calls(answer, by_policy=by_policy)):
                if control.stop is not None:
                    raise stop_failure(control.stop)
                if max_steps is not None and self._steps >= max_steps:
                    yield from self._limit("max_steps", max_steps)
                if plan.max_ops is not None and self.ops >= plan.max_ops:
                    yield from self._limit("max_ops", plan.max_ops)
                self.ops += 1
                yield Acted(self._steps, call.tool, call.args)
                # One refusal covers all calls beyond the limit. A refusal for each would let a model fill its own
                # context.
                if by_policy and number >= plan.max_calls:
                    step = self._refused(self._steps, call, too_many_calls(plan.max_calls), 0.0)
                    self._steps += 1
                else:
                    step = self._step(host, call, answer.problem)
                results.append(step)
                observation = step.observation
                accepted = accepted or step.refused is None
                yield Stepped(step)
                if step.terminated:
                    self._turns += 1
                    raise _Over("terminated", "environment" if step.refused is None else INVALID_ACTION)
                if step.truncated:
                    self._turns += 1
                    raise _Over("truncated", "environment")
            self._turns += 1
            self.view = View(self._turns, observation, results, tools, plan.task, initial)
            if by_policy:
                # Count consecutive turns only, because a model that recovers now and then is still playing.
                self._refusals = 0 if accepted else self._refusals + 1
                if plan.max_refusals is not None and self._refusals >= plan.max_refusals:
                    yield from self._limit("max_refusals", plan.max_refusals)
        yield from self._limit("ops", self.ops)

    def _reached(self, cost: int) -> tuple[str, int] | None:
        """Return the name and value of the limit that a turn or action of `cost` operations would exceed, if any."""
        plan = self.plan
        if plan.max_steps is not None and self._steps >= plan.max_steps:
            return "max_steps", plan.max_steps
        if plan.max_turns is not None and self._turns >= plan.max_turns:
            return "max_turns", plan.max_turns
        if plan.default_max_turns is not None and self._turns >= plan.default_max_turns:
            return "default_max_turns", plan.default_max_turns
        if plan.max_ops is not None and self.ops + cost > plan.max_ops:
            return "max_ops", plan.max_ops
        return None

    def _limit(self, name: str, value: float) -> Iterator[Event]:
        if name == "default_max_turns":
            self.warnings.append(
                f"the episode was cut after {value:g} turns, the limit of an environment that declares none. Give "
                f"{self.plan.environment.name!r} max_steps= or max_turns=; max_turns=None is no limit."
            )
        yield Limited(name, float(value))
        raise _Over("truncated", name)

    def _spoken(self, answer: Decision) -> Decision:
        """If the policy called the action for plain text, use the text in its arguments as the text of the reply."""
        words = self._text_action
        # Both ways to send plain text become one answer, so that rubrics, digests and transcripts do not depend on the
        # way.
        if words is None or answer.output is not None:
            return answer
        (parameter,) = words.arguments.names
        for call in answer.tool_calls:
            if call.tool == words.name and isinstance(call.args, dict) and isinstance(call.args.get(parameter), str):
                return replace(answer, output=call.args[parameter])
        return answer

    def _cut(self, answer: Decision) -> Decision:
        """Keep one tool call more than the limit allows, and drop the rest. The extra call is then refused for all of them."""
        # before the answer is recorded, or every event, prompt and page could contain thousands of calls
        max_stored = self.plan.max_calls + 1
        left_out = len(answer.tool_calls) - max_stored
        if left_out <= 0:
            return answer
        return replace(
            answer, tool_calls=answer.tool_calls[:max_stored], details={**answer.details, "left_out_calls": left_out}
        )

    def _calls(self, answer: Decision, *, by_policy: bool) -> list[ToolCall]:
        """Return the tool calls of the policy's reply.

        Without tool calls, the text becomes a call of the action for plain text. If that is impossible, the result is one
        call without a tool name, which is refused.
        """
        if by_policy and self.plan.environment.one_answer:
            return [self._one_answer(answer)]
        if answer.tool_calls:
            return answer.tool_calls
        words = next((tool for tool in self._tools.values() if tool.text), None)
        if words is not None and answer.output and answer.problem is None:
            (parameter,) = self.plan.environment.actions[words.name].arguments.names
            return [ToolCall(words.name, {parameter: answer.output})]
        return [ToolCall("", {})]

    def _one_answer(self, answer: Decision) -> ToolCall:
        """Return the only call of a single-turn episode. An invalid answer becomes an invalid action with the answer's text."""
        action = self._text_action
        assert action is not None, "a single-turn environment has a text action"
        if answer.details.get("finish_reason") == "length":
            self.warnings.append("the answer was cut off at its limit of tokens, and judged as it stands.")
        for call in self._calls(answer, by_policy=False):
            if call.tool == action.name and _reads(action, call.args):
                return call
        self._counts["invalid_actions"] += 1
        (parameter,) = action.arguments.names
        return ToolCall(action.name, {parameter: answer.output or ""})

    def _step(self, host: EnvironmentHost, call: ToolCall, problem: str | None) -> PlayedStep:
        """Run one action in the environment. A refused action is a step whose observation contains the reason.

        problem: the policy's explanation of why the call has no tool name, or why its arguments are a string instead of an
        object.
        """
        index = self._steps
        self._steps += 1
        if call.tool not in self._tools:
            declared = call.tool in self.plan.environment.actions
            # if the text named no tool, the policy's own message is more helpful
            said = problem if problem and not call.tool else unknown_tool(call.tool, self._tools, declared=declared)
            return self._refused(index, call, said, 0.0)
        if problem and isinstance(call.args, str):
            return self._refused(index, call, problem, 0.0)
        action = self.plan.environment.actions[call.tool]
        try:
            arguments, coerced = action.arguments.read(call.args)
        except BadArguments as error:
            return self._refused(index, call, bad_arguments(call.tool, error), 0.0)
        began = self.clock.monotonic()
        self._doing = f"at step {index + 1}, action {call.tool!r}"  # numbered as in displays, where step 0 is the reset
        try:
            step, observation = host.act(action, arguments)
        except InvalidAction as error:
            self._doing = ""
            said = without_surrogates(str(error))  # surrogates could not be recorded
            refused = self._refused(index, call, said, self._since(began))
            refused.terminated, refused.reward = bool(error.end), host.cost_of(error, action.name)
            return refused
        self._doing = ""
        seconds = self._since(began)
        if coerced:
            self._counts["coerced_arguments"] += coerced
        for name, value in step.metrics.items():
            self._metrics[name] = self._metrics.get(name, 0.0) + value
        return PlayedStep(
            index, call.tool, call.args, observation, step.reward, step.terminated, step.truncated,
            dict(step.info), dict(step.metrics), seconds, None, coerced,
        )  # fmt: skip

    def _refused(self, index: int, call: ToolCall, sentence: str, seconds: float) -> PlayedStep:
        self._counts["invalid_actions"] += 1
        return PlayedStep(index, call.tool, call.args, sentence, seconds=seconds, refused=sentence)

    def _since(self, began: float) -> float:
        seconds = self.clock.monotonic() - began
        self.environment_seconds += seconds
        return seconds

    def _timed(self, function: Callable[[], Content]) -> Content:
        began = self.clock.monotonic()
        try:
            return function()
        finally:
            self._since(began)

    def _final_state(self, host: EnvironmentHost) -> Content:
        self._doing = "in final_state"
        try:
            return self._timed(host.final_state)
        except PolicyStops as stops:
            self.warnings.append(f"final_state asked a model beyond {stops.stop_reason}, so the end state is missing.")
            return None

    def _close(self, host: EnvironmentHost) -> Failed | None:
        try:
            self._doing = "in close"
            self._timed(host.close)
        except PolicyStops:
            pass  # close called a model beyond a limit, but the episode has ended anyway
        except BaseException as error:
            return self._failure(error)
        finally:
            self.control.closed.set()
        return None

    def _failure(self, error: BaseException) -> Failed:
        """Convert an exception to a failure with a boundary and a public message, and log the traceback."""
        cause: BaseException | None = error
        auxiliary = auxiliary_failure(error)
        if isinstance(error, PolicyFailed):
            failure, cause = error.failure, error.__cause__ or error
        elif auxiliary is not None:
            # the message is complete, and a traceback would point at the author's code
            failure, cause = auxiliary, None
        elif isinstance(error, EnvironmentProblem):
            failure = Failure("environment", error.code, error.message, "Fix the environment's code.")
        elif isinstance(error, KitError) and not isinstance(error, RequestError):  # the kit wrote the message
            failure = Failure("environment", "environment_raised", error.message, error.hint)
        else:
            if isinstance(error, EnvironmentLeft) and error.__cause__ is not None:
                cause = error = error.__cause__
            message = f"environment {self.plan.environment.cls.__name__} raised {type(error).__name__} {self._doing}"
            failure = Failure("environment", "environment_raised", message.rstrip())
        failure.error_id = failure.error_id or uuid.uuid4().hex[:12]
        if self.control.cause is None:
            self.control.cause = cause
        if (
            failure.boundary == "cancelled"
        ):  # cancelled by the caller, or by a stopping server, which is logged elsewhere
            log.info("%s (error_id %s)", failure.message, failure.error_id)
        elif failure.boundary == "timeout":
            log.warning("%s (error_id %s)", failure.message, failure.error_id)
        else:
            log.error("%s (error_id %s)", failure.message, failure.error_id, exc_info=cause)
        return Failed(failure.boundary, failure.code, failure.message, failure.error_id, failure.hint)


def _reads(action: ActionSpec, args: Json) -> bool:
    try:
        action.arguments.read(args)
    except BadArguments:
        return False
    return True


def policy_failure(name: str, error: BaseException, *, boundary: Boundary = "policy") -> PolicyFailed:
    """Return the exception that a driver throws into an episode after the policy raised `error`."""
    if isinstance(error, ModelFailed):
        failure = error.failure
    elif isinstance(error, SandboxError):  # the machine failed, not the policy
        failure = Failure("environment", "environment_raised", error.message, error.hint)
    # The kit's messages may be shown; messages of other exceptions may contain keys or private values.
    elif isinstance(error, KitError):
        failure = Failure(boundary, "policy_raised", error.message, error.hint)
    else:
        failure = Failure(boundary, "policy_raised", f"policy {name!r} raised {type(error).__name__}")
    thrown = PolicyFailed(failure)
    thrown.__cause__ = error
    return thrown


def stop_failure(stop: str) -> PolicyFailed:
    """Return the exception that ends an episode from outside. stop: `timeout` or `cancelled`."""
    if stop == "timeout":
        return PolicyFailed(
            Failure(
                "timeout",
                "deadline",
                "the rollout reached its deadline before the episode had ended",
                "Increase safety.max_time_s, or limit the environment's turns.",
            )
        )
    return PolicyFailed(Failure("cancelled", "cancelled", "the rollout was cancelled before the episode ended"))
