"""`taskapp rollout`: play and score one episode, in this process or on a server."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import orjson
import pydantic

from taskapp_kit import client
from taskapp_kit.cli import local_app, remote_task_app
from taskapp_kit.cli import policy_options as policies
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
    episode,
    is_url,
    json_option,
    policy_options,
)
from taskapp_kit.cli.output import conversation_output
from taskapp_kit.cli.output.rollout_output import print_result, print_steps
from taskapp_kit.cli.output.terminal import console, example, print_json, shown_from
from taskapp_kit.config import Settings, load
from taskapp_kit.errors import RequestError, TaskAppError
from taskapp_kit.records import rollout as results
from taskapp_kit.records.events import Event
from taskapp_kit.rollout import response as responses
from taskapp_kit.system.private_files import write_private
from taskapp_kit.wire import rollout as wire

SIGN_OF_LIFE_SECONDS = 10.0
"""How long to wait for a server's first response before sending the rollout request."""


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
@click.option("--store", metavar="URL", help="Where to store the rollout: sqlite:///PATH.  [default: none]")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write the response to FILE."
)
@WIDTH
@FULL
@json_option("Print only the response of POST /rollout.")
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
    """Play and score one episode, in this process or on a running server.

    With --inference-url, the policy is a language model. With --model alone, the model is looked up in models.toml. If
    neither a model nor --policy is given, the policy is `constant` with --action, and `random` otherwise.
    """
    settings = load({"store": store, "cache": cache}, env_files=env_files)
    config, note = policies.chosen_policy(settings, app=app, **policy)
    body: dict[str, Any] = {
        "run_id": f"cli-{uuid.uuid4().hex[:12]}",
        "env": episode(environment, seed, env_config, split),
        "policy": {"policy_name": config.get("policy"), "config": config, "output_mode": output_mode},
        "ops": ["agent"] * (ops or 0),
        "safety": {"max_time_s": max_time_seconds},
        "mode": "eval",
    }
    limits = {"max_refusals": max_refusals, "max_rollout_tokens": max_rollout_tokens}
    body["safety"] |= {name: limit for name, limit in limits.items() if limit is not None}
    if out is not None and not out.parent.is_dir():  # before the rollout, which may take long
        raise click.BadParameter(f"the directory {out.parent} does not exist.", param_hint="--out")
    if is_url(app):
        if store is not None:
            raise click.UsageError("--store applies only to an app in this process. Omit it for a server.")
        if judges == "skip":
            raise click.UsageError("--judges skip applies only to an app in this process. Omit it for a server.")
        answer = _remote(app, key or settings.environment_api_key, body, max_time_seconds)
        if not as_json:
            with shown_from(app):
                print_steps(answer, width=width, full=full)
    else:
        listener = None if as_json else conversation_output.RolloutLines(width=width, full=full).show
        answer = _local(app, settings, body, listener, skip_judges=judges == "skip", policy_note=note)
    if out is not None:
        write_private(out, orjson.dumps(answer, option=orjson.OPT_INDENT_2))
    if as_json:
        print_json(answer)
        return
    with shown_from(app) if is_url(app) else nullcontext():
        print_result(answer, policy_note=note, width=width, full=full)
    if out is not None:
        console().print(f"\nWritten to {out}")


def _remote(url: str, key: str | None, body: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Play a rollout on a server and return the response body.

    The redirects that a gateway sends while the rollout is running are followed.

    seconds: The rollout's deadline. Raises TaskAppError if a request fails or the response is not a rollout, JobTimeout if
    the response takes too long, and ConfigError if the URL is invalid.
    """
    server = client.SyncTaskAppClient(url, key)
    remote_task_app.asked(server.get, "/", retries=0, seconds=SIGN_OF_LIFE_SECONDS)
    answer = remote_task_app.asked(server.rollout, body, timeout_seconds=seconds + 30.0)
    try:
        wire.RolloutResponse.model_validate(answer)
    except pydantic.ValidationError as error:
        field = ".".join(map(str, error.errors()[0]["loc"]))
        raise TaskAppError(
            f"The response of {url} is not a rollout of taskapp-kit, because `{field}` is missing or invalid.",
            hint="Check that this is the address of a task app served by taskapp-kit.",
        ) from None
    return answer


def _local(
    app: str,
    settings: Settings,
    body: dict[str, Any],
    listener: Callable[[Event], None] | None,
    *,
    skip_judges: bool,
    policy_note: str,
) -> dict[str, Any]:
    """Play a rollout in this process and return its response body.

    `listener` is called with each event, in the environment's thread. `policy_note` is not empty if a default policy was
    chosen. If the default policy cannot play, the error suggests --policy.

    Raises DiscoveryError and DeclarationError if the app cannot be loaded, RequestError if the request is invalid,
    RolloutFailed if the rollout fails, Unavailable if a judge has no model, and StoreError if the store cannot be
    opened.
    """
    target, request = local_app.open_app(app, settings), wire.RolloutRequest.model_validate(body)

    async def played() -> results.Rollout:
        async with local_app.local_service(
            target,
            settings,
            store=settings.store,
            skip_judges=skip_judges,
            max_time_seconds=request.safety.max_time_s,
            max_calls=settings.max_calls_per_answer,
        ) as service:
            return await service.rollout(request, listener=listener)

    try:
        with local_app.failure_shown():
            rollout = asyncio.run(played())
    except RequestError as error:
        if error.code == "policy_unavailable" and policy_note:
            raise RequestError(
                error.message, code=error.code, hint=f"Pass --policy. `taskapp info {app}` lists the policies."
            ) from error
        raise
    return responses.response_body(rollout, inline_image_bytes=sys.maxsize)
