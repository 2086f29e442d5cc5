"""Checks with policies that ignore instructions: they reply with nonsense, with empty text, or with any valid arguments."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from statistics import fmean

from taskapp_kit.doctor.doctor_options import MOST_TURNS
from taskapp_kit.doctor.finding import CheckResult, check, passed, skipped, warning, wrong
from taskapp_kit.doctor.policies import Function, SchemaPolicy, empty_texts, nonsense
from taskapp_kit.doctor.rollouts import raised_at
from taskapp_kit.doctor.subject import GOLD, Budget, EnvironmentUnderTest, kind_of
from taskapp_kit.errors import RolloutFailed
from taskapp_kit.records.protocols import View
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.seeds import derived_rng
from taskapp_kit.records.trajectory import Decision, nothing_accepted

NONSENSE_SEEDS = 3
HALF = 0.5


async def _nonsense(subject: EnvironmentUnderTest) -> dict[str, list[Rollout]]:
    """Return the rollouts of each kind of nonsense on the first seeds. Only the first call plays them."""
    if not subject.nonsense:
        episodes = subject.seeds(NONSENSE_SEEDS)
        view = await subject.first_view(*episodes[0])
        for name, answer in nonsense(view.tools):
            subject.nonsense[name] = []
            for split, seed in Budget(subject.options.check_seconds / 4).within(episodes):
                with contextlib.suppress(RolloutFailed):  # empty-text and schema-accepted report this failure
                    subject.nonsense[name].append(await _answered(subject, split, seed, name, answer))
    return subject.nonsense


async def _answered(
    subject: EnvironmentUnderTest, split: str, seed: int, name: str, answer: Callable[[View], Decision]
) -> Rollout:
    assert subject.base is not None
    return await subject.play(subject.base, split, seed, own=Function(name, answer))


@check("nonsense-ends", "A limit ends the episode of a policy that replies with nonsense.", plays=True)
async def nonsense_ends(subject: EnvironmentUnderTest) -> CheckResult:
    """Reply with text instead of a tool call, an unknown tool, bad arguments or nothing, and check what ends the episode."""
    environment, played = subject.environment, await _nonsense(subject)
    limited = environment.max_steps or environment.max_turns or environment.default_max_turns
    for name, rollouts in played.items():
        endless = [rollout for rollout in rollouts if rollout.stop_reason == "max_ops"]
        if endless and not limited:
            found = f"A policy that replies with {name} was still playing after {MOST_TURNS} turns, because no limit applied."
            do = "Declare max_steps= or max_turns=, or keep max_refusals=10. A stuck model would use tokens endlessly."
            return wrong(found, do, subject.place)
    if not any(played.values()):
        return skipped("Not checked, because every rollout of a policy that replies with nonsense failed.")
    ends = sorted({rollout.stop_reason for rollouts in played.values() for rollout in rollouts})
    longest = max((rollout.length for rollouts in played.values() for rollout in rollouts), default=0)
    return passed(f"{len(played)} kinds of nonsense ended with {', '.join(ends)}, after at most {longest} steps.")


@check(
    "nonsense-pays",
    "Nonsense earns less reward than good play, and not more than chance.",
    plays=True,
    after=("policies",),
)
async def nonsense_pays(subject: EnvironmentUnderTest) -> CheckResult:
    """Compare the mean reward of each kind of nonsense with the mean rewards of gold and other policies."""
    means, rejected = {}, set()
    for name, rollouts in (await _nonsense(subject)).items():
        rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
        refused = all(nothing_accepted(rollout.length, rollout.metrics) for rollout in rollouts)
        if rewards and (refused or subject.environment.one_answer):
            means[name] = fmean(rewards)
        if refused:
            rejected.add(name)
    if not means:
        return passed("Nonsense earned no reward, or the environment accepted some of its actions.")
    name = max(means, key=lambda item: means[item])
    found = f"A policy that replies with {name} has a mean reward of {means[name]:g}"
    gold = subject.mean_reward(GOLD)
    # with gold, some constants repeat its actions
    labels = [label for label in subject.idle_labels() if gold is None or kind_of(label) != "constant"]
    others = {label: subject.mean_reward(label) for label in labels}
    scale = subject.spec.blend_for(subject.name)
    do = "Make a rubric give its lowest score to an episode in which nothing was done."
    if gold is not None and means[name] >= gold:
        return wrong(f"{found}, and gold has {gold:g}.", do, subject.place)
    if gold is None and not scale.env and means[name] > HALF * (scale.outcome + scale.event):
        return wrong(f"{found}, more than half of the highest reward that the formula allows.", do, subject.place)
    best = max(((mean, label) for label, mean in others.items() if mean is not None), default=None)
    # an accepted text may have more words in common with the right answer than another text, by chance
    if best is not None and name in rejected and means[name] > best[0]:
        return warning(f"{found}, but policy {best[1]} has only {best[0]:g}.", do, subject.place)
    return passed(f"{found}" + (f", and gold has {gold:g}." if gold is not None else "."))


@check("empty-text", "Empty text is played or rejected, and causes no failure.", plays=True)
async def empty_text(subject: EnvironmentUnderTest) -> CheckResult:
    """Reply with no text, and with an empty string in every argument that allows one."""
    split, seed = subject.seeds(1)[0]
    view, tried = await subject.first_view(split, seed), []
    for name, decision in empty_texts(view.tools):
        tried.append(name)
        try:
            await _answered(subject, split, seed, "empty", lambda _, decision=decision: _copy(decision))  # type: ignore[misc]
        except RolloutFailed as failed:
            return _broken(subject, failed, f"A reply with empty text ({name})")
    return passed(f"Empty text was played or rejected: {', '.join(tried)}.")


@check("schema-accepted", "An action that fits its schema is played or rejected, and causes no failure.", plays=True)
async def schema_accepted(subject: EnvironmentUnderTest) -> CheckResult:
    """Play actions with arguments drawn from the schemas, including unbounded strings and numbers."""
    assert subject.base is not None
    played = 0
    for split, seed in Budget(subject.options.check_seconds).within(subject.seeds(subject.options.seeds)):
        try:
            policy = SchemaPolicy(derived_rng("doctor", "any", subject.name, split, seed))
            await subject.play(subject.base, split, seed, own=policy)
        except RolloutFailed as failed:
            return _broken(subject, failed, f"Seed {seed}: an action that fits its schema")
        played += 1
    return passed(f"{played} rollouts of actions drawn from the schemas did not fail.")


def _broken(subject: EnvironmentUnderTest, failed: RolloutFailed, what: str) -> CheckResult:
    cause = "" if failed.__cause__ is None else f" ({type(failed.__cause__).__name__})"
    found = f"{what} made the rollout fail at boundary {failed.boundary} ({failed.failure.code}){cause}."
    do = "Raise InvalidAction for an action that is not accepted, and let criteria give it a low score."
    return wrong(found, do, raised_at(failed, str(subject.app.file.parent)) or subject.place)


def _copy(decision: Decision) -> Decision:
    return Decision(list(decision.tool_calls), decision.output)
