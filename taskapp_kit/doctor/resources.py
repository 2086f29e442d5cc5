"""Checks of resources: what episodes leave behind (instances, files, threads, processes, memory), and how long they take."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from taskapp_kit.doctor.finding import CheckResult, check, passed, skipped, warning, wrong
from taskapp_kit.doctor.policies import Function
from taskapp_kit.doctor.repeats import ELSEWHERE
from taskapp_kit.doctor.rollouts import quantile
from taskapp_kit.doctor.subject import Budget, EnvironmentUnderTest, OutOfTime
from taskapp_kit.errors import RolloutFailed
from taskapp_kit.records.events import Observed
from taskapp_kit.records.protocols import View
from taskapp_kit.records.trajectory import Decision, PlayedStep, ToolCall

EPISODES = 8
"""How many episodes are checked for leftovers. A leak leaves something behind in at least half of them."""
WARM = 2
KIT_THREADS = ("taskapp-pinned", "asyncio_", "AnyIO")
"""Names of threads that the service starts."""
LEAK_BYTES = (100_000, 10_000)
"""The growth per reset that counts as a leak, in bytes: of the process's memory, far above the noise of allocators, and
of Python's allocations, which are counted exactly.
"""
HELD = ("VmRSS:", "VmSwap:")
"""Lines of /proc/self/status with the memory in use and the swapped memory."""
RESET_SEEDS = 5
"""How many seeds the check `memory` uses. Caches per seed are full after the first round."""
SETTLE_SECONDS = 2.0
"""How long to wait for the next thread or process to end, and for a cancelled rollout to stop, in seconds."""
LEAST_ROUNDS = 4
"""With fewer rounds over the seeds, memory may grow by chance."""
SLOW_RESET_SECONDS, SLOW_STEP_SECONDS = 2.0, 0.5
"""If the medians exceed these values, a trainer mostly waits for the environment."""
PATIENCE = 4
"""The factor by which the check `memory` may exceed its time to complete these rounds."""


def counted(cls: type, folder: Path) -> dict[str, int]:
    """Return how many of each resource this process has. folder: The directory for temporary files."""
    gc.collect()
    descriptors = Path("/proc/self/fd")
    children = [path.read_text().split() for path in Path("/proc/self/task").glob("*/children")]
    return {
        f"instances of {cls.__name__}": sum(type(item) is cls for item in gc.get_objects()),
        "open files and sockets": len(list(descriptors.iterdir())) if descriptors.is_dir() else 0,
        "threads": sum(not thread.name.startswith(KIT_THREADS) for thread in threading.enumerate()),
        "child processes": sum(map(len, children)),
        "temporary files": len(list(folder.iterdir())),
    }


@contextmanager
def _own_temporary_folder() -> Iterator[Path]:
    """Set a separate directory for `tempfile`, so that all files that remain in it belong to the environment."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="taskapp-doctor-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)  # a sandbox's user must be able to reach its files in it, as in the default directory
        tempfile.tempdir = folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = before


async def _left(subject: EnvironmentUnderTest, episode: Callable[[int], Awaitable[None]]) -> tuple[dict[str, int], int]:
    """Play episodes. Return how many of each resource they left, and how many episodes were played.

    A resource is only returned if at least one was left for every two episodes.
    """
    with _own_temporary_folder() as folder:
        for number in range(WARM):
            await episode(number)
        before, played = counted(subject.environment.cls, folder), 0
        for number in Budget(subject.options.check_seconds).within(range(EPISODES)):
            await episode(number)
            played += 1
        until, fewest = 0.0, sys.maxsize
        while True:
            after = counted(subject.environment.cls, folder)
            grown = {what: after[what] - before[what] for what in after if 2 * (after[what] - before[what]) >= played}
            if sum(grown.values()) < fewest:
                until, fewest = time.monotonic() + SETTLE_SECONDS, sum(grown.values())
            if not grown or time.monotonic() > until:
                return grown, played
            await asyncio.sleep(0.05)  # wait, because a thread or a process may be about to end


@check("close-frees", "An episode that has ended leaves nothing behind.", plays=True)
async def close_frees(subject: EnvironmentUnderTest) -> CheckResult:
    """Count instances, files, threads, processes and temporary files before and after episodes."""
    if not subject.in_this_process:
        return skipped(ELSEWHERE)
    assert subject.base is not None
    player, episodes = subject.base, subject.seeds(3)

    async def episode(number: int) -> None:
        await subject.play(player, *episodes[number % len(episodes)])

    left, played = await _left(subject, episode)
    if left:
        return wrong(f"{played} episodes left {_words(left)} behind.", "Release it in close().", subject.line("close"))
    return passed(f"{played} episodes left nothing behind.")


@check("abort-frees", "An episode that is cancelled leaves nothing behind.", plays=True, after=("close-frees",))
async def abort_frees(subject: EnvironmentUnderTest) -> CheckResult:
    """Cancel rollouts after their first step, as if a client disconnected, and count the resources."""
    if not subject.in_this_process:
        return skipped(ELSEWHERE)
    rollout = next((item for item in subject.base_rollouts() if item.length > 1), subject.base_rollouts()[0])
    first = [step for step in rollout.trajectory.steps if step.tool][:1] if rollout.length > 1 else []

    async def episode(_: int) -> None:
        loop, acted, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def answer(view: View) -> Decision:
            if view.turn < len(first):
                return Decision([_call(first[view.turn])])
            loop.call_soon_threadsafe(acted.set)
            go_on.wait(SETTLE_SECONDS)
            return Decision([_call(step) for step in rollout.trajectory.steps[len(first) :][:1]])

        assert subject.base is not None
        playing = asyncio.create_task(
            subject.play(subject.base, rollout.split, rollout.seed, own=Function("leaves", answer))
        )
        waiting = asyncio.create_task(acted.wait())
        await asyncio.wait([playing, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        playing.cancel()
        with contextlib.suppress(asyncio.CancelledError, RolloutFailed):
            await asyncio.sleep(0.01)  # cancel before the policy replies
            go_on.set()
            await playing
        go_on.set()
        await subject.service.pinned_threads.quiet(SETTLE_SECONDS)

    left, played = await _left(subject, episode)
    if left:
        found = f"{played} rollouts that were cancelled after {len(first)} steps left {_words(left)} behind."
        return wrong(
            found, "Release resources in close(), which always runs, not in the last step.", subject.line("close")
        )
    return passed(f"{played} cancelled rollouts left nothing behind.")


def _call(step: PlayedStep) -> ToolCall:
    return ToolCall(step.tool, step.args)


def _words(left: dict[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in left.items())


@check("memory", "Memory does not grow with each reset.", plays=True, after=("close-frees",))
async def memory(subject: EnvironmentUnderTest) -> CheckResult:
    """Compare the memory of this process after half of the resets and after all of them."""
    if not subject.in_this_process:
        return skipped(ELSEWHERE)
    if sys.platform != "linux":
        return skipped("Memory is read from /proc, which does not exist on this system.")
    episodes = subject.seeds(RESET_SEEDS)
    least, seconds = LEAST_ROUNDS * len(episodes), subject.options.check_seconds
    budget, at_most, sizes, done = Budget(seconds), Budget(PATIENCE * seconds), [], 0
    with _memory_watched() as held:
        sizes.append(held())
        with contextlib.suppress(OutOfTime):
            while done < subject.options.resets and not (at_most.over if done < least else budget.over):
                await subject.first_view(*episodes[done % len(episodes)])
                done += 1
                if done % len(episodes) == 0:
                    sizes.append(held())
    rounds = len(sizes) - 1
    if rounds < LEAST_ROUNDS:
        found = f"Not checked, because {done} resets took too long to measure whether memory grows."
        return skipped(found, subject.options.hint_for_time)
    half = rounds // 2
    resets = (rounds - half) * len(episodes)
    grown = [(last - before) / resets for last, before in zip(sizes[-1], sizes[half], strict=True)]
    whole, python = (f"{bytes_each / 1000:+.1f} KB" for bytes_each in grown)
    found = f"{done} resets: {whole} per reset in the second half, {python} of it by Python; {sizes[-1][0] / 1e6:.0f} MB in total"
    if any(bytes_each > leak for bytes_each, leak in zip(grown, LEAK_BYTES, strict=True)):
        do = "Find what outlives the episode and grows with each reset, such as a list or cache in a class or module."
        return wrong(f"{found}.", do, subject.line("reset"))
    return passed(f"{found}.")


@contextmanager
def _memory_watched() -> Iterator[Callable[[], tuple[int, int]]]:
    """Yield a function that returns the bytes that this process uses, and the bytes that Python allocated in the block.

    The first number includes allocations of C libraries. The second number is exact, even if free memory is reused. Garbage
    collections skip older objects, because collecting them takes long in a large process.
    """
    traced = tracemalloc.is_tracing()
    gc.collect()
    gc.freeze()
    if not traced:
        tracemalloc.start()

    def held() -> tuple[int, int]:
        gc.collect()
        lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
        kilobytes = sum(int(words[1]) for words in lines if words and words[0] in HELD)
        return 1024 * kilobytes, tracemalloc.get_traced_memory()[0]

    try:
        yield held
    finally:
        if not traced:
            tracemalloc.stop()
        gc.unfreeze()


def durations(subject: EnvironmentUnderTest) -> tuple[list[float], list[float]]:
    """Return the durations of all resets and of all accepted steps of the sample, in seconds."""
    rollouts = subject.scored()
    resets = [event.seconds for rollout in rollouts for event in rollout.events if isinstance(event, Observed)]
    return resets, [step.seconds for rollout in rollouts for step in rollout.trajectory.steps if step.refused is None]


@check("cost", "A reset and a step are quick.")
async def cost(subject: EnvironmentUnderTest) -> CheckResult:
    """Report the median and the 99th percentile of the duration of resets and steps."""
    resets, steps = durations(subject)
    if not resets:
        return skipped("No rollout was scored.")
    parts = [
        f"{what}: median {1000 * median(seconds):.3g} ms, p99 {1000 * quantile(seconds, 0.99):.3g} ms of {len(seconds)}"
        for what, seconds in (("reset", resets), ("step", steps))
        if seconds
    ]
    found = f"{'; '.join(parts)}."
    if median(resets) > SLOW_RESET_SECONDS:
        return warning(
            found, "Load shared data in setup_worker, or cache the result for each seed.", subject.line("reset")
        )
    if steps and median(steps) > SLOW_STEP_SECONDS:
        return warning(found, "Make steps faster, because a trainer waits for each step.", subject.place)
    return passed(found)
