"""Checks that play an episode again: in this process, in another process, concurrently, and with and without images."""

from __future__ import annotations

import asyncio

from taskapp_kit.doctor.finding import CheckResult, check, passed, skipped, warning, wrong
from taskapp_kit.doctor.policies import TURN_SECONDS, RecordedActions, TakingTurns, scripted
from taskapp_kit.doctor.subject import (
    GOLD,
    Budget,
    EnvironmentUnderTest,
    Player,
    content_hash,
    difference,
    gathered,
)
from taskapp_kit.errors import RolloutFailed, Unavailable
from taskapp_kit.records.protocols import LocalPolicy
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.episode import global_random
from taskapp_kit.rollout.service import Service, ServiceSettings

REPEATED = 3
"""How many episodes are played a second time."""
ISOLATED_AT_ONCE = 3
"""The number of concurrent rollouts if each rollout has a separate process."""
SLOWER = 4
"""The factor by which concurrent rollouts may take longer than the same rollouts one after another."""
LATE = 10
"""If a turn takes this many times as long as a full episode alone, one episode waits for the other."""
IMAGE_PARAMETERS = ("image", "images", "picture", "pictures", "render")
"""Names of constructor parameters that turn on images."""
ELSEWHERE = "Not checked, because the environment runs in other processes, whose state is not visible here."
DRAW_FROM_SEED = "Draw everything from `seed` or context.rng, not from a clock, an address or global random state."


@check("same-seed", "The same seed and actions give the same episode.", plays=True)
async def same_seed(subject: EnvironmentUnderTest) -> CheckResult:
    """Play the base policy's first episodes again in this process, and compare the digests."""
    player, again = _base(subject), []
    for first in Budget(subject.options.check_seconds).within(subject.base_rollouts()[:REPEATED]):
        second = await subject.play(player, first.split, first.seed)
        again.append(first.seed)
        if first.digest != second.digest:
            found = f"Seed {first.seed} was played twice, and {difference(first.trajectory, second.trajectory)}."
            return wrong(found, DRAW_FROM_SEED, subject.line("reset"))
    return passed(f"Seeds {_listed(again)} were played again with equal digests.")


@check("same-picture", "The same seed and actions give the same images.", plays=True, after=("same-seed",))
async def same_image(subject: EnvironmentUnderTest) -> CheckResult:
    """Play a seed twice in the first configuration that shows images, and compare the images' digests."""
    player, split, seed = _longest(subject)
    for config in _image_configs(subject):
        try:
            first, second = [await subject.play(player, split, seed, config=config) for _ in range(2)]
        except RolloutFailed as failed:
            if isinstance(failed.__cause__, Unavailable):
                return skipped(f"Images require a package: {failed.message}")
            raise
        if first.observation_digest == first.digest:
            continue  # without images, both digests are equal
        if first.observation_digest != second.observation_digest:
            found = f"Seed {first.seed} was played twice, and the text was equal but the images were different."
            return wrong(found, DRAW_FROM_SEED, subject.line("reset"))
        return passed(f"Seed {first.seed} showed the same images twice.")
    return passed("The environment has no images.")


@check("images", "Turning images on or off changes nothing else.", plays=True, after=("same-seed",))
async def images_change_nothing(subject: EnvironmentUnderTest) -> CheckResult:
    """Compare the digests of a rollout with and without images."""
    player, split, seed = _longest(subject)
    variants: list[tuple[str, dict[str, bool], dict[str, bool], dict[str, bool]]] = [
        ("policy.config.images", {}, {"images": False}, {})
    ]
    for name in _image_parameters(subject):
        variants.append((f"env.config.{name}", {name: True}, {}, {name: False}))
    for what, on, policy, off in variants:
        try:
            shown = await subject.play(player, split, seed, config=on)
            hidden = await subject.play(player, split, seed, config=off, policy_config=policy)
        except RolloutFailed as failed:
            if isinstance(failed.__cause__, Unavailable):
                return skipped(f"Images require a package: {failed.message}")
            raise
        if shown.digest != hidden.digest:
            found = f"Seed {seed} with {what} on and off: {difference(shown.trajectory, hidden.trajectory)}."
            do = "Draw images without changing the episode's state or using its random numbers."
            return wrong(found, do, subject.line("reset"))
    return passed(f"The digests are equal with {' and '.join(what for what, *_ in variants)} on and off.")


@check("global-random", "No episode changes a random state that all episodes of a process share.", plays=True)
async def global_randomness(subject: EnvironmentUnderTest) -> CheckResult:
    """Compare the states of the global random number generators before and after a rollout."""
    if not subject.in_this_process:
        return skipped(ELSEWHERE)
    watch = None
    for _ in range(2):  # repeated if a module was imported, because an import may also draw random numbers
        global_random.draw()
        watch = global_random.GlobalRandomWatch()
        await subject.play(_base(subject), *_episode(subject))
        if not watch.imported:
            break
    change = None if watch is None else watch.changed(subject.name)
    if change is not None:
        return wrong(
            f"{change[:1].upper()}{change[1:]}.", f"{global_random.REMEDY.capitalize()}.", subject.line("reset")
        )
    return passed("A rollout did not change the global random states.")


@check("second-process", "Another process plays the same episode.", plays=True, after=("same-seed", "same-picture"))
async def second_process(subject: EnvironmentUnderTest) -> CheckResult:
    """Play episodes in a new worker process, whose string hashes and addresses differ, and compare the digests."""
    if not subject.options.processes:
        return skipped("Not checked, because the options exclude a second process.")
    first = subject.base_rollouts()[:REPEATED]
    own = _base(subject).own is not None
    service = Service(
        subject.app,
        ServiceSettings(max_concurrent=1, exposure="local", workers=1, skip_judges=True),
        models=subject.service.models,
    )
    try:
        try:
            await service.start()
        except Unavailable as missing:
            return skipped(f"A second process could not be started: {missing.message}", missing.hint)
        for one in Budget(subject.options.check_seconds).within(first):
            if own:
                ops = scripted(one.trajectory.steps)
                here = await subject.play_ops(ops, one.split, one.seed)
                there = await subject.play_ops(ops, one.split, one.seed, service=service)
            else:
                here = one
                there = await subject.play(_base(subject), one.split, one.seed, service=service)
            if (here.digest, here.observation_digest) != (there.digest, there.observation_digest):
                found = (
                    f"Seed {one.seed} was played in two processes, and {difference(here.trajectory, there.trajectory)}."
                )
                do = "Do not depend on string hashes, the order of a set or object addresses. They differ in each process."
                return wrong(found, do, subject.line("reset"))
        return passed(f"A second process played seeds {_listed([one.seed for one in first])} with equal digests.")
    finally:
        await service.close()


@check("interleaved", "Two sessions that take turns do not affect each other.", plays=True, after=("same-seed",))
async def interleaved(subject: EnvironmentUnderTest) -> CheckResult:
    """Play two episodes alternately, action by action, and compare each with the same episode played alone."""
    if not subject.in_this_process:
        return passed("Each rollout has a separate process.")
    pair = [rollout for rollout in subject.base_rollouts() if rollout.length][:2]
    if not pair:
        return skipped("No rollout had a step.")
    both = pair if len(pair) == 2 else [pair[0], pair[0]]
    alone = [await _repeated(subject, one, RecordedActions(one.trajectory.steps)) for one in both]
    turns = TakingTurns(2)

    async def one_of_two(number: int) -> Rollout:
        one = both[number]
        try:
            return await _repeated(subject, one, RecordedActions(one.trajectory.steps, lambda: turns.wait(number)))
        finally:
            turns.leave(number)

    together = await gathered([asyncio.create_task(one_of_two(number)) for number in range(2)])
    if turns.late:
        alone_seconds = max(sum(one.seconds.values()) for one in alone)
        found = f"An episode waited over {TURN_SECONDS:g} s for another one, but took {alone_seconds:.3g} s alone."
        if alone_seconds * LATE > TURN_SECONDS:
            return skipped(found)
        return wrong(found, "Do not make an episode wait until another episode ends.", subject.place)
    for before, after in zip(alone, together, strict=True):
        if before.digest != after.digest:
            found = (
                f"Seed {before.seed} was played alone and alternately with seed {both[1 if before is alone[0] else 0].seed}, "
                f"and {difference(before.trajectory, after.trajectory)}."
            )
            do = "Keep an episode's state in the instance (self), not in the class, a module or a default argument."
            return wrong(found, do, subject.place)
    return passed(f"Seeds {both[0].seed} and {both[1].seed} gave the same episodes when played alternately and alone.")


@check(
    "at-once",
    "Concurrent rollouts are equal to the same rollouts played one after another.",
    plays=True,
    after=("same-seed", "interleaved"),
)
async def at_once(subject: EnvironmentUnderTest) -> CheckResult:
    """Play many episodes concurrently, and compare each with the same episode played alone."""
    player = _base(subject)
    alone = {(item.split, item.seed): item for item in subject.base_rollouts()}
    longest = max(sum(item.seconds.values()) for item in alone.values())
    count = subject.options.at_once if subject.in_this_process else ISOLATED_AT_ONCE
    while SLOWER * count * longest > subject.options.deadline_seconds:
        count -= 1
    if count < 2:
        return skipped(
            f"Not checked, because a rollout took {longest:.3g} s, which is too long to play several concurrently.",
            subject.options.hint_for_time,
        )
    chosen = (list(alone.values()) * count)[:count]
    together = await gathered([asyncio.create_task(subject.play(player, item.split, item.seed)) for item in chosen])
    for before, after in zip(chosen, together, strict=True):
        if before.digest != after.digest:
            differs = difference(before.trajectory, after.trajectory)
            found = f"Seed {before.seed} was played alone and with {count - 1} others, and {differs}."
            return wrong(found, "Do not share mutable state between episodes, or use a lock.", subject.place)
    return passed(f"{count} concurrent rollouts were equal to the same rollouts played one after another.")


@check("seeds-differ", "Different seeds give different episodes.", plays=True, after=("same-seed",))
async def seeds_differ(subject: EnvironmentUnderTest) -> CheckResult:
    """Play the same actions with different seeds, and count the different episodes."""
    split = subject.environment.split_names[0]
    played = _Fingerprints(subject)
    hashes = await played.of(split)
    while len(set(hashes.values())) * 2 <= len(hashes) and await played.further(split):
        hashes = await played.of(split)
    available = len(subject.seeds(LEAST_SEEDS, split))
    if available < 2:
        return passed("The split has one seed.")
    different = len(set(hashes.values()))
    if len(hashes) < available:
        return skipped(
            f"Only {len(hashes)} seeds were played in time, too few for a comparison.", subject.options.hint_for_time
        )
    if different == 1:
        found = (
            f"The same actions gave the same episode for {len(hashes)} seeds of split {split}. No observation or reward "
            "depends on the seed."
        )
        do = 'Use `seed` or context.rng in reset, or declare a single seed: splits={"train": range(1)}.'
        return warning(found, do, subject.line("reset"))
    if different * 2 <= len(hashes):
        twins = _twins(hashes)
        found = f"{len(hashes)} seeds of split {split} gave {different} different episodes: seeds {twins} are the same."
        do = "Make more depend on the seed, or declare only as many seeds as there are different episodes."
        return warning(found, do, subject.line("reset"))
    return passed(f"{len(hashes)} seeds of split {split} gave {different} different episodes under the same actions.")


@check("splits", "No episode is in two splits.", plays=True, after=("same-seed", "seeds-differ"))
async def splits_apart(subject: EnvironmentUnderTest) -> CheckResult:
    """For every split after the first, count the seeds whose episode also occurs in the first split."""
    names = subject.environment.split_names
    if len(names) < 2:
        return passed("The environment has one split.")
    for name in names[1:]:
        played = _Fingerprints(subject)
        shared = _shared(await played.of(names[0]), await played.of(name))
        while shared and await played.further(names[0]) and await played.further(name):
            shared = _shared(await played.of(names[0]), await played.of(name))
        first, count = await played.of(names[0]), len(await played.of(name))
        if len(first) < len(subject.seeds(LEAST_SEEDS)) or count < len(subject.seeds(LEAST_SEEDS, name)):
            return skipped(
                f"Only {count} seeds of {name} were played in time, too few for a comparison.",
                subject.options.hint_for_time,
            )
        told_apart = len(set(first.values())) >= TOLD_APART * len(first)
        if told_apart and len(shared) * 2 > count:
            seed, twin = next(iter(shared.items()))
            found = f"{len(shared)} of {count} seeds of split {name} are also in {names[0]}. Seed {seed} equals {twin}."
            do = "Tests would use training episodes. Make more depend on the seed, or give the splits different contents."
            return warning(found, do, subject.place)
    return passed(f"The splits {', '.join(names)} have no common episodes among the played seeds.")


def _shared(first: dict[int, str], other: dict[int, str]) -> dict[int, int]:
    """Map each seed of `other` whose episode also occurs in `first` to the episode's seed in `first`."""
    known = {digest: seed for seed, digest in first.items()}
    return {seed: known[digest] for seed, digest in other.items() if digest in known}


class _Fingerprints:
    """Hashes of the episodes of a split's first seeds, played with the same actions. Equal hashes mean equal episodes.

    One recording of actions may not distinguish two episodes, so `further` plays another recording in every episode.
    """

    def __init__(self, subject: EnvironmentUnderTest) -> None:
        self._subject = subject
        rollouts = sorted(subject.base_rollouts(), key=lambda rollout: -rollout.length)
        rollouts[1:1] = subject.scored(GOLD)[:1]
        scripts = [scripted(rollout.trajectory.steps[:SCRIPTED_STEPS]) for rollout in rollouts]
        self._scripts = [script for script in scripts if script] or [[]]
        self._played: dict[str, int] = {}
        self._hashes: dict[str, dict[int, str]] = {}

    async def of(self, split: str) -> dict[int, str]:
        """Map each played seed of a split to the hash of its episode."""
        if split not in self._hashes:
            await self.further(split)
        return self._hashes[split]

    async def further(self, split: str) -> bool:
        """Play the next recording of actions in every episode. Return False if no recording or no time is left."""
        subject, number = self._subject, self._played.get(split, 0)
        if number >= min(len(self._scripts), RECORDINGS):
            return False
        ops, before = self._scripts[number], self._hashes.get(split, {})
        seeds = subject.seeds(subject.options.first_views, split)
        if before:
            seeds = [episode for episode in seeds if episode[1] in before]
        hashes: dict[int, str] = {}
        for _, seed in Budget(subject.options.check_seconds).within(seeds):
            if ops:
                rollout = await subject.play_ops(ops, split, seed)
            else:
                rollout = await subject.play(_base(subject), split, seed)
            hashes[seed] = before.get(seed, "") + content_hash(rollout.trajectory)
        if len(hashes) < len(seeds) and before:
            return False  # time is up, but the hashes so far are complete
        self._played[split], self._hashes[split] = number + 1, hashes
        return True


def _base(subject: EnvironmentUnderTest) -> Player:
    assert subject.base is not None, "checks that play need a policy"
    return subject.base


def _episode(subject: EnvironmentUnderTest) -> tuple[str, int]:
    first = subject.base_rollouts()[0]
    return first.split, first.seed


def _longest(subject: EnvironmentUnderTest) -> tuple[Player, str, int]:
    """Return the policy, split and seed of the longest rollout, because images may affect only a late part of an episode."""
    if subject.options.quick:
        return (_base(subject), *_episode(subject))
    tried = [attempt for attempt in subject.tried() if attempt.rollout is not None]
    longest = max(tried, key=lambda attempt: 0 if attempt.rollout is None else attempt.rollout.length)
    return longest.player, longest.split, longest.seed


async def _repeated(subject: EnvironmentUnderTest, one: Rollout, policy: LocalPolicy) -> Rollout:
    return await subject.play(_base(subject), one.split, one.seed, own=policy)


LEAST_SEEDS = 8
"""With fewer seeds, episodes may be equal by chance, unless the split has no more seeds."""
SCRIPTED_STEPS = 30
"""The number of actions to repeat on other seeds."""
TOLD_APART = 0.95
"""If a smaller share of a split's episodes is different, equal episodes prove nothing about the splits."""
RECORDINGS = 6
"""How many recordings are tried at most, if fewer recordings do not distinguish the episodes."""


def _twins(hashes: dict[int, str]) -> str:
    groups: dict[str, list[int]] = {}
    for seed, digest in hashes.items():
        groups.setdefault(digest, []).append(seed)
    return _listed(max(groups.values(), key=len))


def _listed(seeds: list[int], most: int = 6) -> str:
    shown = ", ".join(map(str, seeds[:most]))
    return shown if len(seeds) <= most else f"{shown}, …"


def _image_parameters(subject: EnvironmentUnderTest) -> list[str]:
    properties = subject.environment.config.schema.get("properties", {})
    return [
        name
        for name in IMAGE_PARAMETERS
        if isinstance(properties.get(name), dict) and properties[name].get("type") == "boolean"
    ]


def _image_configs(subject: EnvironmentUnderTest) -> list[dict[str, bool]]:
    return [{name: True} for name in _image_parameters(subject)] or [{}]
