"""The request that creates an RL job, in the format of SDK 0.3.9.

It contains the complete config under `data.config`.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from taskapp_kit.config import process_variable
from taskapp_kit.errors import ConfigError, JobConfigError
from taskapp_kit.jobs.client.backend import api_base
from taskapp_kit.jobs.client.config.cross_section_checks import models_named, with_whole_topology
from taskapp_kit.jobs.client.config.review import Document, is_smoke_test
from taskapp_kit.jobs.client.config.rl_config import RlConfig
from taskapp_kit.net.addresses import read_address

Json = dict[str, Any]

SOURCE_TAG = "train-cli"
"""The tag that the SDK adds to every job. `[tags]` can replace it."""
REFERENCE = "none"
TASK_URL_HINT = "Pass task_app_url, set TASK_APP_URL, or add task_url to [services]."


def build_rl_payload(
    config: RlConfig,
    *,
    task_app_url: str | None,
    backend_url: str,
    model: str | None = None,
    trainer_id: str | None = None,
    allow_experimental: bool | None = None,
) -> Json:
    """Return the body of `POST {backend}/rl/jobs`. `config` is not changed.

    `data.config` is the TOML document with derived values added (see `settled`).

    Args:
        config: The job's config.
        task_app_url: Defaults to TASK_APP_URL, then the config's `services.task_url`.
        backend_url: The backend's address, with or without `/api`. Sent in `metadata`.
        model: Replaces the config's model. An id that begins with `ft:` or `rl:` is a fine-tuned `source`.
        trainer_id: The trainer that runs the job. Sent at the top level of the body.
        allow_experimental: Sent in `metadata` unless None.

    Raises:
        JobConfigError: An address or the model's id cannot be used.
    """
    if model is not None:
        if not model.strip():
            raise JobConfigError("The model's id is empty.", hint="Pass an id such as Qwen/Qwen3-4B, or None.")
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
    """Return a copy of a valid document with the keys that trainers expect, and without `[smoke]`.

    The keys of `[topology]` and `compute.topology` are copied to each other, and the model is copied to `model` from
    the section that names it. `reference.placement` and the topology's `reference_placement` default to "none". In the
    smoke-test form, `training.batch_size` and `training.group_size` default to the values in `trainer`, and
    `rollout.max_turns` defaults to `env.max_steps_per_episode`. The result is a valid config of the same form, and the
    function is idempotent.
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
    for table in (topology, (compute or {}).get("topology")):
        if table is not None:
            table.setdefault("reference_placement", REFERENCE)
    if topology is not None:
        document.setdefault("compute", {}).setdefault("topology", deepcopy(topology))
    document.setdefault("reference", {}).setdefault("placement", REFERENCE)
    return document


def _fill(document: Json, section: str, defaults: Json, keys: tuple[str, ...]) -> None:
    """Copy the given keys from `defaults` to the section, unless the section already has them."""
    for key in keys:
        if defaults.get(key) is not None:
            document.setdefault(section, {}).setdefault(key, defaults[key])


def _task_url(given: str | None, config: RlConfig) -> str:
    addresses = {
        "task_app_url": (given or "").strip(),
        "TASK_APP_URL": process_variable("TASK_APP_URL"),
        "[services] task_url": config.task_url,
    }
    for source, url in addresses.items():
        if url:
            try:
                return read_address(url)
            except ConfigError as error:
                raise JobConfigError(
                    f"The task app's address ({source}) cannot be used. {error.message}", hint=error.hint
                ) from None
    raise JobConfigError("The task app's address is not set.", hint=TASK_URL_HINT)


def _backend(url: str) -> str:
    try:
        return api_base(url)
    except ConfigError as error:
        raise JobConfigError(f"The backend's address cannot be used. {error.message}", hint=error.hint) from None
