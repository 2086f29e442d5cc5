"""`taskapp mock-model`: an OpenAI-compatible model on this machine, for trying task apps without a real model."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from pathlib import Path

import click

from taskapp_kit import testing
from taskapp_kit.cli.options import ValueKind, json_option, listen_options
from taskapp_kit.cli.output.terminal import complain, console, echo, example, print_json
from taskapp_kit.errors import ConfigError


class Latency(ValueKind):
    """A number or a range of milliseconds, converted to seconds."""

    name = "ms"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | tuple[float, float]:
        """Parse `50` or `20-80`. Fails for any other value."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?))?", str(value))
        if match is None:
            self.fail(f"{value!r} is neither a number of milliseconds (50) nor a range (20-80).", param, ctx)
        low = float(match[1]) / 1000
        return low if match[2] is None else (low, float(match[2]) / 1000)


class JudgeScore(ValueKind):
    """A finite number, or the name of a choice."""

    name = "score"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        """Parse `0.8` or `polite`. Fails for NaN and infinity."""
        try:
            number = float(str(value))
        except ValueError:
            return str(value)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


@click.command(
    epilog=example(
        "taskapp mock-model --port 8100",
        "taskapp mock-model --port 8100 --script answers.jsonl --latency-ms 20-80",
        "taskapp mock-model --port 8100 --fault 429=0.02,500=0.01,reset=0.01 --seed 7",
    )
)
@listen_options(8100)
@click.option(
    "--script", type=click.Path(path_type=Path), metavar="FILE", help="JSON or JSON Lines, one reply per turn."
)
@click.option(
    "--behaviour",
    type=click.Choice(["random", "echo", "bad", "empty", "judge", "obedient-judge"]),
    default="random",
    help="How the model replies without a script.",
)
@click.option("--parallel", type=click.IntRange(1, 16), default=1, metavar="N", help="At most N calls per reply.")
@click.option(
    "--score",
    type=JudgeScore(),
    metavar="S",
    help="The score that the judge behaviors return: a number, or the name of a choice.  [default: 0.5]",
)
@click.option("--seed", type=int, default=0, metavar="S", help="The seed of random replies and faults.")
@click.option(
    "--latency-ms", type=Latency(), default="0", metavar="MS", help="Delay of each reply in ms, e.g. 50 or 20-80."
)
@click.option(
    "--fault", "faults", multiple=True, metavar="LIST", help="Faults, as KIND=PROBABILITY,...; may be repeated."
)
@click.option("--faults", "list_faults", is_flag=True, help="List the kinds of faults and exit.")
@click.option(
    "--model", "models", multiple=True, metavar="NAME", help="An accepted model name; may be repeated.  [default: any]"
)
@click.option("--context-tokens", type=click.IntRange(1), metavar="N", help="Reject prompts of more than N bytes.")
@click.option("--weight-version", metavar="V", help="The weight version to report in each reply.")
@json_option("Print only the address, as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    host: str,
    port: int,
    script: Path | None,
    behaviour: str,
    parallel: int,
    score: float | str | None,
    seed: int,
    latency_ms: float | tuple[float, float],
    faults: tuple[str, ...],
    list_faults: bool,
    models: tuple[str, ...],
    context_tokens: int | None,
    weight_version: str | None,
    as_json: bool,
) -> None:
    """Serve a mock OpenAI-compatible model with configurable replies, delays and faults.

    By default, the model calls the offered tools with arguments that match their schemas. The same conversation always
    gets the same reply. No request is stored and no key is logged. Ctrl-C stops the server.
    """
    if list_faults:
        kinds = {"400 to 599": "this HTTP status; 429 and 503 also send Retry-After", **testing.FAULTS}
        if as_json:
            print_json(kinds)
            return
        for kind, description in kinds.items():
            echo(f"{kind:15} {description}")
        return
    model = testing.MockModel(
        script,
        behaviour=behaviour,
        parallel=parallel,
        score=score,
        seed=seed,
        latency_seconds=latency_ms,
        faults=testing.Faults.parse(",".join(faults), seed=seed),
        models=models,
        context_tokens=context_tokens,
        weight_version=weight_version,
        record=0,
        host=host,
        port=port,
    )

    def announce(running: testing.MockModel) -> None:
        if as_json:
            print_json({"url": running.url, "models": list(models or ("mock",))})
        else:
            _banner(running, (models or ("mock",))[0])

    try:
        model.run(announce)
    except KeyboardInterrupt:
        pass
    except ConfigError as error:  # the address is in use
        complain(error)
        ctx.exit(1)
    echo(f"\nStopped. {_counted(model)}", err=True)


def _banner(model: testing.MockModel, name: str) -> None:
    out = console()
    out.print(f"Mock model at {model.url}\n", soft_wrap=True)
    out.print("Use the model in a command:", soft_wrap=True)
    out.print(f"  taskapp eval APP --model {shlex.quote(name)} --inference-url {model.url}\n", soft_wrap=True)
    out.print("Use the model in policy.config of a request to a task app:", soft_wrap=True)
    out.print(f'  {{"model": "{name}", "inference_url": "{model.url}"}}\n', soft_wrap=True)
    out.print("Call the model directly:", soft_wrap=True)
    body = f'{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello."}}]}}'
    out.print(f"  curl {model.url}/chat/completions -H 'Content-Type: application/json' -d '{body}'", soft_wrap=True)
    out.print(f"  curl {model.root}/mock/stats\n", soft_wrap=True)
    out.print("Ctrl-C stops the server.", soft_wrap=True)


def _counted(model: testing.MockModel) -> str:
    records = model.records
    faults = ", ".join(f"{kind} {count}" for kind, count in Counter(records.faults).most_common())
    return f"Requests: {records.requests}; regular replies: {records.answers}; faults: {faults or 'none'}."
