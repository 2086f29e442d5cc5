"""`taskapp rollout`: one scored episode, here or at a server."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskapp_kit.cli.options import (
    CACHE,
    ENV_CONFIG,
    ENV_FILES,
    EPISODE,
    FULL,
    JUDGES,
    LIMITS,
    SERVER_KEY,
    WIDTH,
    is_url,
    json_option,
    policy_options,
)
from taskapp_kit.cli.policy_options import chosen_policy
from taskapp_kit.cli.terminal import console, example, print_json
from taskapp_kit.errors import RequestError
from taskapp_kit.system.private_files import write_private

if TYPE_CHECKING:
    from taskapp_kit.cli.conversation_output import RolloutLines
    from taskapp_kit.config import Settings
    from taskapp_kit.contract.result import Rollout


@click.command(
    epilog=example(
        "taskapp rollout adder.py --policy gold --seed 3",
        """taskapp rollout adder.py --action '{"add": {"amount": 3}}' --config '{"high": 30}'""",
        "taskapp rollout adder.py --model m --inference-url http://127.0.0.1:8100/v1",
        "taskapp rollout http://127.0.0.1:8001 --policy random --json",
    )
)
@click.argument("app", metavar="APP|URL")
@EPISODE
@policy_options("random, noop, constant, replay")
@CACHE
@ENV_CONFIG
@LIMITS
@JUDGES
@SERVER_KEY
@ENV_FILES
@click.option("--store", metavar="URL", help="Keep the rollout: sqlite:///PATH.  [default: none]")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write the answer as JSON."
)
@WIDTH
@FULL
@json_option("Print the answer of POST /rollout, and nothing else.")
def command(
    app: str,
    environment: str | None,
    seed: int | None,
    split: str | None,
    output_mode: str,
    cache: Path | None,
    env_config: dict[str, Any] | None,
    ops: int | None,
    max_time_seconds: float,
    judges: str,
    max_refusals: int | None,
    max_rollout_tokens: int | None,
    key: str | None,
    env_files: tuple[str, ...],
    store: str | None,
    out: Path | None,
    width: int | None,
    full: bool,
    as_json: bool,
    **policy: Any,
) -> None:
    """Play and score one episode, in this process or (with a URL) at a server.

    With --inference-url a language model plays; with --model alone one that models.toml names. Otherwise, without
    --policy, the random policy plays; with --action the constant one.
    """
    from taskapp_kit.cli.conversation_output import RolloutLines
    from taskapp_kit.cli.local_app import episode
    from taskapp_kit.cli.rollout_output import print_result, print_steps
    from taskapp_kit.config import load

    settings = load({"store": store, "cache": cache}, env_files=env_files)
    given, note = chosen_policy(settings, app=app, **policy)
    body: dict[str, Any] = {
        "run_id": f"cli-{uuid.uuid4().hex[:12]}",
        "env": episode(environment, seed, env_config, split),
        "policy": {"policy_name": given.get("policy"), "config": given, "output_mode": output_mode},
        "ops": ["agent"] * (ops or 0),
        "safety": {"max_time_s": max_time_seconds},
        "mode": "eval",
    }
    limits = {"max_refusals": max_refusals, "max_rollout_tokens": max_rollout_tokens}
    body["safety"] |= {name: limit for name, limit in limits.items() if limit is not None}
    _writable(out)
    if is_url(app):
        if store is not None:
            raise click.UsageError("--store keeps local rollouts; a server has a store of its own.")
        if judges == "skip":
            raise click.UsageError("--judges skip is for an app in this process; a server asks its own judges.")
        answer = _remote(app, key or settings.environment_api_key, body, max_time_seconds)
        if not as_json:
            print_steps(answer, width=width, full=full)
    else:
        lines = None if as_json else RolloutLines(width=width, full=full)
        answer = _local(app, settings, body, skip_judges=judges == "skip", lines=lines, hint=note)
    if out is not None:
        import orjson

        write_private(out, orjson.dumps(answer, option=orjson.OPT_INDENT_2))
    if as_json:
        print_json(answer)
        return
    print_result(answer, policy_note=note, width=width, full=full)
    if out is not None:
        console().print(f"\nWritten to {out}")


def _writable(out: Path | None) -> None:
    """Before a long rollout, not after."""
    if out is not None and not out.parent.is_dir():
        raise click.BadParameter(f"there is no directory {out.parent}.", param_hint="--out")


def _remote(url: str, key: str | None, body: dict[str, Any], seconds: float) -> dict[str, Any]:
    from pydantic import ValidationError

    from taskapp_kit.cli.remote_task_app import Remote, RemoteError
    from taskapp_kit.contract.wire import RolloutResponse

    answer = Remote(url, key).rollout(body, timeout_seconds=seconds + 30.0)
    try:
        RolloutResponse.model_validate(answer)
    except ValidationError as error:
        field = ".".join(map(str, error.errors()[0]["loc"]))
        raise RemoteError(
            f"{url} answered with something that is no rollout as taskapp-kit gives it ({field}).",
            hint="Is that the address of a task app served by taskapp-kit?",
        ) from None
    return answer


def _local(
    app: str, settings: Settings, body: dict[str, Any], *, skip_judges: bool, lines: RolloutLines | None, hint: str
) -> dict[str, Any]:
    import asyncio

    from taskapp_kit.cli.local_app import failure_shown, local_service, open_app
    from taskapp_kit.contract.wire import RolloutRequest
    from taskapp_kit.rollout.response import response_body

    found = open_app(app, settings)
    request = RolloutRequest.model_validate(body)

    async def played() -> Rollout:
        limits = {"max_time_seconds": request.safety.max_time_s, "max_calls": settings.max_calls_per_answer}
        async with local_service(found, settings, store=settings.store, skip_judges=skip_judges, **limits) as service:
            return await service.rollout(request, listener=None if lines is None else lines.show)

    try:
        with failure_shown():
            rollout = asyncio.run(played())
    except RequestError as error:
        if error.code == "policy_unavailable" and hint:
            raise RequestError(
                error.message, code=error.code, hint=f"Give another --policy (`taskapp info {app}` lists them)."
            ) from error
        raise
    return response_body(rollout, inline_image_bytes=sys.maxsize)
