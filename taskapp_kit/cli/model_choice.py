"""The model that `--model` and `--inference-url` mean, as members of `policy.config`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskapp_kit.errors import ConfigError

if TYPE_CHECKING:
    from taskapp_kit.config import Settings


BACKENDS_OWN = ("ft:", "rl:")
"""What the names of models begin with that a backend finetuned or trained, and serves itself."""
BACKENDS_MODELS = "/inference/v1"


def chosen_model(settings: Settings, model: str | None, url: str | None) -> dict[str, Any]:
    """The members of policy.config for a model at an address, or for one that models.toml names.

    A name that begins with `ft:` or `rl:`, and that models.toml does not have, is asked for at the backend. Raises
    ConfigError.
    """
    if url is not None:
        return {"inference_url": url, **({} if model is None else {"model": model})}
    from taskapp_kit.policy.model_names import ModelNames

    names = ModelNames.of(settings)
    if str(model).startswith(BACKENDS_OWN) and model not in names.models:
        return _of_the_backend(settings, str(model))
    named = names.resolve(str(model))
    key = None if named.key is None else settings.variable(named.key)
    if named.key is not None and key is None:
        raise ConfigError(
            f"The model {named.name!r} needs a key, and {named.key} is not set.",
            hint=f"Set {named.key} in your environment.",
        )
    return {"inference_url": named.url, "model": named.model, **({} if key is None else {"api_key": key})}


def _of_the_backend(settings: Settings, model: str) -> dict[str, Any]:
    from taskapp_kit.cli.job_settings import BACKEND_VARIABLES, SYNTH_KEY
    from taskapp_kit.client.backend import api_base

    backend = next((value for name in BACKEND_VARIABLES if (value := settings.variable(name))), None)
    if backend is None:
        raise ConfigError(
            f"The model {model!r} is a backend's own, and no backend is named.",
            hint=f"Set {BACKEND_VARIABLES[0]} and {SYNTH_KEY}; or give --inference-url, or an address in models.toml.",
        )
    key = settings.variable(SYNTH_KEY)
    return {
        "inference_url": f"{api_base(backend)}{BACKENDS_MODELS}",
        "model": model,
        **({} if key is None else {"api_key": key}),
    }
