"""Plays environments of verifiers by `from_verifiers`, and by verifiers itself with the same answers; prints both as JSON.

python verifiers_played.py SCENARIOS_JSON
[{"module": …, "arguments": {…}, "seed": N, "split": …, "answers": ["words" or {"tool": {…}}, …], "theirs": bool}, …]
"""

import asyncio
import json
import logging
import sys
from importlib.metadata import version

from taskapp_kit import DeclarationError, RolloutFailed, TaskApp
from taskapp_kit.interop.verifiers import from_verifiers
from taskapp_kit.testing import play

logging.disable(logging.CRITICAL)


def ops_of(answers):
    for answer in answers:
        ((tool, args),) = answer.items() if isinstance(answer, dict) else [("say", {"text": answer})]
        yield {"type": "env", "tool": tool, "args": args}


def ours(module, arguments, seed, split, answers, declared):
    made = from_verifiers(module, **arguments)
    app = TaskApp("theirs")
    app.environment("it", **{"splits": getattr(made, "splits", None), "max_turns": None, **declared})(made)
    try:
        rollout = play(app, seed=seed, split=split, ops=list(ops_of(answers)))
    except DeclarationError as error:
        return {"refused": [problem.found for problem in error.problems]}
    except RolloutFailed as failed:
        return {"failed": [failed.boundary, str(failed)]}
    steps = rollout.trajectory.steps
    return {
        "splits": {name: [seeds.start, seeds.stop] for name, seeds in made.splits.items()},
        "tools": {name: item.tool.parameters for name, item in app.freeze().environments["it"].actions.items()},
        "prompt": rollout.trajectory.initial,
        "observations": [step.observation for step in steps],
        "rewards": [step.reward for step in steps],
        "reward": rollout.reward,
        "status": rollout.trajectory.status,
        "info": [step.info for step in steps],
        "metrics": rollout.trajectory.metrics,
        "state": rollout.trajectory.final_state,
        "cleaned": getattr(getattr(made, "env", None), "cleaned", None),
    }


def theirs(module, arguments, seed, split, answers):
    """The same rollout by verifiers' own loop, with a client that gives the answers in their order."""
    import verifiers as vf
    from verifiers.clients import Client
    from verifiers.types import Response, ResponseMessage, ToolCall

    remaining = iter(answers)

    class Scripted(Client):
        def __init__(self):
            super().__init__(None)

        async def get_response(self, *args, **kwargs):
            answer = next(remaining)
            calls = None
            if isinstance(answer, dict):
                calls = [ToolCall(id="c", name=name, arguments=json.dumps(args)) for name, args in answer.items()]
            message = ResponseMessage(
                content=None if calls else answer, tool_calls=calls, finish_reason="stop", is_truncated=False
            )
            return Response(id="r", created=0, model="m", message=message)

        setup_client = to_native_tool = to_native_prompt = get_native_response = get_response
        raise_from_native_response = from_native_response = close = get_response

    env = vf.load_environment(module, **arguments)
    rows = env.get_dataset() if split == "train" else env.get_eval_dataset()
    place = seed if split == "train" else seed - len(env.get_dataset())
    state = asyncio.run(env._run_rollout_state({"example_id": seed, **rows[place]}, Scripted(), "m", {}))
    return {
        "reward": state["reward"],
        "metrics": state["metrics"],
        "stop": state["stop_condition"],
        "said": [message.content for message in state["completion"] if message.role in ("user", "tool")],
        "prompt": [message.content for message in state["prompt"]],
        "turns": len(state["trajectory"]),
    }


def played(module, arguments=None, seed=0, split="train", answers=(), compared=False, declared=None):
    given = (module, arguments or {}, seed, split, answers)
    return {"ours": ours(*given, declared or {}), "theirs": theirs(*given) if compared else None}


print(json.dumps({"peer": version("verifiers"), "found": [played(**one) for one in json.loads(sys.argv[1])]}))
