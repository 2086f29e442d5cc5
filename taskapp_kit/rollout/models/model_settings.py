"""`models.toml`, in which each table names a model and defines its address, key and prices.

[small]
url = "https://api.together.xyz/v1"
model = "Qwen/Qwen3-8B"               # the name that the endpoint uses; defaults to the table's name
key = "TOGETHER_API_KEY"              # the variable that contains the key; defaults to the key for the host
usd_per_million_input_tokens = 0.18
usd_per_million_cached_tokens = 0.09  # input from the endpoint's prefix cache; defaults to the input price
usd_per_million_output_tokens = 0.18
"""

from __future__ import annotations

import hmac
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from taskapp_kit.config import Settings
from taskapp_kit.config.parsers import SERVER_ONLY
from taskapp_kit.errors import ConfigError, FieldProblem, RequestError, closest
from taskapp_kit.net.addresses import NotAnAddress, ParsedUrl, Place, read_url
from taskapp_kit.net.redact import holds_key
from taskapp_kit.records.formatting import cut
from taskapp_kit.wire.inference_url import complete_url

MODELS_FILE = "models.toml"
_PRICES = ("usd_per_million_input_tokens", "usd_per_million_cached_tokens", "usd_per_million_output_tokens")
_MEMBERS = ("url", "model", "key", *_PRICES)


@dataclass(frozen=True, slots=True)
class Price:
    """Prices in US dollars per million tokens. cached: the price of input from the endpoint's prefix cache."""

    input: float
    cached: float
    output: float

    def cost(self, usage: Mapping[str, float]) -> float:
        """Return the price in US dollars of a call with this usage."""
        asked, cached = usage.get("prompt_tokens", 0.0), usage.get("cached_tokens", 0.0)
        # the endpoint may report more cached tokens than tokens, which would make the price negative
        cached = min(cached, asked)
        answered = usage.get("completion_tokens", 0.0)
        return ((asked - cached) * self.input + cached * self.cached + answered * self.output) / 1e6


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A table of `models.toml`. url: the address as written. key: the variable with the API key. price: None if not set."""

    name: str
    url: str
    model: str
    key: str | None = None
    price: Price | None = None


class ModelNames:
    """The tables of one models file, by name."""

    def __init__(self, models: Mapping[str, NamedModel] | None = None, file: Path | None = None) -> None:
        self.models = dict(models or {})
        self.file = file
        self._prices: dict[tuple[str, str], Price] = {}
        for model in self.models.values():
            if model.price is not None:
                self._prices[_address(model.url), model.model] = model.price

    @classmethod
    def of(cls, settings: Settings, folder: Path | None = None) -> ModelNames:
        """Read `settings.models_file` if it is set, or else `models.toml` in `folder` if that file exists.

        `folder` defaults to the working directory. Raises ConfigError if the file is invalid.
        """
        if settings.models_file is not None:
            return cls.read(settings.models_file)
        file = (folder or Path.cwd()) / MODELS_FILE
        return cls.read(file) if file.is_file() else cls()

    @classmethod
    def read(cls, file: Path) -> ModelNames:
        """Read the tables of a file. Raises ConfigError, which names the invalid table but contains no values."""
        try:
            # utf-8-sig: editors on Windows write a byte order mark
            content = tomllib.loads(file.read_text("utf-8-sig"))
        except OSError as error:
            raise ConfigError(
                f"{file} cannot be read: {error.strerror}.",
                hint="Set TASKAPP_MODELS_FILE to the path of a models file.",
            ) from None
        # tomllib recurses into nested arrays
        except (ValueError, RecursionError):
            raise ConfigError(
                f"{file} is not a TOML file in UTF-8.", hint='Write [NAME], then url = "https://…/v1" below it.'
            ) from None
        return cls({name: _model(file, name, table) for name, table in content.items()}, file)

    def resolve(self, name: str) -> NamedModel:
        """Return the model with this name. Raises ConfigError, with a suggestion for a misspelled name, if it does not exist."""
        found = self.models.get(name)
        if found is not None:
            return found
        if self.file is None:
            raise ConfigError(
                f"The model {name!r} has no address because there is no {MODELS_FILE} in this directory.",
                hint=f'Pass --inference-url, or create {MODELS_FILE} with [{name}] and url = "https://…/v1".',
            )
        close = closest(name, self.models)
        known = f"The file defines: {', '.join(sorted(self.models)) or 'no models'}."
        raise ConfigError(f"{self.file} has no model {name!r}.", hint=f"Did you mean {close!r}?" if close else known)

    def price(self, url: str, model: str | None) -> Price | None:
        """Return the price of a model at this address, or None if it is unknown."""
        return self._prices.get((_address(url), model)) if model is not None and self._prices else None


def _address(url: str) -> str:
    """Normalize an address for comparison: complete the path and remove the query."""
    # a rollout's address has a path and a query that the address in the file lacks
    return read_url(complete_url(url)).url.partition("?")[0]


def _model(file: Path, name: str, table: Any) -> NamedModel:
    def wrong(what: str, hint: str) -> ConfigError:
        return ConfigError(f"{file}: [{name}] {what}.", hint=hint)

    if not isinstance(table, dict):
        raise wrong("is not a table", f'Write [{name}] followed by url = "https://…/v1".')
    for member in table:
        if member not in _MEMBERS:
            close = closest(member, _MEMBERS)
            raise wrong(
                f"has the unknown key {member!r}",
                f"Did you mean {close}?" if close else f"Valid keys: {', '.join(_MEMBERS)}.",
            )
    url, model, key = table.get("url"), table.get("model", name), table.get("key")
    if not isinstance(url, str):
        raise wrong("has no `url`", 'Add url = "https://…/v1".')
    try:
        read_url(url)
    except NotAnAddress as error:
        raise wrong(f"has a `url` that {error}", 'Set it to an address such as "https://…/v1".') from None
    if not isinstance(model, str) or not model:
        raise wrong("has a `model` that is not a string", "Set it to the name that the endpoint uses, in quotes.")
    # only a variable's name, because a key would be committed with the file
    if key is not None and (not isinstance(key, str) or not re.fullmatch(r"[A-Z][A-Z0-9_]*", key)):
        raise wrong("has an invalid `key`", "Set it to the name of the environment variable that contains the API key.")
    # every call would send the server's own key to a vendor
    if key is not None and key.startswith(SERVER_ONLY):
        raise wrong(
            f"uses the variable {key}, which contains an API key of this server",
            "Set `key` to the name of the variable that contains the model provider's key.",
        )
    return NamedModel(name, url, model, key, _price(table, wrong))


def _price(table: Mapping[str, Any], wrong: Any) -> Price | None:
    given: dict[str, float] = {}
    for member in _PRICES:
        value = table.get(member)
        if value is None:
            continue
        if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
            raise wrong(f"has an invalid `{member}`", "Set it to US dollars per million tokens, such as 0.18.")
        given[member] = float(value)
    if not given:
        return None
    # a missing price is unknown, not 0
    for member in (_PRICES[0], _PRICES[2]):
        if member not in given:
            raise wrong(f"has a price but no `{member}`", "Set the input and output prices, or 0 if free.")
    return Price(given[_PRICES[0]], given.get(_PRICES[1], given[_PRICES[0]]), given[_PRICES[2]])


VENDORS: Mapping[str, tuple[str, ...]] = {
    "ANTHROPIC_API_KEY": ("api.anthropic.com",),
    "CEREBRAS_API_KEY": ("api.cerebras.ai",),
    "DEEPSEEK_API_KEY": ("api.deepseek.com",),
    "FIREWORKS_API_KEY": ("api.fireworks.ai",),
    "GEMINI_API_KEY": ("generativelanguage.googleapis.com",),
    "GROQ_API_KEY": ("api.groq.com",),
    "HF_TOKEN": ("router.huggingface.co",),
    "MISTRAL_API_KEY": ("api.mistral.ai",),
    "NVIDIA_API_KEY": ("integrate.api.nvidia.com",),
    "OPENAI_API_KEY": ("api.openai.com",),
    "OPENROUTER_API_KEY": ("openrouter.ai",),
    "SYNTH_API_KEY": ("api.usesynth.ai", "www.api.usesynth.ai"),
    "TOGETHER_API_KEY": ("api.together.xyz", "api.together.ai"),
    "XAI_API_KEY": ("api.x.ai",),
}
"""Maps a variable to the hosts of the vendor whose key it contains. The key is only sent over https."""
KEYS_FOR = "TASKAPP_INFERENCE_KEYS_FOR"
API_KEY: Place = ("body", "policy", "config", "api_key")
MAX_KEY_LETTERS = 4096
EXCERPT_LETTERS = 200
LEAST_HIDDEN = 12
"""The minimum length of a server key to search for in longer strings, because "test" occurs in model names."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_BEARER = re.compile(r"bearer\s+", re.IGNORECASE)
# these move a terminal's cursor, or hide or reverse text
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+")


class Credentials:
    """The API keys of one server: its own keys, and the keys for models by host. The repr contains no key.

    is_server_key: a function that returns whether a string is an API key of this server. The function also recognizes keys of
    which the server only stores digests.
    """

    def __init__(self, settings: Settings, *, is_server_key: Callable[[str], bool] | None = None) -> None:
        """Read the keys. Raises ConfigError if TASKAPP_INFERENCE_KEYS_FOR is invalid."""
        door = (settings.environment_api_key, settings.dev_environment_api_key, *settings.environment_api_key_aliases)
        self._door = tuple({key.encode(): None for key in door if key})
        self._is_server_key = is_server_key
        self._for: dict[tuple[str, str, int | None], str] = {}
        for variable, hosts in VENDORS.items():
            key = settings.variable(variable)
            if key:
                # stripped, because a line end copied with the key would end the header
                self._for.update({("https", host, 443): key.strip() for host in hosts})
        for entry in settings.inference_keys_for:
            self._add(entry, settings)
        self._own = tuple(set(self._for.values()))

    def __repr__(self) -> str:
        return f"Credentials(for {', '.join(sorted({host for _, host, _ in self._for})) or 'no host'})"

    def _add(self, entry: str, settings: Settings) -> None:
        """Add the entry `HOST=VARIABLE`, `HOST:PORT=VARIABLE`, or (if the key may be sent unencrypted) `http://HOST=VARIABLE`."""
        host, _, variable = entry.rpartition("=")
        open_road = host.lower().startswith("http://")
        bare = host.partition("://")[2] or host
        try:
            called = read_url(f"http://{bare}/")
        except NotAnAddress as wrong:
            raise ConfigError(
                f"{KEYS_FOR} has an entry whose host {wrong}.", hint="Use the form HOST=VARIABLE."
            ) from None
        if not variable or variable.startswith(SERVER_ONLY):
            raise ConfigError(
                f"{KEYS_FOR} does not name a variable with a model provider's key for {called.host}.",
                hint="Use the form HOST=VARIABLE. The variable must not contain one of the server's own API keys.",
            )
        key = settings.variable(variable)
        if not key:
            raise ConfigError(
                f"{KEYS_FOR} names {variable} for {called.host}, but this variable is not set.",
                hint=f"Set {variable}, or remove the entry.",
            )
        named = re.search(r":[0-9]+$", bare) is not None
        port = called.port if named else None
        # a connection to this machine cannot be intercepted
        schemes = ("https", "http") if open_road or called.host in _LOOPBACK else ("https",)
        for scheme in schemes:
            self._for.pop(
                (scheme, called.host, 443), None
            )  # an explicit entry without a port replaces the vendor's default
            self._for[scheme, called.host, port] = key.strip()

    def own_key(self, called: ParsedUrl) -> str | None:
        """Return the key that is configured for this host, or None if there is no such key."""
        found = self._for.get((called.scheme, called.host, called.port))
        return found if found is not None else self._for.get((called.scheme, called.host, None))

    def is_own_key(self, text: str) -> bool:
        """Return whether the string is one of this server's API keys, or contains a key from the settings."""
        given = _BEARER.sub("", text.strip())
        encoded = given.encode("utf-8", "replace")
        found = False
        for key in self._door:
            # compare with all keys in constant time, so that the time does not reveal how close a guess is
            found |= hmac.compare_digest(encoded, key) or (len(key) >= LEAST_HIDDEN and key in encoded)
        if self._is_server_key is not None and given:
            found |= self._is_server_key(given)
        return found

    def address_has_own_key(self, url: str) -> bool:
        """Return whether an address, or a value in its query, is or contains one of this server's API keys."""
        values = [value for _, value in parse_qsl(url.partition("?")[2])]
        # a key in a query may be percent-encoded
        return any(map(self.is_own_key, (url, unquote(url), *values)))

    def check_config(self, config: Mapping[str, Any], *, loc: Place = API_KEY[:-1]) -> None:
        """Raise RequestError if a field of `policy.config` contains one of this server's API keys. The error names the field."""
        pending: list[tuple[Any, Place]] = [(config, loc)]
        while pending:
            value, place = pending.pop()
            if isinstance(value, Mapping):
                pending += [(inner, (*place, str(name)[:80])) for name, inner in value.items()]
            elif isinstance(value, list):
                pending += [(inner, (*place, index)) for index, inner in enumerate(value)]
            elif isinstance(value, str) and self.address_has_own_key(value):
                field = ".".join(str(part) for part in place if part != "body")
                message = f"{field} contains one of this server's API keys, which are never sent to a model."
                raise RequestError(
                    message,
                    fields=(FieldProblem(place, message, "key_refused"),),
                    code="key_refused",
                    hint="Use the key that the model provider issued, or no key.",
                )

    def excerpt(self, text: str, used: str | None) -> str:
        """Return an endpoint's error message as one short line, or "" if it contains a part of a key. used: this call's key."""
        if not text:
            return ""
        line = " ".join(_UNSEEN.sub(" ", text).split())
        keys = [key.decode("utf-8", "replace") for key in self._door] + list(self._own) + ([used] if used else [])
        # drop the whole text, because the rest of the key may be next to the part in another form
        if any(holds_key(line, key) for key in keys):
            return ""
        return cut(line, EXCERPT_LETTERS)


def caller_key(config: Mapping[str, Any]) -> str | None:
    """Return the caller's key, `policy.config.api_key`, or None if it is not set. Raises RequestError if it is invalid."""
    key = config.get("api_key")
    if key is None or key == "":
        return None
    if not isinstance(key, str) or len(key) > MAX_KEY_LETTERS or not re.fullmatch(r"[\x21-\x7e]+", key):
        expected = f"up to {MAX_KEY_LETTERS} printable ASCII characters without spaces"
        message = f"policy.config.api_key is not a valid key; expected {expected}."
        raise RequestError(message, fields=(FieldProblem(API_KEY, message, "api_key"),))
    return key
