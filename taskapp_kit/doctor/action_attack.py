"""Checks with actions that do not depend on observations, and with actions that repeat what was rewarded."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from taskapp_kit.doctor.attack import PAID
from taskapp_kit.doctor.finding import CheckResult, FindingEpisode, check, passed, skipped, warning, wrong
from taskapp_kit.doctor.policies import CLOSED, scripted
from taskapp_kit.doctor.probes import TENTH
from taskapp_kit.doctor.subject import GOLD, Budget, EnvironmentUnderTest, short
from taskapp_kit.errors import RolloutFailed
from taskapp_kit.records.content import Json, text_of
from taskapp_kit.records.protocols import Tool
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.policy.sampling import draw

REPEATS = 10
"""How often an action is repeated."""
MOST_TOOLS = 6
SEEDS = 5
HUGE_NUMBER, HUGE_LENGTH = 1_000_000, 5_000
NONSENSE = ("empty", "unknown", "huge", "the whole observation")
"""The kinds of arguments that are no candidate for a right action."""
OPTIONS = "options"
MOST_OPTIONS = 10


@check(
    "blind-actions",
    "Actions that do not depend on observations earn less than half of good play.",
    plays=True,
    after=("policies",),
)
async def blind_actions(subject: EnvironmentUnderTest) -> CheckResult:
    """End at once, and call tools once or repeatedly with empty, unknown, huge or copied arguments."""
    gold = subject.mean_reward(GOLD)
    if gold is None or gold <= 0:
        return skipped("Not checked, because the app has no policy gold with a reward above 0.")
    episodes = subject.seeds(SEEDS)
    views = [await subject.first_view(split, seed) for split, seed in episodes]
    tools = [tool for tool in views[0].tools if not tool.text][:MOST_TOOLS]
    plans = list(_plans(tools))
    if all(rollout.length == 1 for rollout in subject.scored(GOLD)):
        plans += [
            (f"Trying every option of {tool.name}", [(tool, OPTIONS)] * len(options[1]))
            for tool in tools
            if (options := _options(tool)) is not None
        ]
    tried = 0
    for name, plan in Budget(subject.options.check_seconds * 2).within(plans):
        played: list[tuple[Rollout, list[Json]]] = []
        for (split, seed), view in zip(episodes, views, strict=True):
            ops = [_operation(tool, kind, at, text_of(view.observation)) for at, (tool, kind) in enumerate(plan)]
            try:
                rollout = await subject.play_ops(ops, split, seed)
            except RolloutFailed:
                break
            tried += 1
            if rollout.reward is None or rollout.reward < PAID * gold:
                break
            played.append((rollout, ops))
        if len(played) == len(episodes):
            return _paid(subject, name, [rollout for rollout, _ in played], gold)
    return passed(f"{tried} rollouts whose actions do not depend on observations earned less than half of gold.")


def _paid(subject: EnvironmentUnderTest, name: str, rollouts: Sequence[Rollout], gold: float) -> CheckResult:
    mine = fmean(rollout.reward or 0.0 for rollout in rollouts)
    first = rollouts[0]
    calls = ", ".join(f"{step.tool} {short(step.args)}" for step in first.trajectory.steps[:2])
    found = (
        f"{name} earned {mine:.3g} on {len(rollouts)} seeds, and gold {gold:.3g}. In seed {first.seed}: {calls}"
        f"{', …' if first.length > 2 else ''}."
    )
    idle = [mean for label in subject.idle_labels() if (mean := subject.mean_reward(label)) is not None]
    do = "Pay for the state that the task asks for, and let actions that change nothing earn nothing."
    actions: list[Json] = [{step.tool: step.args} for step in first.trajectory.steps if step.tool]
    episode = FindingEpisode(first.split, first.seed, actions, first.reward, gold, once=True)
    if any(mean >= PAID * gold for mean in idle) or not any(kind in name for kind in NONSENSE):
        return warning(found, do, subject.place, episode)
    return wrong(found, do, subject.place, episode)


def _plans(tools: Sequence[Tool]) -> Iterator[tuple[str, list[tuple[Tool, str]]]]:
    """Yield sequences of calls, each with a description: one call of each tool first, then repeated calls, then pairs."""
    for tool in tools:
        yield f"A first action {tool.name}", [(tool, "")]
    changed = [(tool, kind) for tool in tools for kind in NONSENSE if _arguments(tool, kind, 0, "?") is not None]
    for tool, kind in changed:
        yield f"One call of {tool.name} with {kind} arguments", [(tool, kind)]
    for tool, kind in changed:
        yield f"{REPEATS} calls of {tool.name} with {kind} arguments", [(tool, kind)] * REPEATS
    for tool, kind in changed:
        for last, other in changed:
            if last is not tool and other == kind:
                name = f"Two calls of {tool.name} and one of {last.name} with {kind} arguments"
                yield name, [(tool, kind), (tool, kind), (last, other)]


def _operation(tool: Tool, kind: str, at: int, shown: str) -> Json:
    if kind in NONSENSE:
        args = _arguments(tool, kind, at, shown)
    elif kind == OPTIONS and (options := _options(tool)) is not None:
        args = {options[0]: options[1][at]}
    else:
        args = draw(dict(tool.parameters), random.Random(0))
    return {"type": "env", "tool": tool.name, "args": args}


def _options(tool: Tool) -> tuple[str, list[Json]] | None:
    """Return the only parameter of a tool and its options, or None if the tool has other parameters or too many options."""
    properties = tool.parameters.get("properties", {})
    if not isinstance(properties, Mapping) or len(properties) != 1:
        return None
    ((name, schema),) = properties.items()
    options = schema.get("enum") if isinstance(schema, Mapping) else None
    return (name, options) if isinstance(options, list) and 1 < len(options) <= MOST_OPTIONS else None


def _arguments(tool: Tool, kind: str, at: int, shown: str) -> Json:
    """Return arguments in which every unbounded string and number is replaced, or None if there is none.

    kind: One of NONSENSE. at: The number of the call, which makes unknown values different. shown: The first observation.
    """
    texts = {"empty": "", "unknown": f"no such value {at}", "huge": "x" * HUGE_LENGTH, "the whole observation": shown}
    properties = tool.parameters.get("properties", {})
    replaced: dict[str, Json] = {}
    for name, schema in properties.items() if isinstance(properties, Mapping) else ():
        if not isinstance(schema, Mapping) or schema.keys() & CLOSED:
            continue
        if schema.get("type") == "string":
            replaced[name] = texts[kind]
        elif schema.get("type") in ("integer", "number") and "maximum" not in schema and kind == "huge":
            replaced[name] = HUGE_NUMBER
    if not replaced:
        return None
    drawn = draw(dict(tool.parameters), random.Random(0))
    return {**drawn, **replaced} if isinstance(drawn, dict) else None


@check(
    "repeat-pays", "Repeating what earned a reward does not earn more than good play.", plays=True, after=("policies",)
)
async def repeat_pays(subject: EnvironmentUnderTest) -> CheckResult:
    """Play gold's actions up to the first rewarded step of each tool, then repeat that step, or undo and redo it."""
    gold = [rollout for rollout in subject.scored(GOLD) if rollout.reward is not None and rollout.length > 1]
    if not gold:
        return skipped("Not checked, because the app has no policy gold with several steps.")
    split, seed = subject.seeds(1)[0]
    tools = [tool for tool in (await subject.first_view(split, seed)).tools if not tool.text]
    tried = 0
    paid: list[tuple[Rollout, Rollout, str]] = []
    for one in Budget(subject.options.check_seconds).within(gold):
        for what, repeated in _repeated(one, tools):
            try:
                rollout = await subject.play_ops(repeated, one.split, one.seed)
            except RolloutFailed:
                continue
            tried += 1
            assert one.reward is not None
            if rollout.reward is not None and rollout.reward > one.reward + abs(one.reward) * PAID:
                paid.append((one, rollout, what))
                break
    if paid and len(paid) >= TENTH * len(gold):
        one, rollout, what = paid[0]
        found = (
            f"In seed {one.seed}, {what} {REPEATS} times earned {rollout.reward:.3g}, and good play {one.reward:.3g}."
        )
        actions: list[Json] = [{step.tool: step.args} for step in rollout.trajectory.steps if step.tool]
        episode = FindingEpisode(one.split, one.seed, actions, rollout.reward, one.reward, once=True)
        do = "Pay each goal once, or let the way back cost what the way there earned."
        return wrong(found, do, subject.place, episode)
    return passed(f"{tried} rollouts that repeat a rewarded step earned no more than good play.")


def _repeated(rollout: Rollout, tools: Sequence[Tool]) -> Iterator[tuple[str, list[Json]]]:
    """Yield actions that repeat the first rewarded step of each tool, each with a description.

    The step is repeated alone, together with the step before it, and together with each other tool that may undo it: a tool
    whose required arguments are among the step's arguments.
    """
    steps = [step for step in rollout.trajectory.steps if step.tool]
    actions, seen = scripted(steps), set()
    for at, step in enumerate(steps):
        if not step.reward or step.reward <= 0 or step.tool in seen or not isinstance(step.args, dict):
            continue
        seen.add(step.tool)
        start, again = actions[: at + 1], actions[at : at + 1]
        yield f"repeating {step.tool} at step {at + 1}", start + again * REPEATS
        if at:
            yield f"undoing and redoing {step.tool} at step {at + 1}", start + actions[at - 1 : at + 1] * REPEATS
        for tool in tools:
            needed = tool.parameters.get("required", [])
            known = {name: value for name, value in step.args.items() if name in tool.parameters.get("properties", {})}
            if tool.name != step.tool and isinstance(needed, list) and set(needed) <= known.keys():
                undo: Json = {"type": "env", "tool": tool.name, "args": known}
                what = f"undoing {step.tool} at step {at + 1} with {tool.name} and redoing it"
                yield what, start + [undo, *again] * REPEATS
