"""Runs the jobs that docs/train/loops.md compares, and writes their curves: python examples/rl/loops.py DIRECTORY

Each job trains the model `tiny` on rooms.py with `taskapp train --local`. `--only async,plain` runs only these jobs. A
job takes one to three minutes of CPU time.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PLAIN: dict[str, dict[str, Any]] = {
    "algorithm": {"type": "online", "method": "policy_gradient", "variety": "grpo"},
    "services": {"task_app": str(HERE / "rooms.py")},
    "model": {"base": "tiny", "trainer_mode": "full", "label": "loops"},
    "rollout": {
        "env_name": "rooms",
        "policy_name": "tiny",
        "max_turns": 1,
        "episodes_per_batch": 128,
        "max_concurrent_rollouts": 64,
    },
    "policy": {"temperature": 1.0, "max_tokens": 4},
    "training": {
        "num_epochs": 1,
        "iterations_per_epoch": 24,
        "max_turns": 1,
        "batch_size": 16,
        "group_size": 8,
        "learning_rate": 5e-4,
        "beta": 0.03,
        "async_semaphore_max": 64,
    },
    "evaluation": {"instances": 24, "every_n_iters": 4, "seeds": list(range(72, 96)), "temperature": 0.0},
    "checkpoints": {"every_n_iters": 24},
}
TWO_ROOMS = {"rollout": {"max_turns": 2, "env_config": {"rooms": 2}}, "training": {"max_turns": 2}}
SLOW = {"rollout": {"env_config": {"seconds": 0.2}}}
MIXTURE = {
    "rollout": {
        "max_turns": 2,
        "environments": [
            {"env_name": "rooms", "weight": 3, "env_config": {"rooms": 2}},
            {"env_name": "keys", "weight": 1, "task_app": str(HERE / "keys.py")},
        ],
    },
    "training": {"max_turns": 2},
}
JOBS: dict[str, list[dict[str, dict[str, Any]]]] = {
    "plain": [],
    "warmup": [{"training": {"learning_rate": 2e-3, "warmup_iterations": 8}}],
    "warmup-without": [{"training": {"learning_rate": 2e-3}}],
    "early": [{"evaluation": {"stop_at": 0.7}}],
    "rooms": [TWO_ROOMS],
    "turn": [TWO_ROOMS, {"training": {"credit": "turn"}}],
    "ahead": [{"training": {"iterations_ahead": 1}}],
    "slow": [SLOW],
    "slow-ahead": [SLOW, {"training": {"iterations_ahead": 1}}],
    "curriculum": [{"curriculum": {"levels": ["easy", "medium", "hard"], "up": 0.8, "down": 0.5}}],
    "mixture": [MIXTURE],
}
"""The changes to the config of each job, by name."""


def config_of(name: str) -> dict[str, dict[str, Any]]:
    """Return the config of a job."""
    made = {section: dict(keys) for section, keys in PLAIN.items()}
    for changes in JOBS[name]:
        for section, keys in changes.items():
            made[section] = {**made.get(section, {}), **keys}
    return {**made, "tags": {"loop": name}}


def written(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {written(each)}" for name, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    return json.dumps(value)


def run(name: str, folder: Path) -> None:
    """Run a job. Its output and results are written to the directory, and its curves to `.taskapp/train` in it."""
    file = folder / f"{name}.toml"
    sections = (
        f"[{section}]\n" + "".join(f"{key} = {written(value)}\n" for key, value in keys.items())
        for section, keys in config_of(name).items()
    )
    file.write_text("\n".join(sections), encoding="utf-8")
    began = time.monotonic()
    command = [sys.executable, "-m", "taskapp_kit", "train", "--local", "--config", str(file.resolve())]
    with (folder / f"{name}.log").open("wb") as log:
        made = subprocess.run(
            [*command, "--fresh", "--json"], check=False, cwd=folder, stdout=subprocess.PIPE, stderr=log
        )
    (folder / f"{name}.json").write_bytes(made.stdout)
    found = json.loads(made.stdout)["results"]
    rewards = {each["iteration"]: round(each["reward"], 3) for each in found["evaluations"]}
    print(
        f"{name}: {time.monotonic() - began:.0f} s, evaluations {rewards}, {found.get('stopped_early') or ''}",
        flush=True,
    )


if __name__ == "__main__":
    chosen = sys.argv[sys.argv.index("--only") + 1].split(",") if "--only" in sys.argv else list(JOBS)
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for job in chosen:
        run(job, target.resolve())
