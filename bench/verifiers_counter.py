"""A peer for the bench: the counter of `turns_app.py` on verifiers 0.3.1, run in that release's own environment.

Written as its authors would: a StatefulToolEnv with one tool, a rubric of one function, the package's own client.

    python verifiers_counter.py ADDRESS ROUNDS    # ROUNDS: [[in flight, rollouts], …]; a line of JSON for each

No `from __future__ import annotations` here: its tool schemas need the types themselves.
"""

import asyncio
import logging
import random
import sys
from typing import Any, Literal

import verifiers as vf
from datasets import Dataset
from peer_rounds import Played, by_callers, print_rounds
from verifiers.legacy.clients import resolve_client

TURNS = 5


def increment(by: Literal[1, 2, 3], game: Any = None) -> str:
    """Add to the count."""
    game["count"] += by
    game["turn"] += 1
    return shown(game)


def shown(game: dict[str, int]) -> str:
    return f"game {game['game']}: count {game['count']}, target {game['target']}, turn {game['turn']} of {TURNS}"


def fresh(seed: int) -> dict[str, int]:
    return {"game": seed, "count": 0, "target": random.Random(seed).randint(TURNS, 3 * TURNS), "turn": 0}


class Counter(vf.StatefulToolEnv):
    """Add 1, 2 or 3 in each turn."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_turns=100, **kwargs)
        self.add_tool(increment, args_to_skip=["game"])

    async def setup_state(self, state: vf.State) -> vf.State:
        state["game"] = fresh(int(state["info"]["seed"]))
        return state

    def update_tool_args(self, tool_name: str, tool_args: dict, messages: Any, state: vf.State, **kwargs: Any) -> dict:
        return {**tool_args, "game": state["game"]}

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> vf.Messages:
        messages = await super().env_response(messages, state, **kwargs)
        if state["game"]["turn"] >= TURNS:
            state["final_env_response"] = messages
        return messages


def reached(state: vf.State) -> float:
    return float(state["game"]["count"] == state["game"]["target"])


def main() -> None:
    logging.disable(logging.INFO)
    rows = [{"question": shown(fresh(0)), "info": {"seed": 0}}]
    environment = Counter(
        dataset=Dataset.from_list(rows),
        system_prompt="Add 1, 2 or 3 in each turn; after the last turn the count must be the target.",
        rubric=vf.Rubric(funcs=[reached]),
    )
    prompt = environment.get_dataset()[0]["prompt"]

    async def rounds() -> None:
        config = vf.ClientConfig(api_key_var="PEER_KEY", api_base_url=sys.argv[1], max_retries=0)
        client = resolve_client(config)

        async def rollout(seed: int) -> tuple[int, float]:
            prompted = [*prompt[:-1], {"role": "user", "content": shown(fresh(seed))}]
            given = {"prompt": prompted, "info": {"seed": seed}, "example_id": seed}
            done = await environment.run_rollout(given, client, "mock", {"tool_choice": "required"})
            if done["error"] is not None:
                raise RuntimeError(str(done["error"])[:500])
            return int(done["metrics"]["num_turns"]), float(done["reward"])

        async def a_round(in_flight: int, seeds: range) -> list[Played]:
            return await by_callers(rollout, in_flight, seeds)

        await print_rounds(a_round, sys.argv[2])

    asyncio.run(rounds())


if __name__ == "__main__":
    main()
