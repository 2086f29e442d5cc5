"""Plays rollouts in the environment under test, and stores the sample: the rollouts that all checks read."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.source_location import line_of
from taskapp_kit.declare.specs import AppSpec, EnvironmentSpec
from taskapp_kit.doctor.doctor_options import MOST_TURNS, DoctorOptions
from taskapp_kit.doctor.policies import SchemaPolicy
from taskapp_kit.errors import KitError, RolloutFailed
from taskapp_kit.records.content import Json, images, json_hash, text_of, without_images
from taskapp_kit.records.example_policy import example_policy
from taskapp_kit.records.protocols import LocalPolicy, PolicyStops, Tool, View
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.seeds import derived_rng, size
from taskapp_kit.records.trajectory import Trajectory
from taskapp_kit.rollout.admission import Answers
from taskapp_kit.rollout.policy.caller import FINISH_MESSAGE, actions_message
from taskapp_kit.rollout.policy.options import SESSION, policies_of
from taskapp_kit.rollout.service import Service
from taskapp_kit.wire.chat.conversation import ChatReply
from taskapp_kit.wire.rollout import RolloutRequest

if TYPE_CHECKING:
    from taskapp_kit.doctor.row_answer import RowAnswer

GOLD = "gold"
CONSTANTS = 3
"""How many different constant actions are played."""
NEVER_ALONE = ("constant", "replay")
"""Built-in policies that need an action or a stored rollout."""

OwnPolicy = Callable[[str, int], LocalPolicy]
"""Creates a policy in this process for the episode with the given split and seed."""


class OutOfTime(Exception):
    """The time for the examination is up."""


@dataclass(frozen=True, slots=True)
class Player:
    """A policy that the doctor plays.

    label: The policy's name in findings. config: `policy.config`. own: If set, creates the policy that plays instead of
    the policy in `config`.
    """

    label: str
    config: Mapping[str, Json]
    own: OwnPolicy | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempted rollout. Exactly one of `rollout` and `error` is set."""

    player: Player
    split: str
    seed: int
    rollout: Rollout | None = None
    error: KitError | None = None

    @property
    def words(self) -> str:
        """A description of the rollout, such as `policy random, seed 3`."""
        return f"policy {self.player.label}, seed {self.seed}"


class Budget:
    """A time budget for the repetitions in a check. The first repetition always runs."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self._until

    def within(self, items: Sequence[Any]) -> Iterator[Any]:
        """Yield items until time is up, but at least one."""
        for index, item in enumerate(items):
            if index and self.over:
                return
            yield item


class EnvironmentUnderTest:
    """One environment of an app, the service that plays it, and the rollouts that were played.

    until: When the time for the checks ends, on the monotonic clock, or None for no limit.
    """

    def __init__(
        self,
        app: TaskApp,
        spec: AppSpec,
        environment: EnvironmentSpec,
        service: Service,
        options: DoctorOptions,
    ) -> None:
        self.app = app
        self.spec = spec
        self.environment = environment
        self.service = service
        self.options = options
        self.until: float | None = None
        self.attempts: dict[str, list[Attempt]] = {}
        self.players: dict[str, Player] = {}
        self.base: Player | None = None
        self.asks_models = False
        self.nonsense: dict[str, list[Rollout]] = {}
        self.right_answers: tuple[list[RowAnswer], str] | None = None

    # -- the environment ------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The environment's name."""
        return self.environment.name

    @property
    def place(self) -> str:
        """`file:line` of the class."""
        return self.environment.place

    def line(self, method: str) -> str:
        """Return `file:line` of a method, or of the class if it has no such method."""
        action = self.environment.actions.get(method)
        if action is not None:
            return action.place
        function = getattr(self.environment.cls, method, None)
        if getattr(function, "__module__", "").startswith("taskapp_kit."):  # the class that app.tasks creates
            return self.place
        return line_of(function, self.place)

    @property
    def in_this_process(self) -> bool:
        """Whether rollouts are played in threads of this process."""
        return self.environment.isolation == "thread"

    def seeds(self, count: int, split: str | None = None) -> list[tuple[str, int]]:
        """Return the first `count` seeds of a split, each with the split's name. Defaults to the default split."""
        name = split or self.environment.split_names[0]
        tasks = self.environment.tasks
        numbers = range(len(tasks.rows(name))) if tasks is not None else self.environment.splits[name]
        return [(name, numbers[index]) for index in range(min(count, size(numbers)))]

    def rows(self) -> Iterator[tuple[str, int, Any]]:
        """Yield every row, as (split, seed, row)."""
        tasks = self.environment.tasks
        for split in self.environment.split_names if tasks is not None else ():
            assert tasks is not None
            for seed, row in enumerate(tasks.rows(split)):
                yield split, seed, row

    # -- playing --------------------------------------------------------------------------------------------------

    def _seconds(self) -> float:
        """Return the deadline of the next rollout in seconds. Raises OutOfTime if time is up."""
        if self.until is not None and time.monotonic() >= self.until:
            raise OutOfTime
        return self.options.deadline_seconds

    def request(
        self,
        split: str,
        seed: int,
        policy: Mapping[str, Json],
        *,
        ops: Sequence[Json] = (),
        config: Mapping[str, Json] | None = None,
    ) -> RolloutRequest:
        """Return a request for a rollout of at most MOST_TURNS turns with one action.

        Raises OutOfTime if time is up.
        """
        chosen = {"split": split} if self.environment.tasks is not None else {}
        return RolloutRequest.model_validate(
            {
                "run_id": "doctor",
                "mode": "eval",
                "ops": list(ops),
                "env": {"env_name": self.name, "seed": seed, "config": {**(config or {}), **chosen}},
                "policy": {"config": dict(policy)},
                "safety": {"max_ops": 2 * MOST_TURNS + 1, "max_time_s": self._seconds()},
            }
        )

    async def play(
        self,
        player: Player,
        split: str,
        seed: int,
        *,
        own: LocalPolicy | None = None,
        config: Mapping[str, Json] | None = None,
        policy_config: Mapping[str, Json] | None = None,
        service: Service | None = None,
    ) -> Rollout:
        """Play one rollout. own: A policy that acts instead of the player, and reads no observation.

        If the environment runs in another process, that process requests the decisions of `own` like those of a session.
        Raises OutOfTime if time is up, and the errors of `Service.rollout`.
        """
        acts = own or (None if player.own is None else player.own(split, seed))
        given = {**player.config, **(policy_config or {})}
        request = self.request(split, seed, given, config=config)
        service = service or self.service
        if acts is None or self.in_this_process:
            return await service.rollout(request, policy=acts)
        request.policy.policy_name = SESSION
        return await service.rollout(request, answers=answers_of(acts))

    async def play_ops(self, ops: Sequence[Json], split: str, seed: int, *, service: Service | None = None) -> Rollout:
        """Play only the actions in `ops`. Raises the same errors as `play`."""
        return await (service or self.service).rollout(self.request(split, seed, {}, ops=ops))

    async def first_view(self, split: str, seed: int, look: Callable[[Any], None] | None = None) -> View:
        """Return what a policy reads in the first turn. look: Called with the environment's instance.

        Raises OutOfTime if time is up, and RolloutFailed if the episode fails.
        """
        return await self.service.first_view(self.request(split, seed, {}), look)

    async def attempt(self, player: Player, split: str, seed: int) -> Attempt:
        """Play one rollout of the sample. If it fails, return the failure. Raises OutOfTime if time is up."""
        try:
            return Attempt(player, split, seed, rollout=await self.play(player, split, seed))
        except KitError as error:
            return Attempt(player, split, seed, error=error)

    # -- the sample -----------------------------------------------------------------------------------------------

    async def sample(self) -> None:
        """Play every policy that needs no model, and set `attempts` and `base`, which all checks read."""
        known = policies_of(self.spec, self.environment)
        words = self.environment.text_action is not None
        config = example_policy(known, words=words)
        if config and config["policy"] not in ("constant", GOLD):
            self.base = Player(config["policy"], config)
        else:
            self.base = Player("schema", {}, self._schema_policy)
        players = [self.base]
        players += [
            Player(name, {"policy": name})
            for name, why in known.items()
            if why is None and name not in NEVER_ALONE and name != self.base.label
        ]
        for player in players:
            await self._sample_of(player)
        for number, action in enumerate(self._constants(), start=1):
            label = "constant" if number == 1 else f"constant {number}"
            await self._sample_of(Player(label, {"policy": "constant", "action": action}))

    def _schema_policy(self, split: str, seed: int) -> LocalPolicy:
        return SchemaPolicy(derived_rng("doctor", self.name, split, seed))

    async def _sample_of(self, player: Player) -> None:
        self.players[player.label] = player
        attempts = self.attempts[player.label] = []
        budget = Budget(self.options.policy_seconds)
        for split, seed in budget.within(self.seeds(self.options.seeds)):
            attempts.append(await self.attempt(player, split, seed))
            rollout = attempts[-1].rollout
            if rollout is None and player is self.base:
                break
            if rollout is not None and rollout.auxiliary_calls:
                self.asks_models = True
                break

    def _constants(self) -> list[Json]:
        """Return actions for the policy `constant`: the most common actions of gold and the base policy.

        If there are no such actions and the environment accepts text, the only action is a word.
        """
        found: list[Json] = []
        text = self.environment.text_action
        for label in (GOLD, None if self.base is None else self.base.label):
            counts: Counter[str] = Counter()
            actions: dict[str, Json] = {}
            for rollout in self.scored(str(label)):
                for step in rollout.trajectory.steps:
                    if step.refused is not None or not isinstance(step.args, dict):
                        continue
                    action: Json = {step.tool: step.args}
                    if text is not None and step.tool == text.name:
                        action = next(iter(step.args.values()), "")
                        if not str(action).strip():  # this action is valid for `noop`, but not for `constant`
                            continue
                    key = json_hash(action)
                    actions[key] = action
                    counts[key] += 1
            common = [actions[key] for key, count in counts.most_common(CONSTANTS) if label != GOLD or count > 1]
            found += [action for action in common if action not in found][:CONSTANTS]
        if text is not None and not found:
            found = ["hello"]
        return found[: CONSTANTS + 1]

    # -- reading the sample ---------------------------------------------------------------------------------------

    def tried(self) -> list[Attempt]:
        """Return the attempted rollouts of all policies."""
        return [attempt for attempts in self.attempts.values() for attempt in attempts]

    def failures(self) -> list[tuple[Attempt, RolloutFailed]]:
        """Return the rollouts that failed."""
        return [(attempt, attempt.error) for attempt in self.tried() if isinstance(attempt.error, RolloutFailed)]

    def scored(self, label: str | None = None) -> list[Rollout]:
        """Return the scored rollouts of one policy, or of all policies if `label` is None."""
        attempts = self.tried() if label is None else self.attempts.get(label, [])
        return [attempt.rollout for attempt in attempts if attempt.rollout is not None]

    def base_rollouts(self) -> list[Rollout]:
        """Return the scored rollouts of the base policy."""
        return [] if self.base is None else self.scored(self.base.label)

    def rewards(self, label: str) -> list[float]:
        """Return the defined rewards of a policy."""
        return [rollout.reward for rollout in self.scored(label) if rollout.reward is not None]

    def mean_reward(self, label: str) -> float | None:
        """Return a policy's mean reward, or None if no rollout has a reward."""
        rewards = self.rewards(label)
        return fmean(rewards) if rewards else None

    def idle_labels(self) -> list[str]:
        """Return the labels of policies without knowledge of the task: `noop`, `random`, and each constant action."""
        return [label for label in self.attempts if kind_of(label) in ("noop", "random", "constant", "schema")]

    async def more(self, label: str, count: int, seconds: float) -> None:
        """Play more seeds of a policy, up to a total of `count`. Raises OutOfTime if time is up."""
        done = {(attempt.split, attempt.seed) for attempt in self.attempts[label]}
        rest = [episode for episode in self.seeds(count) if episode not in done]
        for split, seed in Budget(seconds).within(rest):
            self.attempts[label].append(await self.attempt(self.players[label], split, seed))


def answers_of(policy: LocalPolicy) -> Answers:
    """Return the function with which a policy of this process decides for a `CallerPolicy` in another process.

    The policy's view has the turn and the tools, but no observation.
    """
    tools: list[Tool] = []
    turns = itertools.count()

    async def answers(body: dict[str, Json]) -> ChatReply:
        tools.extend(Tool(**action) for action in body.get("actions", ()))
        try:
            decision = policy.decide(View(next(turns), None, (), tools))
        except PolicyStops:
            return ChatReply(FINISH_MESSAGE)
        calls = [(call.tool, call.args) for call in decision.tool_calls]
        return ChatReply(actions_message(calls, decision.output))

    return answers


def kind_of(label: str) -> str:
    """Return the policy's name in a label, such as `constant` for `constant 2`."""
    return label.partition(" ")[0]


def outcome_words(rollout: Rollout) -> str:
    """Describe how a rollout ended, such as `terminated (environment) after 5 steps, reward 1`."""
    reward = "no reward" if rollout.reward is None else f"reward {rollout.reward:g}"
    count = "1 step" if rollout.length == 1 else f"{rollout.length} steps"
    return f"{rollout.status} ({rollout.stop_reason}) after {count}, {reward}"


def content_hash(trajectory: Trajectory) -> str:
    """Return a hash of an episode's observations and rewards, without its seed. Equal episodes have equal hashes."""
    shown = [trajectory.initial, *(step.observation for step in trajectory.steps)]
    return json_hash(
        [
            [without_images(observation) for observation in shown],
            [image.pixels or image.hash for observation in shown for image in images(observation)],
            [
                [step.tool, step.args, step.reward, step.terminated, step.truncated, step.refused]
                for step in trajectory.steps
            ],
            trajectory.final_state,
        ]
    )


def difference(one: Trajectory, two: Trajectory) -> str:
    """Describe the first difference between two trajectories."""
    if text_of(one.initial) != text_of(two.initial):
        return f"the first observation was {apart(one.initial, two.initial)}"
    for first, second in zip(one.steps, two.steps, strict=False):
        for member in ("tool", "args", "observation", "reward", "terminated", "truncated", "info", "metrics"):
            before, after = (without_images(getattr(step, member)) for step in (first, second))
            if before != after:
                return f"at step {first.index + 1} the {member} was {apart(before, after)}"
    if one.length != two.length:
        return f"the episode had {one.length} steps and then {two.length}"
    if one.final_state != two.final_state:
        return "the final state differs"
    if (one.status, one.stop_reason) != (two.status, two.stop_reason):
        return f"it ended {one.status} ({one.stop_reason}) and then {two.status} ({two.stop_reason})"
    return "only the images differ"


SHOWN_CHARACTERS = 60
BEFORE_CHARACTERS = 20
"""How many characters are shown before the first difference of two strings."""


def apart(before: Any, after: Any) -> str:
    """Return two values, as in `'2 of 9' and then '3 of 9'`, from the word before their first difference."""
    one, two = (value if isinstance(value, str) else str(value) for value in (before, after))
    same = next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    start = max(0, same - BEFORE_CHARACTERS)
    word = max(one.rfind(space, 0, start + 1) for space in " \n\t") + 1
    start = word if start - word <= BEFORE_CHARACTERS else start  # a longer word, such as a hash, is cut
    return f"{short(one[start:])} and then {short(two[start:])}"


def short(value: Any) -> str:
    """Return a value as one short line for a finding."""
    text = " ".join(
        (value if isinstance(value, str) else text_of(value) if isinstance(value, list) else str(value)).split()
    )
    return f"'{text[:SHOWN_CHARACTERS]}{'…' if len(text) > SHOWN_CHARACTERS else ''}'"


async def gathered(tasks: Sequence[asyncio.Task[Any]]) -> list[Any]:
    """Wait for all asyncio tasks and return their results. If any failed, raise the first error at the end."""
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
