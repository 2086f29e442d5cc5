"""`taskapp eval`: many rollouts, here or at a server, stored in a directory from which it can be resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from taskapp_kit.cli.options import (
    CACHE,
    ENV_CONFIG,
    ENV_FILES,
    ENVIRONMENT,
    JUDGES,
    LIMITS,
    SERVER_KEY,
    AtOnce,
    json_option,
    policy_options,
)
from taskapp_kit.cli.terminal import example
from taskapp_kit.evaluate.consecutive_failures import MAX_CONSECUTIVE_FAILURES
from taskapp_kit.evaluate.pass_rates import PASS_AT
from taskapp_kit.evaluate.seeds import FIRST_SEEDS


@click.command(
    epilog=example(
        "taskapp eval crafter --policy random --seeds 1000-1299 --workers 2 --out r1",
        "taskapp eval r1",
        "taskapp eval adder.py --model m --inference-url http://127.0.0.1:8100/v1 --seeds 0-99 --repeats 4",
        "taskapp eval adder.py --model small --model large --policy random --seeds 0-99 --max-cost 2",
        "taskapp eval http://127.0.0.1:8001 --policy gold --seeds 0,5,9 --json",
        "taskapp eval --seeds-from r1 --worst 5 --out r2",
    )
)
@click.argument("app", metavar="APP|URL|DIR", required=False)
@click.option(
    "--app-id",
    "--app",
    "app_id",
    metavar="APP",
    help="The same as APP. Beside a URL: the app whose aggregates are computed. Beside a DIR from elsewhere: its app or URL.",
)
@ENVIRONMENT
@click.option("--seeds", metavar="LIST", help=f"1000-1299, or 0,5,9.  [default: the first {FIRST_SEEDS} of the split]")
@click.option(
    "--seeds-from",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="With --failed or --worst N: play those of an evaluation again, with its app and policy unless others are given.",
)
@click.option("--failed", is_flag=True, help="With --seeds-from: those that failed, as `show DIR --failed` lists them.")
@click.option(
    "--worst", type=click.IntRange(1), metavar="N", help="With --seeds-from: those that `show DIR --worst N` lists."
)
@click.option(
    "--split", metavar="NAME", help="The split of the seeds.  [default: as the seeds have it; of rows, the first]"
)
@click.option("--difficulty", multiple=True, metavar="X", help="Only rows of this difficulty; may repeat.")
@click.option("--tags", metavar="A,B", help="Only rows that have all of these tags.")
@click.option("--repeats", type=click.IntRange(1, 10_000), default=1, metavar="K", help="Play each seed so often.")
@policy_options("random, noop, constant", several=True)
@ENV_CONFIG
@LIMITS
@click.option(
    "--concurrency",
    type=AtOnce(),
    default=8,
    metavar="N",
    help="Rollouts at once; auto doubles them until the model says 429 or takes twice as long.",
)
@click.option(
    "--max-consecutive-failures",
    type=click.IntRange(0),
    default=MAX_CONSECUTIVE_FAILURES,
    metavar="N",
    help="Stop after N rollouts that failed because of the same model, judge or rubric, none succeeding; 0 never stops.",
)
@click.option("--max-failures", type=click.IntRange(1), metavar="N", help="Stop when N rollouts of this run failed.")
@click.option(
    "--max-cost",
    type=click.FloatRange(0, min_open=True),
    metavar="USD",
    help="Stop when the models' answers have cost so much; prices are those of models.toml.",
)
@click.option(
    "--max-total-tokens",
    type=click.IntRange(1),
    metavar="N",
    help="Stop when the policies' models have read and written N tokens.",
)
@click.option(
    "--workers", type=click.IntRange(0, 256), metavar="N", help="Processes that play them; 0 for threads.  [default: 0]"
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Keep the results there.")
@click.option("--resume/--no-resume", default=False, help="Go on with what DIR holds, where it holds something.")
@click.option("--retry-failed", is_flag=True, help="With --resume or DIR: play failed rollouts again.")
@click.option(
    "--by", multiple=True, metavar="FIELD", help="Group by difficulty, tag, seed, or a row's field; may repeat."
)
@click.option("--pass-at", type=float, default=PASS_AT, metavar="X", help="A rollout passes from this reward on.")
@click.option(
    "--interval",
    type=click.Choice(["bootstrap", "t"]),
    default="bootstrap",
    help="How the 95 % interval of the reward is computed, over seeds.",
)
@click.option("--store", metavar="URL", help="Where whole rollouts are stored, or none.  [default: DIR/rollouts.db]")
@CACHE
@JUDGES
@SERVER_KEY
@ENV_FILES
@json_option("Print the summary as JSON, and nothing else.")
@click.pass_context
def command(ctx: click.Context, /, app: str | None, **options: Any) -> None:
    """Play many rollouts and summarise them.

    Each finished rollout is a line of DIR/results.jsonl; whatever ends the command, `taskapp eval DIR` goes on from there and
    plays none twice. A failed rollout is counted by where it broke, never averaged. Ctrl-C stops.

    Exit status: 0 no rollout failed, 1 some failed, or it was stopped, 2 the command line is wrong.
    """
    from taskapp_kit.cli import eval_run

    ctx.exit(eval_run.run(ctx, app, options))
