"""What `taskapp replay` does: opens the store and the app, and replays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from taskapp_kit.cli.local_app import local_service, open_app, show_traceback
from taskapp_kit.cli.options import command_with, episode
from taskapp_kit.cli.show_run import whole_id
from taskapp_kit.config import Settings, load
from taskapp_kit.contract.protocols import Store
from taskapp_kit.contract.wire import RolloutRequest
from taskapp_kit.declare.app import TaskApp
from taskapp_kit.errors import ConfigError, RolloutFailed
from taskapp_kit.evaluate.directory import CONFIG, read_config
from taskapp_kit.evaluate.own_directories import check_own
from taskapp_kit.evaluate.replay import Compared, replay_all
from taskapp_kit.evaluate.source import open_source
from taskapp_kit.store import open_store


def is_evaluation(reference: str) -> bool:
    """Whether it is the directory of an evaluation."""
    return (Path(reference) / CONFIG).is_file()


def source_of(source: str, app: str | None) -> tuple[str, str | None]:
    """The address of the store, and the app: the given one, else that of the user's own evaluation. Raises ConfigError."""
    path = Path(source)
    if not path.is_dir():
        return source, app
    config = read_config(path)
    database = path / "rollouts.db"
    if not database.is_file():
        raise ConfigError(
            f"{path} has no rollouts.db: its rollouts are stored elsewhere, or nowhere.",
            hint="Give their store: --from sqlite:///PATH or postgresql://…",
        )
    reference = config.get("app_reference")
    if app is None and isinstance(reference, str):
        check_own(path, config, command_with(["--app", reference]))
        app = reference
    return str(database), app


def replay(
    reference: str,
    source: str,
    target: str | None,
    rollout_id: str | None,
    given: dict[str, Any],
    *,
    show: Callable[[Compared], None] | None,
) -> list[Compared]:
    """Replay one rollout of a store, or all of the app; show is called after each.

    A single rollout whose replay fails shows the traceback, unless show is None.

    reference: the APP argument. source, target: addresses of stores. given: what the rollout's request must agree with.
    Raises DiscoveryError, DeclarationError, RequestError (`replay_differs`), StoreError, ConfigError, UsageError.
    """
    settings = load()
    return asyncio.run(_replayed(open_app(reference, settings), settings, source, target, rollout_id, given, show))


async def _replayed(
    app: TaskApp,
    settings: Settings,
    source: str,
    target: str | None,
    rollout_id: str | None,
    given: dict[str, Any],
    show: Callable[[Compared], None] | None,
) -> list[Compared]:
    def traced(failed: RolloutFailed) -> None:
        if rollout_id is not None and show is not None:
            show_traceback(failed.__cause__)

    if rollout_id is not None:
        rows = open_source(source)
        try:
            rollout_id = await whole_id(rows, rollout_id)
        finally:
            await rows.close()
    stored_in = open_store(source, create=False)
    compared = []
    try:
        async with local_service(app, settings, store=target, skip_judges=True) as service:
            _not_the_same_place(stored_in, service.store)
            async for one in replay_all(service, stored_in, rollout_id, lambda name: _request(name, given), traced):
                compared.append(one)
                if show is not None:
                    show(one)
    finally:
        await stored_in.close()
    return compared


def _not_the_same_place(source: Store, target: Store | None) -> None:
    place = getattr(source, "place", None)
    if target is not None and place not in (None, "memory") and place == getattr(target, "place", None):
        raise click.UsageError("--store is the store that --from reads; a replay adds nothing to what it looks at.")


def _request(rollout_id: str, given: dict[str, Any]) -> RolloutRequest:
    policy = {"policy": "replay", "rollout_id": rollout_id}
    if given["sample"] is not None:
        policy["sample"] = given["sample"]
    env = episode(given["environment"], given["seed"], given["env_config"], given["split"])
    return RolloutRequest.model_validate(
        {"run_id": f"replay-{rollout_id}"[:512], "env": env, "policy": {"config": policy}, "ops": [], "mode": "eval"}
    )
