"""What is played: servers, their environments, and for each environment the rollouts, all following from their names.

A rollout is called `SERVER.ENVIRONMENT.POLICY.NUMBER`; POLICY is a policy, a persona of `scripted` (a model plays), `ops`
(scripted actions and turns), `request` (requests that are refused, and failures) or `cancelled`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from scripted import PERSONAS, Moves

ROOT = Path(__file__).resolve().parents[2]
APPS = Path(__file__).parent / "apps"


SHARE_OF_REQUESTS = 15
"""So many times more of these are in a share: each of them is another one."""


@dataclass(frozen=True)
class Environment:
    """One environment and its rollouts.

    seeds: played in turn. moves: what scripts play. shares: policy to number of rollouts. configs, policies: members of
    `env.config` and of `policy.config` that are given in turn. turns: a model plays so many, 0 to the end.
    """

    name: str
    seeds: Sequence[int]
    moves: Moves
    shares: Mapping[str, int]
    configs: Sequence[Mapping[str, Any]] = ({},)
    policies: Sequence[Mapping[str, Any]] = ({},)
    turns: int = 0


@dataclass(frozen=True)
class Server:
    """One served app. template: the app is a new project made from it. needs: packages without which it is skipped."""

    name: str
    app: str
    environments: Sequence[Environment]
    template: bool = False
    needs: Sequence[str] = ()
    sandbox: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    groups: int = 0
    """How often members of `judged` rollouts are ranked by `POST /score_group`."""


@dataclass(frozen=True)
class Case:
    """One request. persona, moves: how the model of this rollout plays; None where none is asked."""

    name: str
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    persona: str | None
    moves: Moves
    cancel_after: int | None = None
    """The rollout is cancelled when it has so many events."""


def shares(total: int = 200, **given: int) -> dict[str, int]:
    """`given`, and the rest of `total` by the personas: what is left over is played by `calls`."""
    usual = {"text": 20, "structured": 12, "bad": 16, "refusing": 4, "failing": 9, "flaky": 3, "ops": 16}
    all_of_them = {**usual, **given}
    return {**all_of_them, "calls": total - sum(all_of_them.values())}


CRAFTER: Moves = [
    {"interact": {"actions": ["move_left", "move_left", "do"]}},
    {"interact": {"actions": ["move_right", "move_down", "do", "collect"]}},
    {"interact": {"actions": ["do", "do", "do", "do", "place_table"]}},
    {"interact": {"actions": ["sleep"] * 8}},
    {"interact": {"actions": ["move_up"] * 5 + ["do"]}},
    {"interact": {"actions": ["move_right"] * 6 + ["do", "noop"]}},
    {"interact": {"actions": ["place_plant", "make_wood_pickaxe"]}},
]
MATH = [
    {"generator": generator, "difficulty": difficulty}
    for generator in ("gsm_symbolic", "chain_sum", "simple_equations", "polynomial_equations", "simple_integration")
    for difficulty in (("medium",) if generator == "gsm_symbolic" else ("easy", "medium", "hard"))
]
NUMBERS: Moves = [
    {"submit": {"answer": "42"}}, {"submit": {"answer": "2*x"}}, {"submit": {"answer": "-2, 2"}}, "It is \\boxed{7}.",
    "I do not know yet.", {"submit": {"answer": "\\frac{1}{2}"}}, "\\boxed{1} or \\boxed{2}",
    {"submit": {"answer": "2\\sqrt{2}"}},
]  # fmt: skip
SAFE: Moves = [{"turn": {"dial": dial, "clicks": clicks}} for dial in (1, 2, 3) for clicks in (-1, 1, 2)] + [
    {"pull": {}},
    {"pull": {}},
    {"pull": {}},
]
SHOP: Moves = [
    {"find_customer": {"email": "nobody@example.org"}}, {"get_order": {"order_id": 1003}}, "What is your e-mail?",
    {"list_orders": {"customer_id": 2}}, {"cancel_order": {"order_id": 1004}}, {"refund": {"item_id": 7}},
    {"add_note": {"order_id": 1005, "topic": "declined", "text": "Not allowed."}}, "It is done, thank you.",
    {"change_address": {"order_id": 1001, "address": "5 Elm Avenue, Dover."}},
]  # fmt: skip
LAKE: Moves = [{"step": {"action": word}} for word in ("left", "down", "right", "up", "down", "right")]
ADDING: Moves = [{"add": {"amount": amount}} for amount in (1, 2, 3, 3, 2)]
VISIT: Moves = [
    {"book": {"hour": 9}},
    {"book": {"hour": 13, "urgent": True}},
    {"wait": {}},
    {"leave": {}},
    {"wait": {}},
]
WORDS: Moves = [{"guess": {"word": w}} for w in ("moss", "fern", "reed", "pine", "tree", "quit")] + ["is it green?"]
DRAWING: Moves = [
    {"draw": {"places": [{"x": 1, "y": 2}]}}, {"draw": {"places": [{"x": 0, "y": 0}, {"x": 3, "y": 3}], "ink": "b"}},
    {"step_back": {"far": 2.5}}, {"draw": {"places": [{"x": 2, "y": 1}]}},
]  # fmt: skip
PROGRAMS: Moves = [
    {"run": {"code": "print(sum(range(10)))\nimport sys; print('late', file=sys.stderr)"}},
    {"run": {"code": "open('kept.txt', 'a').write('x'); print(open('kept.txt').read())"}},
    {"run": {"code": "raise SystemExit(3)"}},
    {"submit": {"code": "def f(*a):\n    return a[0]\n"}},
    {"submit": {"code": "import os\nos._exit(0)"}},
]
EXPLAINED: Moves = ["Drops grow until they fall.", "Because.", "Thank you, please: it is " + "very " * 30 + "wet."]
PICTURES = ({}, {"image": True})
FAILED: Moves = [{"go": {}}]

# The counts make 200 rollouts of each environment that the repository has, and of each of our own apps together.
SERVERS: Sequence[Server] = (
    Server(
        "crafter",
        "crafter",
        [
            Environment(
                "crafter",
                [*range(90), *range(1_000_000, 1_000_030)],
                CRAFTER,
                shares(random=40, scripted=24, constant=10),
                [{}, {"length": 60}, {"image": True, "image_size": 32}, {"image": True, "image_size": 48, "length": 40}],
                [{}, {}, {}, {"images": False}],
                turns=6,
            )
        ],
        needs=("crafter",),
    ),
    Server(
        "math",
        "math",
        [
            Environment(
                "math",
                [*range(60), *range(1_000_000, 1_000_040), *range(1_010_000, 1_010_020)],
                NUMBERS,
                shares(gold=60, constant=24),
                MATH,
            ),
            Environment("rows", range(6), NUMBERS, shares(gold=12, constant=24)),
        ],
        needs=("reasoning_gym", "sympy"),
        variables={"TASKAPP_MATH_ROWS": str(APPS / "problems.jsonl")},
    ),
    Server(
        "python_sandbox",
        "python_sandbox",
        [Environment("python_sandbox", range(37), PROGRAMS, shares(gold=37, constant=12), turns=4)],
        sandbox=True,
    ),
    Server(
        "adder",
        str(ROOT / "examples" / "adder.py"),
        [
            Environment(
                "adder", range(120), ADDING, shares(random=40, gold=30, constant=10), [{}, {}, {"low": 20, "high": 25}]
            )
        ],
    ),
    Server(
        "capitals",
        str(ROOT / "examples" / "capitals.py"),
        [Environment("capitals", range(2), ["Paris", "It is Tokyo.", "?"], shares(constant=30))],
    ),
    Server(
        "questions",
        "questions",
        [
            Environment(
                "questions", range(6), ["Answer: 85", "So:\nAnswer: 8", "It is 85."], shares(gold=30, constant=20),
                [{}, {"split": "test"}],
            )
        ],
        template=True,
    ),
    Server(
        "safe",
        "multi-turn-game",
        [
            Environment(
                "safe", range(0, 1200, 9), SAFE, shares(random=40, gold=24, constant=6, noop=4),
                [{}, {"positions": 3}, {"positions": 8, "pulls": 4}],
            )
        ],
        template=True,
    ),
    Server(
        "shop",
        "customer-service",
        [
            Environment(
                "shop", range(120), SHOP, shares(random=36, gold=30, constant=6, noop=4, text=12, structured=8),
                [{}, {"patience": 2}],
            )
        ],
        template=True,
    ),
    Server(
        "shop_with_a_model",
        "customer-service",
        [Environment("shop", range(60), SHOP, {"random": 10, "gold": 10, "calls": 10, "ops": 5}, [{}, {"patience": 3}])],
        template=True,
        variables={"TASKAPP_USER_URL": "CUSTOMER/v1", "TASKAPP_USER_MODEL": "customer"},
    ),
    Server(
        "lake",
        "gymnasium",
        [
            Environment(
                "lake", range(0, 1200, 7), LAKE, shares(random=40, gold=24, constant=8), [{}, {"is_slippery": False}]
            )
        ],
        template=True,
        needs=("gymnasium",),
    ),
    Server(
        "walk",
        str(APPS / "walk.py"),
        [
            Environment(
                "walk", range(60), [*LAKE[:0], {"where": {}}, {"step": {"action": 1}}, {"step": {"action": 0}}],
                {"random": 15, "calls": 10, "bad": 5, "ops": 10},
            ),
            Environment("cartpole", range(60), [{"step": {"action": 1}}], {"random": 30, "noop": 5, "constant": 5}),
            Environment(
                "cards", range(60), [{"step": {"action": "hit"}}], {"random": 40, "calls": 10}, [{}, {"natural": True}]
            ),
            Environment("car", range(60), [{"step": {"action": [0.5]}}], {"random": 30, "calls": 10, "text": 10}),
        ],
        needs=("gymnasium",),
    ),
    Server(
        "features",
        str(APPS / "features.py"),
        [
            Environment(
                "visit", range(0, 600, 11), VISIT, shares(random=30, gold=10, constant=10, noop=5, wild=12),
                [{}, {"hours": 1}, {"hours": 8, "closed_days": 2}],
            ),
            Environment("words", range(60), WORDS, shares(random=30, constant=14, noop=4, wild=20)),
            Environment(
                "gallery", range(60), DRAWING, shares(120, random=20, constant=6), PICTURES, [{}, {}, {"images": False}]
            ),
            Environment(
                "counter", range(60), [{"step": {"action": 1}}, {"step": {"action": -2}}],
                {"random": 20, "constant": 6, "calls": 10, "text": 10, "structured": 10},
                [{}, {"length": 3}, {"length": 50}],
            ),
            Environment("endless", range(3), [{"stay": {}}], {"noop": 2, "ops": 8, "calls": 4}, turns=5),
            Environment(
                "sums", range(9), ["42", "4 ", "It is 4.", {"say": {"text": "4"}}, ""],
                {"gold": 20, "constant": 20, "calls": 20, "text": 10, "structured": 10, "bad": 20, "failing": 9},
                [{}, {"split": "test"}],
            ),
            Environment("failing", range(60), FAILED, {"request": 60, "cancelled": 2}),
            Environment("apart", range(60), FAILED, {"noop": 10, "random": 10, "calls": 6, "request": 4}),
        ],
    ),
    Server(
        "judged",
        str(APPS / "judged.py"),
        [Environment("judged", range(10), EXPLAINED, shares(100, constant=30, request=12, text=8, structured=0, bad=8))],
        variables={
            "TASKAPP_JUDGE_URL": "JUDGE/v1",
            "TASKAPP_JUDGE_MODEL": "judge",
            "TASKAPP_STRICT_URL": "JUDGE/v1",
            "TASKAPP_STRICT_MODEL": "strict",
            "TASKAPP_REWARDER_URL": "REWARDER/classify",
            "TASKAPP_REWARDER_MODEL": "rewarder",
        },
        groups=8,
    ),
    Server(
        "looped",
        str(APPS / "looped.py"),
        [Environment("looped", range(60), [*ADDING, *ADDING, "enough", "raise"], shares(100, random=10, text=0, structured=0))],
    ),
)  # fmt: skip

FEATURES_FAILING = (
    "none", "reset_raises", "reset_step", "step_raises", "observation_nan", "reward_nan", "reward_range", "shared",
    "flag", "info", "final_state", "criterion", "measure", "close", "scale", "hang", "policy",
)  # fmt: skip


def _failing(number: int) -> dict[str, Any]:
    """A rollout that breaks; after each place once, requests that are refused before anything runs."""
    refused: Sequence[dict[str, Any]] = (
        {"env": {"env_name": "failing", "seed": 500}},
        {"env": {"env_name": "failing", "seed": -1}},
        {"env": {"env_name": "failing", "seed": True}},
        {"env": {"env_name": "failing", "seed": 2**63}},
        {"env": {"env_name": "nowhere", "seed": 1}},
        {"env": {"env_name": "failing", "seed": 1, "config": {"where": "elsewhere"}}},
        {"env": {"env_name": "failing", "seed": 1, "config": {"wher": "none"}}},
        {"env": {"env_name": "visit", "seed": 1, "config": {"hours": 9}}},
        {"env": {"env_name": "visit", "seed": 1, "config": {"closed_days": 7}}},
        {"env": {"env_name": "visit", "seed": 550, "config": {"split": "train"}}},
        {"env": {"env_name": "visit", "config": {"split": "tset", "index": 1}}},
        {"env": {"env_name": "visit", "config": {"split": "test", "index": 100}}},
        {"env": {"env_name": "sums", "seed": 40}},
        {"env": {"env_name": "sums", "config": {"difficulty": "none such"}}},
        {"policy": {"config": {"policy": "gould"}}},
        {"policy": {"config": {}}},
        {"policy": {"config": {"policy": "random"}}, "env": {"env_name": "sums", "seed": 1}},
        {"policy": {"config": {"policy": "noop"}}, "env": {"env_name": "gallery", "seed": 1}},
        {"policy": {"config": {"policy": "constant"}}},
        {"policy": {"config": {"policy": "constant", "action": {"gone": {}}}}},
        {"policy": {"config": {"policy": "constant", "action": "words"}}},
        {"policy": {"config": {"policy": "replay", "rollout_id": "0" * 32}}},
        {"policy": {"config": {"policy": "noop", "sample": -1}}},
        {"policy": {"config": {"policy": "noop", "temprature": 1, "inference_url": "ftp://elsewhere/v1"}}},
        {"policy": {"config": {"inference_url": 7}}},
        {"policy": {"config": {"inference_url": "http://169.254.169.254/v1", "model": "m"}}},
        {"policy": {"config": {"policy": "noop", "history": "some"}}},
        {"ops": [{"type": "env", "tool": "gone", "args": {}}]},
        {"ops": ["agent", "jump"]},
        {"ops": [{"type": "env", "args": {}}]},
        {"ops": "agent"},
        {"safety": {"max_ops": 0}},
        {"safety": {"max_time_s": 0}},
        {"reward": {"outcome": -1}},
        {"mode": "train"},
        {"run_id": ""},
        {"run_id": "a\u0000b"},
        {"env": {"env_name": "failing", "seed": 1, "config": {"step_rewards": True}}},
        {"policy": {"policy_name": "noop", "output_mode": "songs"}},
        {"policy": {"policy_name": "noop", "config": {"polcy": 1, "temperature": "hot"}}},
    )
    noop = {"config": {"policy": "noop"}}
    if number >= len(FEATURES_FAILING):
        base = {"env": {"env_name": "failing", "seed": 1}, "policy": noop}
        return {**base, **refused[(number - len(FEATURES_FAILING)) % len(refused)]}
    where = FEATURES_FAILING[number]
    config = {"where": "none" if where == "policy" else where}
    policy = {"config": {"policy": "gold"}} if where == "policy" else noop
    safety = {"safety": {"max_time_s": 3}} if where == "hang" else {}
    return {"env": {"env_name": "failing", "seed": number, "config": config}, "policy": policy, **safety}


EVENTS_BEFORE_IT_HANGS = 9
"""started, observed, then called, answered, acted, stepped, and the next three."""


OTHERWISE_IN_WORKERS = "features.failing.cancelled.*,features.failing.request.15"
"""What hangs: a worker process is ended and takes its events along, where a thread is left and its events are stored."""


def _hanging(number: int) -> dict[str, Any]:
    env = {"env_name": "failing", "seed": number, "config": {"where": "hang"}}
    return {"env": env, "policy": {"config": {"policy": "noop"}}}


def _apart(number: int) -> dict[str, Any]:
    """A process that exits, or hangs in a step."""
    config = {"where": ("exit", "hang")[number % 2]}
    return {"env": {"env_name": "apart", "seed": number, "config": config}, "policy": {"config": {"policy": "noop"}}}


def _judged(number: int) -> dict[str, Any]:
    """Judges that do not apply, that break, and that give no verdict or cannot be asked."""
    action = ("skip", "raise", "mumble about it", "refuse to judge")[number % 4]
    return {"env": {"seed": number % 10}, "policy": {"config": {"policy": "constant", "action": action}}}


REQUESTS: Mapping[str, Callable[[int], dict[str, Any]]] = {"failing": _failing, "apart": _apart, "judged": _judged}


def matches(name: str, only: str) -> bool:
    """Whether `only`, patterns as in fnmatch with commas between, takes the rollout of that name."""
    return any(fnmatchcase(name, pattern) for pattern in only.split(","))


def cases(server: Server, address: str, share: int | None = None) -> Iterator[Case]:
    """The rollouts of one server. address: of the model that plays. share: about so many of each environment and policy."""
    for environment in server.environments:
        for policy, count in environment.shares.items():
            wanted = count if share is None else share * (SHARE_OF_REQUESTS if policy == "request" else 1)
            step = max(1, count // max(1, wanted))
            first = sum(map(ord, environment.name + policy)) % step  # so that not all of a share have number 0
            numbers = range(first, count, step)
            for number in numbers:
                name = f"{server.name}.{environment.name}.{policy}.{number}"
                if policy == "cancelled":
                    body = {"run_id": name, "mode": "rl", "ops": [], **_hanging(number)}
                    yield Case(name, body, {"Prefer": "respond-async"}, None, (), EVENTS_BEFORE_IT_HANGS)
                elif policy == "request":
                    body = {"run_id": name, "mode": "rl", "ops": [], **REQUESTS[environment.name](number)}
                    yield Case(name, body, {}, None, ())
                else:
                    yield _case(name, environment, policy, number, address)


def _case(name: str, environment: Environment, policy: str, number: int, address: str) -> Case:
    rng = random.Random(name)
    moves = environment.moves
    scripted = [move for move in moves if isinstance(move, dict)]
    model = policy in PERSONAS or (policy == "ops" and number % 2 == 0)
    config: dict[str, Any] = dict(environment.policies[number % len(environment.policies)])
    if model:
        config |= {"inference_url": f"{address}/v1?cid={name}", "model": "mock"} | _sampling(number)
    elif policy == "ops":
        config |= {"policy": "constant", "action": rng.choice(moves)}
    else:
        config |= {"policy": policy, "sample": number // len(environment.seeds)}
    if policy == "constant":
        config["action"] = moves[number % len(moves)]
    body: dict[str, Any] = {
        "run_id": name if number % 2 else "the same",
        "mode": "rl" if number % 4 < 3 else "eval",
        "env": {
            "env_name": environment.name,
            "seed": environment.seeds[number % len(environment.seeds)],
            "config": dict(environment.configs[number % len(environment.configs)]),
        },
        "policy": {"config": config},
        "ops": [],
        "record": {"return_trace": number % 3 == 0, "trajectories": number % 8 != 7, "logprobs": number % 4 == 2},
    }
    if policy in ("text", "structured"):
        body["policy"]["output_mode"] = policy
    if number % 9 == 4:
        body["env"]["env_id"], body["policy"]["policy_id"] = f"e-{number}", "ümlaut"
    if policy == "ops":
        scripts = [{"type": "env", "tool": tool, "args": args} for move in scripted for tool, args in move.items()]
        body["ops"] = [
            rng.choice(("agent", "env", {"type": "agent"}, *scripts, *scripts)) for _ in range(1 + number % 5)
        ]
    elif model and environment.turns:
        body["ops"] = ["agent"] * environment.turns
    if number % 10 == 8:
        body["safety"] = {"max_ops": 3 + number % 7}
    elif number % 10 == 9:
        body["safety"] = {"max_refusals": 2}
    elif number % 10 == 7 and model:
        body["safety"] = {"max_rollout_tokens": 1500}
    if number % 13 == 12:
        body["reward"] = {"env": 1, "event": 0.5, "outcome": 2}
    if number % 5 == 2:
        body["group_id"] = f"group-{number // 5}"
    if number % 12 == 1:
        body["trace_correlation_id"] = f"corr-{number}"
    headers: dict[str, str] = {}
    if number % 7 == 3:
        headers["Accept"] = "text/event-stream"
    if number % 7 == 5:
        headers["Idempotency-Key"] = name
    if number % 11 == 6:
        headers["Prefer"] = "respond-async"
    return Case(name, body, headers, (policy if policy in PERSONAS else "calls") if model else None, moves)


def _sampling(number: int) -> dict[str, Any]:
    """What is sent along with a conversation, and how much of it is shown again."""
    return (
        {},
        {"history": {"turns": 2}, "temperature": 0.7, "max_tokens": 400},
        {"history": {"tokens": 300}, "keep_reasoning": False, "stop": ["END"]},
        {"tool_choice": "auto", "seed": number, "top_p": 0.9},
        {"extra_body": {"chat_template_kwargs": {"thinking": False}}, "return_token_ids": True, "unknown_member": 1},
    )[number % 5]
