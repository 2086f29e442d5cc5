"""Gymnasium: `make(URL)` of taskapp_kit's adapter, `check_env`, and a vector environment."""

from __future__ import annotations

import json
import os
import warnings
from typing import Any

import gymnasium
from client_program import Episode, Server, run
from gymnasium.utils.env_checker import check_env

from taskapp_kit.interop.gymnasium.env import ANY_APP, make

VARIABLE = "MATRIX_KEY_"


def opened(server: Server, environment: str) -> Any:
    variable = VARIABLE + str(hash(server.key) % 1000)  # a key as an argument would be in the spec
    os.environ[variable] = server.key
    return make(server.url, environment, actions="text", key_variable=variable)


def play(server: Server, episode: Episode) -> None:
    env = opened(server, episode.environment)
    try:
        observation, _ = env.reset(seed=episode.seed)
        episode.observed(observation)
        for tool, args in episode.actions:
            observation, reward, terminated, truncated, info = env.step(json.dumps({"tool": tool, "args": args}))
            episode.stepped(observation, reward, terminated or truncated, info.get("refused"))
            episode.more(**(info.get("result") or {}))
            if episode.done:
                return
    finally:
        env.close()


def checked(server: Server, environment: str) -> dict[str, Any]:
    """Gymnasium's own check, of the environment in this process, with warnings as errors."""
    env = make(server.app, environment)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_env(env.unwrapped)
            again = env.spec.make()
            same = env.reset(seed=1)[0] == again.reset(seed=1)[0]
            again.close()
    finally:
        env.close()
    return {"spec": env.spec.id, "same": same}


def vector(server: Server, environment: str) -> dict[str, Any]:
    """A vector of four environments, one of which fails in each step; the others continue."""
    os.environ["ENVIRONMENT_API_KEY"] = server.key
    options = {"app": server.url, "environment": environment, "on_failure": "truncate", "actions": "text"}
    envs = gymnasium.make_vec(ANY_APP, num_envs=4, **options)
    try:
        first, _ = envs.reset(seed=3)
        _, rewards, _, truncated, infos = envs.step([json.dumps({"tool": "go", "args": {}})] * 4)
        return {
            "first": list(first),
            "rewards": [str(reward) for reward in rewards],
            "truncated": [bool(item) for item in truncated],
            "boundaries": [str(item) for item in infos["failure"]["boundary"]],
        }
    finally:
        envs.close()


if __name__ == "__main__":
    run("gymnasium", play, calls={"check_env": checked, "vector": vector})
