"""The request that creates an RL job, in the form of SDK 0.3.9: it has the whole TOML, under `data.config`."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from taskapp_kit.config import process_variable
from taskapp_kit.errors import ConfigError, JobConfigError
from taskapp_kit.jobs.client.backend import api_base
from taskapp_kit.jobs.client.config.consistency import models_named, with_whole_topology
from taskapp_kit.jobs.client.config.review import Document, is_smoke_test
from taskapp_kit.jobs.client.config.rl_config import RlConfig
from taskapp_kit.net.addresses import read_address

Json = dict[str, Any]

SOURCE_TAG = "train-cli"
"""The tag of every job of the SDK; `[tags]` adds to it, and may replace it."""
REFERENCE = "none"
TASK_URL_HINT = "Give task_app_url, set TASK_APP_URL, or write task_url below [services]."


def build_rl_payload(
    config: RlConfig,
    *,
    task_app_url: str | None,
    backend_url: str,
    model: str | None = None,
    trainer_id: str | None = None,
    allow_experimental: bool | None = None,
) -> Json:
    """Return the body of `POST {backend}/rl/jobs`; `config` is not changed.

    `data.config` is the TOML with derived values filled in: see `settled`.

    Args:
        config: The job's config.
        task_app_url: None for TASK_APP_URL, else the config's `services.task_url`.
        backend_url: With or without `/api`; sent in `metadata`.
        model: An id that replaces the config's; one that begins with `ft:` or `rl:` is a finetuned `source`.
        trainer_id: Sent at the top level.
        allow_experimental: Sent in `metadata`; None is not sent.

    Raises:
        JobConfigError: An address or the model's id cannot be used.
    """
    if model is not None:
        if not model.strip():
            raise JobConfigError("The model's id is empty.", hint="Give one such as Qwen/Qwen3-4B, or none.")
        config = config.with_overrides({"model": model.strip()})
    url = _task_url(task_app_url, config)
    document = settled(config.document)
    document["services"] = {**document.get("services", {}), "task_url": url}
    _, kind, name = models_named(config.document)[0]
    payload: Json = {
        "job_type": "rl",
        "compute": deepcopy(document.get("compute", {})),
        "data": {
            "endpoint_base_url": url,
            "config": document,
            "model" if kind == "source" else "base_model": name,
        },
        "tags": {"source": SOURCE_TAG, **deepcopy(document.get("tags", {}))},
        "metadata": {"backend_base_url": _backend(backend_url)},
    }
    if trainer_id is not None and trainer_id.strip():
        payload["trainer_id"] = trainer_id.strip()
    if allow_experimental is not None:
        payload["metadata"]["allow_experimental"] = allow_experimental
    return payload


def settled(written: Document) -> Json:
    """Return a copy of a valid document in the form that trainers read; only `[smoke]` is left out.

    `[topology]` and `compute.topology` get the keys of both, the model to `model` (from any section that names it);
    `reference.placement` and the topology's `reference_placement` default to "none". In the smoke-test form,
    `trainer.batch_size` and `group_size` become training's, and `env.max_steps_per_episode` becomes `rollout.max_turns`,
    unless those are given. The result is a valid config of the same form, and the function is idempotent.
    """
    document: Json = deepcopy(with_whole_topology(written))
    document.pop("smoke", None)
    if is_smoke_test(written):
        _fill(document, "training", document.get("trainer", {}), ("batch_size", "group_size"))
        steps = document.get("env", {}).get("max_steps_per_episode")
        _fill(document, "rollout", {"max_turns": steps}, ("max_turns",))
    _, kind, name = models_named(written)[0]
    _fill(document, "model", document.get("policy", {}), ("trainer_mode", "label"))
    document.setdefault("model", {})[kind] = name
    compute = document.get("compute")
    topology = document.get("topology")
    for given in (topology, (compute or {}).get("topology")):
        if given is not None:
            given.setdefault("reference_placement", REFERENCE)
    if topology is not None:
        document.setdefault("compute", {}).setdefault("topology", deepcopy(topology))
    document.setdefault("reference", {}).setdefault("placement", REFERENCE)
    return document


def _fill(document: Json, section: str, given: Json, keys: tuple[str, ...]) -> None:
    """Copy these keys of `given` into the section, where it does not have them itself."""
    for key in keys:
        if given.get(key) is not None:
            document.setdefault(section, {}).setdefault(key, given[key])


def _task_url(given: str | None, config: RlConfig) -> str:
    named = (
        ("task_app_url", (given or "").strip()),
        ("TASK_APP_URL", process_variable("TASK_APP_URL")),
        ("[services] task_url", config.task_url),
    )
    for source, url in named:
        if url:
            try:
                return read_address(url)
            except ConfigError as error:
                raise JobConfigError(
                    f"The task app's address ({source}) cannot be used. {error.message}", hint=error.hint
                ) from None
    raise JobConfigError("No task app is named.", hint=TASK_URL_HINT)


def _backend(url: str) -> str:
    try:
        return api_base(url)
    except ConfigError as error:
        raise JobConfigError(f"The backend's address cannot be used. {error.message}", hint=error.hint) from None
