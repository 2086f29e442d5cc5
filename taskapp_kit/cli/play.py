"""`taskapp play`: a person plays an episode in the terminal."""

from __future__ import annotations

from typing import Any

import click

from taskapp_kit.cli.options import ENV_CONFIG, ENV_FILES, EPISODE, FULL, JUDGES, WIDTH, episode
from taskapp_kit.cli.rollout_output import print_result
from taskapp_kit.cli.terminal import example
from taskapp_kit.config import load


@click.command(
    epilog=example("taskapp play crafter --seed 7", "printf '3\\n3\\n2\\n' | taskapp play adder.py --seed 3")
)
@click.argument("app")
@EPISODE
@ENV_CONFIG
@JUDGES
@ENV_FILES
@WIDTH
@FULL
def command(
    app: str,
    environment: str | None,
    seed: int | None,
    split: str | None,
    env_config: dict[str, Any] | None,
    judges: str,
    env_files: tuple[str, ...],
    width: int | None,
    full: bool,
) -> None:
    """Play an episode yourself; the scorecard stands at the end.

    Type a tool and its arguments (add {"amount": 2}, or add 2); where there is one tool its arguments are enough (2),
    and a list takes words (move_left do do). `help` shows the tools, `quit` leaves. Lines may also come from a pipe.
    """
    from taskapp_kit.cli.interactive import play_in_terminal

    settings = load(env_files=env_files)
    selection = episode(environment, seed, env_config, split)
    answer = play_in_terminal(app, settings, selection, skip_judges=judges == "skip", width=width)
    print_result(answer, width=width, full=full)
