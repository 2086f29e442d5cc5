"""A peer for the bench: the counter of `turns_app.py` on inspect-ai 0.3.285, run in that release's own environment.

Written as its authors would: a task with a solver that generates until the game is over, one tool, a scorer. Its display
is off, everything else is the default: each round is one eval, its log included.

    python inspect_counter.py ADDRESS ROUNDS    # ROUNDS: [[in flight, rollouts], …]; a line of JSON for each
"""

import asyncio
import random
import sys
import tempfile
from typing import Literal

from inspect_ai import Task, eval_async
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser, get_model
from inspect_ai.scorer import Score, Target, mean, scorer
from inspect_ai.solver import Generate, TaskState, solver
from inspect_ai.tool import Tool, tool
from peer_rounds import Played, print_rounds

TURNS = 5


@tool
def increment(game: dict[str, int]) -> Tool:
    async def execute(by: Literal[1, 2, 3]) -> str:
        """Add to the count.

        Args:
            by: How much.
        """
        game["count"] += by
        game["turn"] += 1
        return shown(game)

    return execute


def shown(game: dict[str, int]) -> str:
    return f"game {game['game']}: count {game['count']}, target {game['target']}, turn {game['turn']} of {TURNS}"


def fresh(seed: int) -> dict[str, int]:
    return {"game": seed, "count": 0, "target": random.Random(seed).randint(TURNS, 3 * TURNS), "turn": 0}


@solver
def play():
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        game = fresh(state.metadata["seed"])
        state.tools, state.tool_choice = [increment(game)], "any"
        while game["turn"] < TURNS:
            state = await generate(state, tool_calls="single")
        state.metadata["game"] = game
        return state

    return solve


@scorer(metrics=[mean()])
def reached():
    async def score(state: TaskState, target: Target) -> Score:  # noqa: ARG001 - their signature
        return Score(value=float(state.metadata["game"]["count"] == state.metadata["game"]["target"]))

    return score


def samples(seeds: range) -> list[Sample]:
    system = "Add 1, 2 or 3 in each turn; after the last turn the count must be the target."
    return [
        Sample(
            input=[ChatMessageSystem(content=system), ChatMessageUser(content=shown(fresh(seed)))],
            metadata={"seed": seed},
        )
        for seed in seeds
    ]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="taskapp-bench-inspect-") as logs:
        model = get_model("openai-api/peer/mock", base_url=sys.argv[1], api_key="none", responses_api=False)

        async def a_round(in_flight: int, seeds: range) -> list[Played]:
            task = Task(dataset=MemoryDataset(samples(seeds)), solver=play(), scorer=reached())
            at_once = {"max_samples": in_flight, "max_connections": in_flight}
            (log,) = await eval_async(task, model=model, log_dir=logs, score_display=False, max_retries=0, **at_once)
            if log.status != "success" or log.samples is None or len(log.samples) != len(seeds):
                raise RuntimeError(f"the eval ended with {log.status}: {log.error}")
            return [
                Played(
                    sum(event.event == "model" for event in sample.events),
                    float(sample.scores["reached"].value),
                    (sample.total_time or 0.0) * 1000,
                )
                for sample in log.samples
            ]

        asyncio.run(print_rounds(a_round, sys.argv[2]))


if __name__ == "__main__":
    main()
