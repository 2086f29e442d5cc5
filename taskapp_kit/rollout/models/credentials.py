"""Selects the key of a call: the server's vendor keys go to their hosts only, a caller's key with its call.

API keys of this server itself are sent to no model.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

from taskapp_kit.config import Settings
from taskapp_kit.config.values import SERVER_ONLY
from taskapp_kit.errors import ConfigError, FieldProblem, RequestError
from taskapp_kit.net.addresses import NotAnAddress, ParsedUrl, Place, read_url
from taskapp_kit.net.redact import holds_key
from taskapp_kit.records.words import cut

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
"""Maps a variable to the hosts of the vendor whose key it holds; https only."""
KEYS_FOR = "TASKAPP_INFERENCE_KEYS_FOR"
API_KEY: Place = ("body", "policy", "config", "api_key")
MAX_KEY_LETTERS = 4096
EXCERPT_LETTERS = 200
LEAST_HIDDEN = 12
"""The minimum length of a server's API key that is searched for inside longer texts: "test" occurs in model names."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_BEARER = re.compile(r"bearer\s+", re.IGNORECASE)
# they move a terminal's cursor, or hide and turn text around
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+")


class Credentials:
    """The keys of one server. Its repr shows none.

    is_server_key: whether a text is an API key of this server, for keys that the settings do not contain (a file of digests).
    """

    def __init__(self, settings: Settings, *, is_server_key: Callable[[str], bool] | None = None) -> None:
        """Raises ConfigError when TASKAPP_INFERENCE_KEYS_FOR is invalid."""
        door = (settings.environment_api_key, settings.dev_environment_api_key, *settings.environment_api_key_aliases)
        self._door = tuple({key.encode(): None for key in door if key})
        self._is_server_key = is_server_key
        self._for: dict[tuple[str, str, int | None], str] = {}
        for variable, hosts in VENDORS.items():
            key = settings.variable(variable)
            if key:
                # stripped: a line end copied with the key would end the header
                self._for.update({("https", host, 443): key.strip() for host in hosts})
        for entry in settings.inference_keys_for:
            self._add(entry, settings)
        self._own = tuple(set(self._for.values()))

    def __repr__(self) -> str:
        return f"Credentials(for {', '.join(sorted({host for _, host, _ in self._for})) or 'no host'})"

    def _add(self, entry: str, settings: Settings) -> None:
        """Reads `HOST=VARIABLE`, `HOST:PORT=VARIABLE` or, for a key that may be sent unencrypted, `http://HOST=VARIABLE`."""
        host, _, variable = entry.rpartition("=")
        open_road = host.lower().startswith("http://")
        bare = host.partition("://")[2] or host
        try:
            called = read_url(f"http://{bare}/")
        except NotAnAddress as wrong:
            raise ConfigError(
                f"{KEYS_FOR} holds an entry whose host cannot be used: it {wrong}.", hint="Write HOST=VARIABLE."
            ) from None
        if not variable or variable.startswith(SERVER_ONLY):
            raise ConfigError(
                f"{KEYS_FOR} names no vendor's key for {called.host}.",
                hint="Write HOST=VARIABLE; the server's own API keys are sent to no model.",
            )
        key = settings.variable(variable)
        if not key:
            raise ConfigError(
                f"{KEYS_FOR} names the variable {variable} for {called.host}, which is not set.",
                hint=f"Set {variable}, or take the entry away.",
            )
        named = re.search(r":[0-9]+$", bare) is not None
        port = called.port if named else None
        # nobody listens between this machine and itself
        schemes = ("https", "http") if open_road or called.host in _LOOPBACK else ("https",)
        for scheme in schemes:
            self._for.pop(
                (scheme, called.host, 443), None
            )  # an explicit entry without a port replaces the vendor's default
            self._for[scheme, called.host, port] = key.strip()

    def own_key(self, called: ParsedUrl) -> str | None:
        """The server's key that belongs to this host; None when none does."""
        found = self._for.get((called.scheme, called.host, called.port))
        return found if found is not None else self._for.get((called.scheme, called.host, None))

    def is_own_key(self, text: str) -> bool:
        """Whether the text is one of this server's API keys, or contains one that the settings name."""
        given = _BEARER.sub("", text.strip())
        encoded = given.encode("utf-8", "replace")
        found = False
        for key in self._door:
            # all of them, in a time that does not tell how near a guess is
            found |= hmac.compare_digest(encoded, key) or (len(key) >= LEAST_HIDDEN and key in encoded)
        if self._is_server_key is not None and given:
            found |= self._is_server_key(given)
        return found

    def address_has_own_key(self, url: str) -> bool:
        """Whether an address, or a value in its query, is or contains one of this server's API keys."""
        values = [value for _, value in parse_qsl(url.partition("?")[2])]
        # a key in a query may be percent-encoded
        return any(map(self.is_own_key, (url, unquote(url), *values)))

    def check_config(self, config: Mapping[str, Any], *, loc: Place = API_KEY[:-1]) -> None:
        """Raises RequestError naming the member of `policy.config` that contains one of this server's API keys."""
        pending: list[tuple[Any, Place]] = [(config, loc)]
        while pending:
            value, place = pending.pop()
            if isinstance(value, Mapping):
                pending += [(inner, (*place, str(name)[:80])) for name, inner in value.items()]
            elif isinstance(value, list):
                pending += [(inner, (*place, index)) for index, inner in enumerate(value)]
            elif isinstance(value, str) and self.address_has_own_key(value):
                field = ".".join(str(part) for part in place if part != "body")
                message = f"{field} contains an API key of this server, which is sent to no model."
                raise RequestError(
                    message,
                    fields=(FieldProblem(place, message, "key_refused"),),
                    code="key_refused",
                    hint="Give the model's own key, or none.",
                )

    def excerpt(self, text: str, used: str | None) -> str:
        """An endpoint's error text in one short line; empty when it contains a part of a key. used: the key of this call."""
        if not text:
            return ""
        line = " ".join(_UNSEEN.sub(" ", text).split())
        keys = [key.decode("utf-8", "replace") for key in self._door] + list(self._own) + ([used] if used else [])
        # the whole text goes: what is around a part of a key may be the rest of it in another form
        if any(holds_key(line, key) for key in keys):
            return ""
        return cut(line, EXCERPT_LETTERS)


def caller_key(config: Mapping[str, Any]) -> str | None:
    """The caller's own key for the model, `policy.config.api_key`; None when there is none. Raises RequestError."""
    key = config.get("api_key")
    if key is None or key == "":
        return None
    if not isinstance(key, str) or len(key) > MAX_KEY_LETTERS or not re.fullmatch(r"[\x21-\x7e]+", key):
        expected = f"up to {MAX_KEY_LETTERS} printable ASCII characters without spaces"
        message = f"policy.config.api_key is not a valid key; expected {expected}."
        raise RequestError(message, fields=(FieldProblem(API_KEY, message, "api_key"),))
    return key
