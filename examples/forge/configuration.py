"""The configuration that the scripts in this directory share: a task that the model `tiny` learns on a laptop's CPU.

Each script contains a block of TorchForge's guide to RL workflows, and imports what the block assumes from here. A service
starts with its first call and ends with the program. TASKAPP_SERVICES_BACKEND=ray runs all services on Ray.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from taskapp_kit.services import RewardActor
from taskapp_kit.train.workflow import DataLoader, Policy, ReplayBuffer, Trainer, evaluate

sys.path.append(str(Path(__file__).resolve().parents[1] / "rl"))
from keys import COMBINATIONS, KEYS

SYSTEM = "Which key?"
ROWS = [(f"The {thing} is {state}.", KEYS[thing]) for thing, state in COMBINATIONS]
"""(prompt, target). Each thing has a key, regardless of its state. A random answer is right in 1 of 8 cases."""
TRAIN, HELD_OUT = ROWS[:72], ROWS[72:]
BATCH = 64
MODEL = {"max_tokens": 4, "system": SYSTEM}
LEARNING = {"learning_rate": 5e-4, "beta": 0.03}


async def right_key(prompt: str, response: str, target: str) -> float:
    """Return the reward: whether the answer is the key. STEP_SECONDS: how long an environment takes for that, for comparisons."""
    await asyncio.sleep(float(os.environ.get("STEP_SECONDS", "0")))
    return float(response.strip() == target)


dataloader = DataLoader.as_service(TRAIN)
eval_dataloader = DataLoader.as_service(HELD_OUT)
policy = Policy.as_service("tiny", **MODEL)
reward = RewardActor.as_service(right_key)
replay_buffer = ReplayBuffer.as_service(BATCH)
trainer = Trainer.as_service("tiny", **LEARNING)


def arguments(updates: int) -> argparse.Namespace:
    """Return the script's arguments. updates: after how many the guide's endless loops are ended, by default."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=updates, help="of the weights (%(default)s)")
    return parser.parse_args()


async def held_out(of: Any = policy, rows: Any = HELD_OUT) -> float:
    """Return the share of prompts that no training row has whose most probable answer is right."""
    return await evaluate(of, rows=rows, reward=reward)


async def learned(
    loop: Coroutine[Any, Any, Any], updates: int, every: int = 12, trainer: Any = trainer, rows: Any = HELD_OUT
) -> list[float]:
    """Run an endless loop of the guide until the trainer has made a number of updates, and return the held-out rewards."""
    before = await held_out(rows=rows)
    await trainer.start()
    print(f"held out, before: {before:.3f}", flush=True)
    curve, began, cpu = [before], time.perf_counter(), _cpu_seconds()
    running, done = asyncio.ensure_future(loop), 0
    while not running.done() and done < updates:
        await asyncio.wait((running,), timeout=0.5)
        metrics = await trainer.metrics.route()
        done = metrics.version if metrics else 0
        if done >= every * len(curve):
            curve.append(await held_out(rows=rows))
            print(f"held out, after {done} updates: {curve[-1]:.3f}", flush=True)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    curve.append(await held_out(rows=rows))
    print(
        f"held out, after {done} updates: {curve[-1]:.3f}; {time.perf_counter() - began:.0f} s, "
        f"{_cpu_seconds() - cpu:.0f} CPU-s",
        flush=True,
    )
    return curve


def _cpu_seconds() -> float:
    """Of this process and, where /proc is, of its children."""
    ticks = os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    pids = [os.getpid()]
    for task in Path("/proc/self/task").glob("*/children") if children.exists() else ():
        pids += map(int, task.read_text().split())
    seconds = 0.0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            seconds += (int(words[11]) + int(words[12])) / ticks
    return seconds
