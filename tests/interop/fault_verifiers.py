"""verifiers 0.3.1 under faults: its server with one worker process, and its client. See fault_peer.py.

The counter is the one that `make bench` plays. Failures are declared by an exception, by `error` of the output, or by its
stop condition at a deadline.
"""

import asyncio
import itertools
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import verifiers as vf
from datasets import Dataset
from fault_peer import LOST_SECONDS, Declared, is_broken, play_all, report_fault
from openai import AsyncOpenAI
from verifiers_counter import Counter, fresh, shown

DEADLINE_SECONDS, TURNS = 10.0, 5


class Faulty(Counter):
    """Fails in its first turn, or takes its time, if the row says so."""

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> vf.Messages:
        if state["info"]["broken"]:
            raise RuntimeError("the environment failed")
        await asyncio.sleep(state["info"]["slow"])
        return await super().env_response(messages, state, **kwargs)


def counted(state: vf.State) -> float:
    return state["game"]["count"] / (3 * TURNS)


async def judged(judge: Any, prompt: Any, completion: Any, answer: str, state: vf.State) -> float:
    return float(json.loads(await judge(prompt, completion, answer, state))["score"])


def load_environment(kind: str, judges: str) -> vf.Environment:
    """Return the environment. The server and its worker call this."""
    rubric = vf.Rubric(funcs=[counted])
    if kind == "judge":
        client = AsyncOpenAI(base_url=judges, api_key="none", timeout=DEADLINE_SECONDS)
        rubric = vf.JudgeRubric(judge_client=client, judge_model="m")
        rubric.add_reward_func(judged)
    seconds = DEADLINE_SECONDS if kind in ("model", "deadline") else LOST_SECONDS
    rows = Dataset.from_list([{"question": shown(fresh(0)), "info": {"seed": 0}}])
    return Faulty(dataset=rows, system_prompt="Count.", rubric=rubric, timeout_seconds=seconds)


async def kill_workers(server: int) -> None:
    """Kill the server's worker soon, and again when its replacement has had time to start."""
    for pause_seconds in itertools.chain([0.5], itertools.repeat(LOST_SECONDS / 4)):
        await asyncio.sleep(pause_seconds)
        for worker in Path(f"/proc/{server}/task/{server}/children").read_text().split():
            if "multiprocessing.spawn" in Path(f"/proc/{worker}/cmdline").read_text():
                os.kill(int(worker), signal.SIGKILL)
                report_fault()


async def main(kind: str, rollouts: int, model: str, judges: str) -> None:
    environment = load_environment(kind, judges)
    environment.env_id, environment.env_args = "fault_verifiers", {"kind": kind, "judges": judges}
    await environment.start_server(log_level="CRITICAL", recovery_timeout=20.0)
    config = vf.ClientConfig(api_key_var="PEER_KEY", api_base_url=model)
    prompt = environment.get_dataset()[0]["prompt"]

    async def rollout(number: int) -> float:
        late = kind == "deadline" and number % 3 == 0
        slow = DEADLINE_SECONDS if late else 0.02
        if late:
            report_fault()
        info = {"seed": number, "broken": is_broken(kind, number), "slow": slow}
        asked = [*prompt[:-1], {"role": "user", "content": shown(fresh(number))}]
        row = {"prompt": asked, "info": info, "example_id": number}
        done = await environment.run_rollout(row, config, "mock", {"tool_choice": "required"})
        if done["error"] is not None:
            raise Declared(done["error"]["error"])
        if done["stop_condition"] == "timeout_reached":
            raise Declared("timeout_reached")
        return float(done["reward"])

    killing = asyncio.ensure_future(kill_workers(environment.env_server_process.pid)) if kind == "worker" else None
    await play_all(kind, rollouts, rollout)
    if killing is not None:
        killing.cancel()
    await environment.stop_server()


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]))
