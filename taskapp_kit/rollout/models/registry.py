"""`models.toml`: names of models with their addresses, keys and prices.

[small]
url = "https://api.together.xyz/v1"
model = "Qwen/Qwen3-8B"               # the endpoint's name for it; the table's name when absent
key = "TOGETHER_API_KEY"              # the variable that holds the key; the host's own when absent
usd_per_million_input_tokens = 0.18
usd_per_million_cached_tokens = 0.09  # input from the endpoint's prefix cache; the input price when absent
usd_per_million_output_tokens = 0.18
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskapp_kit.config import Settings
from taskapp_kit.config.values import SERVER_ONLY
from taskapp_kit.errors import ConfigError, closest
from taskapp_kit.net.addresses import NotAnAddress, read_url
from taskapp_kit.wire.inference_url import complete_url

MODELS_FILE = "models.toml"
_PRICES = ("usd_per_million_input_tokens", "usd_per_million_cached_tokens", "usd_per_million_output_tokens")
_MEMBERS = ("url", "model", "key", *_PRICES)


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens. cached: input from the endpoint's prefix cache."""

    input: float
    cached: float
    output: float

    def cost(self, usage: Mapping[str, float]) -> float:
        """The price in US dollars of a call with this usage."""
        asked, cached = usage.get("prompt_tokens", 0.0), usage.get("cached_tokens", 0.0)
        # more cached tokens than tokens would make the price negative
        cached = min(cached, asked)
        answered = usage.get("completion_tokens", 0.0)
        return ((asked - cached) * self.input + cached * self.cached + answered * self.output) / 1e6


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A table of `models.toml`. url: unchanged. key: a variable's name. price: None when there is none."""

    name: str
    url: str
    model: str
    key: str | None = None
    price: Price | None = None


class ModelNames:
    """The tables of one file, by name."""

    def __init__(self, models: Mapping[str, NamedModel] | None = None, file: Path | None = None) -> None:
        self.models = dict(models or {})
        self.file = file
        self._prices: dict[tuple[str, str], Price] = {}
        for model in self.models.values():
            if model.price is not None:
                self._prices[_address(model.url), model.model] = model.price

    @classmethod
    def of(cls, settings: Settings, folder: Path | None = None) -> ModelNames:
        """Reads `settings.models_file`, else `models.toml` in `folder` (default: the working directory) if it exists.

        Raises ConfigError.
        """
        if settings.models_file is not None:
            return cls.read(settings.models_file)
        file = (folder or Path.cwd()) / MODELS_FILE
        return cls.read(file) if file.is_file() else cls()

    @classmethod
    def read(cls, file: Path) -> ModelNames:
        """Reads the tables of a file. Raises ConfigError naming the table; the message contains no value of it."""
        try:
            # editors on Windows write a byte order mark
            content = tomllib.loads(file.read_text("utf-8-sig"))
        except OSError as error:
            raise ConfigError(
                f"{file} cannot be read: {error.strerror}.", hint="Name a file of models in TASKAPP_MODELS_FILE."
            ) from None
        # tomllib recurses into nested arrays
        except (ValueError, RecursionError):
            raise ConfigError(
                f"{file} is not TOML in UTF-8.", hint='Write [NAME] and below it url = "https://…/v1".'
            ) from None
        return cls({name: _model(file, name, table) for name, table in content.items()}, file)

    def resolve(self, name: str) -> NamedModel:
        """The model with this name. Raises ConfigError, with a suggestion for a misspelt name."""
        found = self.models.get(name)
        if found is not None:
            return found
        if self.file is None:
            raise ConfigError(
                f"The model {name!r} has no address: there is no {MODELS_FILE} here.",
                hint=f'Give --inference-url, or write {MODELS_FILE} with [{name}] and url = "…".',
            )
        close = closest(name, self.models)
        known = f"It has {', '.join(sorted(self.models)) or 'none'}."
        raise ConfigError(f"{self.file} has no model {name!r}.", hint=f"Did you mean {close!r}?" if close else known)

    def price(self, url: str, model: str | None) -> Price | None:
        """The price of a model at this complete address; None when it is unknown."""
        return self._prices.get((_address(url), model)) if model is not None and self._prices else None


def _address(url: str) -> str:
    """The form in which addresses are compared: completed, without the query."""
    # a rollout's address has a path and a query that the file's has not
    return read_url(complete_url(url)).url.partition("?")[0]


def _model(file: Path, name: str, table: Any) -> NamedModel:
    def wrong(what: str, hint: str) -> ConfigError:
        return ConfigError(f"{file}: [{name}] {what}.", hint=hint)

    if not isinstance(table, dict):
        raise wrong("is not a table", f'Write [{name}] and below it url = "https://…/v1".')
    for member in table:
        if member not in _MEMBERS:
            close = closest(member, _MEMBERS)
            raise wrong(
                f"has the unknown member {member!r}",
                f"Did you mean {close}?" if close else f"Known: {', '.join(_MEMBERS)}.",
            )
    url, model, key = table.get("url"), table.get("model", name), table.get("key")
    if not isinstance(url, str):
        raise wrong("has no url", 'Write url = "https://…/v1".')
    try:
        read_url(url)
    except NotAnAddress as error:
        raise wrong(f"has a url that {error}", 'Write url = "https://…/v1".') from None
    if not isinstance(model, str) or not model:
        raise wrong("has a model that is not a string", "Write the endpoint's name for it, in quotes.")
    # a key here would be committed with the file
    if key is not None and (not isinstance(key, str) or not re.fullmatch(r"[A-Z][A-Z0-9_]*", key)):
        raise wrong(
            "has a key that is not a variable's name", "Write the name of the variable that holds the key, never a key."
        )
    # every call would hand the server's own key to a vendor
    if key is not None and key.startswith(SERVER_ONLY):
        raise wrong(f"takes the key {key}", "That variable holds an API key of this server; name the model's own.")
    return NamedModel(name, url, model, key, _price(table, wrong))


def _price(table: Mapping[str, Any], wrong: Any) -> Price | None:
    given: dict[str, float] = {}
    for member in _PRICES:
        value = table.get(member)
        if value is None:
            continue
        if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
            raise wrong(f"has a {member} that is not a price", "Write US dollars for a million tokens, such as 0.18.")
        given[member] = float(value)
    if not given:
        return None
    # an absent price is unknown, and not 0
    for member in (_PRICES[0], _PRICES[2]):
        if member not in given:
            raise wrong(f"has a price but no {member}", "Give the prices of input and output; 0 where it is free.")
    return Price(given[_PRICES[0]], given.get(_PRICES[1], given[_PRICES[0]]), given[_PRICES[2]])
