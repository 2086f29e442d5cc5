"""The settings of a task app on Modal, their rules, and their precedence.

There are three places for a setting, from the lowest to the highest precedence: the table `[tool.taskapp.modal]` in the
author's file or pyproject.toml, `ModalSettings` in `modal_app.py`, and the command line. None means that a setting is
not set.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_type_hints

from taskapp_kit.errors import ConfigError

Store = Literal["postgres-secret", "none"]

WEB_FUNCTION = "web"
"""The name of the web function in `modal_app.py` and `taskapp deploy`."""
DOOR_KEY, STORE_KEY = "ENVIRONMENT_API_KEY", "TASKAPP_STORE"

STORE_CHOICES = (
    "none (the default) stores nothing, so rollouts can neither be replayed nor requested later. postgres-secret "
    "stores every rollout in the Postgres database whose address is the value of TASKAPP_STORE in the Secret."
)


_OBJECT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")
_DEBIAN = re.compile(r"[a-z0-9][a-z0-9+.-]+(=[A-Za-z0-9.+~:-]+)?")
_DOMAIN = re.compile(r"(?=.{4,253}$)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63}")
_FOLDER = re.compile(r"/[A-Za-z0-9._/-]+")
_PYTHON = re.compile(r"3\.(1[1-9]|[2-9][0-9])")

Rule = Callable[[Any], str | None]
"""Returns a description of the expected value, or None if the value is valid."""


def _matching(pattern: re.Pattern[str], expected: str) -> Rule:
    return lambda value: None if isinstance(value, str) and pattern.fullmatch(value) else expected


def _whole(low: int, high: int) -> Rule:
    def rule(value: Any) -> str | None:
        fits = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return None if fits else f"an integer from {low} to {high}"

    return rule


def _cores(value: Any) -> str | None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 64
    return None if fits else "a number of cores, above 0 and at most 64"


def _switch(value: Any) -> str | None:
    return None if isinstance(value, bool) else "true or false"


def _each(rule: Rule) -> Rule:
    def whole(value: Any) -> str | None:
        if not isinstance(value, list | tuple):
            return "a list of strings, even for a single item"
        expected = next(filter(None, map(rule, value)), None)
        return None if expected is None else f"a list in which each item is {expected}"

    return whole


def _volumes(value: Any) -> str | None:
    expected = 'a table of absolute directories and names of Modal Volumes, such as { "/data" = "my-volume" }'
    if not isinstance(value, Mapping):
        return expected
    for folder, name in value.items():
        fits = isinstance(folder, str) and _FOLDER.fullmatch(folder) and ".." not in folder
        taken = isinstance(folder, str) and folder.rstrip("/") in ("", "/root", "/tmp", "/usr", "/etc", "/opt")  # noqa: S108
        if not fits or taken or not isinstance(name, str) or not _OBJECT_NAME.fullmatch(name):
            return expected
    return None


def _keys(value: Any) -> str | None:
    expected = f'names of variables, such as "{DOOR_KEY}", whose values are in the Secret'
    if not isinstance(value, list | tuple) or not all(
        isinstance(key, str) and _VARIABLE.fullmatch(key) for key in value
    ):
        return expected
    return (
        None
        if DOOR_KEY in value
        else f"a list that contains {DOOR_KEY}, because the server rejects every request without it"
    )


_name = _matching(_OBJECT_NAME, "1 to 63 alphanumeric characters, dots, dashes and underscores")
_text = _matching(re.compile(r"[^\x00-\x1f]+"), "a string")


@dataclass(frozen=True, slots=True)
class ModalSettings:
    """How a task app runs on Modal. For a field that is None, the value in `DEFAULTS` applies.

    Each field is annotated with a rule, which checks values and describes the expected value.

    Attributes:
        app_name: The name of the Modal app. Its address is `https://WORKSPACE--APP_NAME-web.modal.run`.
        secret_name: The named Secret with the keys. Defaults to `APP_NAME-env`.
        extra_secrets: Additional named Secrets, such as the Secret of a model provider. Later Secrets override earlier
            ones.
        required_keys: Names of variables that the Secret must contain. Modal checks them on deployment.
        store: `postgres-secret`, or `none`, which stores no rollouts. The plan contains a warning if `store` is not
            set.
        timeout_seconds: Maximum time for a request. Modal's own default is 300.
        startup_timeout_seconds: Maximum time for importing the app and loading its data.
        min_containers: Minimum number of running containers. With 0, an idle app costs nothing.
        max_containers: Maximum number of containers.
        buffer_containers: Number of additional containers to start ahead of the load.
        scaledown_window_seconds: After how many seconds an idle container is stopped, from 2 to 3600.
        max_inputs: Maximum number of concurrent requests per container.
        target_inputs: Number of concurrent requests per container at which Modal starts another container.
        cpu: The number of reserved physical cores.
        memory_mib: The reserved memory in MiB.
        region: The regions in which containers may run. Empty means any region. Modal charges more for a selected
            region.
        volumes: The name of the Modal Volume for each directory in the container at which a Volume is mounted.
        apt_packages: Debian packages that the app needs.
        custom_domains: The author's own domains under which Modal serves the app.
        memory_snapshot: Whether containers start from a memory snapshot that is taken after the app was imported.
        python_version: The container's Python version, "3.11" or later. Defaults to the version of the deploying
            Python.
        extras: The kit's extras to install. For a bundled environment, its extra is added.
        extra_packages: Additional pip requirements, besides the app's declared dependencies.
        data_files: Files that the app reads and does not declare with `app.path(...)`, relative to its directory.
        rehearse: Whether the deployment first imports the app on this machine, with only the container's packages.
    """

    app_name: Annotated[str | None, _name] = None
    secret_name: Annotated[str | None, _name] = None
    extra_secrets: Annotated[tuple[str, ...] | None, _each(_name)] = None
    required_keys: Annotated[tuple[str, ...] | None, _keys] = None
    store: Annotated[Store | None, _matching(re.compile("postgres-secret|none"), '"postgres-secret" or "none"')] = None
    timeout_seconds: Annotated[int | None, _whole(1, 86_400)] = None
    startup_timeout_seconds: Annotated[int | None, _whole(1, 86_400)] = None
    min_containers: Annotated[int | None, _whole(0, 10_000)] = None
    max_containers: Annotated[int | None, _whole(1, 10_000)] = None
    buffer_containers: Annotated[int | None, _whole(0, 10_000)] = None
    scaledown_window_seconds: Annotated[int | None, _whole(2, 3600)] = None
    max_inputs: Annotated[int | None, _whole(1, 1000)] = None
    target_inputs: Annotated[int | None, _whole(1, 1000)] = None
    cpu: Annotated[float | None, _cores] = None
    memory_mib: Annotated[int | None, _whole(128, 344_064)] = None
    region: Annotated[
        tuple[str, ...] | None,
        _each(_matching(re.compile(r"[a-z0-9-]{2,32}"), 'the name of a region, such as "us-east"')),
    ] = None
    volumes: Annotated[Mapping[str, str] | None, _volumes] = None
    apt_packages: Annotated[tuple[str, ...] | None, _each(_matching(_DEBIAN, "the name of a Debian package"))] = None
    custom_domains: Annotated[
        tuple[str, ...] | None, _each(_matching(_DOMAIN, 'a domain such as "games.example.org"'))
    ] = None
    memory_snapshot: Annotated[bool | None, _switch] = None
    python_version: Annotated[str | None, _matching(_PYTHON, '"3.11" or later')] = None
    extras: Annotated[tuple[str, ...] | None, _each(_text)] = None
    extra_packages: Annotated[tuple[str, ...] | None, _each(_text)] = None
    data_files: Annotated[tuple[str, ...] | None, _each(_text)] = None
    rehearse: Annotated[bool | None, _switch] = None

    def __post_init__(self) -> None:
        for name in NAMES:
            value = getattr(self, name)
            expected = None if value is None else wrong(name, value)
            if expected is not None:
                raise ConfigError(f"ModalSettings.{name} {_shown(name, value)}.", hint=f"Expected {expected}.")
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))

    def over(self, below: ModalSettings) -> ModalSettings:
        """Return a copy in which the values of `below` replace settings that are None."""
        said = {name: getattr(self, name) for name in NAMES if getattr(self, name) is not None}
        return dataclasses.replace(below, **said)

    def completed(self) -> ModalSettings:
        """Return a copy with all defaults. Only `cpu`, `memory_mib` and `python_version` may still be None.

        Raises:
            ConfigError: The name is missing, or two settings contradict each other.
        """
        whole = self.over(DEFAULTS)
        if whole.app_name is None:
            raise ConfigError("The Modal app has no name.", hint="Pass --name, or set ModalSettings(app_name=...).")
        whole = dataclasses.replace(whole, secret_name=whole.secret_name or f"{whole.app_name}-env")
        for low, high in (("min_containers", "max_containers"), ("target_inputs", "max_inputs")):
            below, above = getattr(whole, low), getattr(whole, high)
            if below > above:
                raise ConfigError(f"{low} ({below}) is higher than {high} ({above}).", hint=f"Change {low} or {high}.")
        return whole

    def all_required_keys(self) -> tuple[str, ...]:
        """Return the variables that the Secret must contain, including TASKAPP_STORE for a Postgres store."""
        more = (STORE_KEY,) if self.store == "postgres-secret" else ()
        return tuple(dict.fromkeys((*(self.required_keys or ()), *more)))

    def said(self) -> dict[str, Any]:
        """Return all settings that are not None, as JSON types."""
        return {
            name: list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value
            for name in NAMES
            if (value := getattr(self, name)) is not None
        }


NAMES = tuple(field.name for field in dataclasses.fields(ModalSettings))
RULES: Mapping[str, Rule] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(ModalSettings, include_extras=True).items()
}


def wrong(name: str, value: Any) -> str | None:
    """Return a description of the expected value, or None if the value is valid."""
    return RULES[name](value)


def _shown(name: str, value: Any) -> str:
    """Return `is VALUE`, or `is invalid` for settings that may contain a key."""
    return "is invalid" if name in ("required_keys", "extra_packages") else f"is {value!r}"[:120]


DEFAULTS = ModalSettings(
    required_keys=(DOOR_KEY,),
    store="none",
    extra_secrets=(),
    timeout_seconds=3600,
    startup_timeout_seconds=120,
    min_containers=0,
    max_containers=8,
    buffer_containers=0,
    scaledown_window_seconds=300,
    max_inputs=32,
    target_inputs=24,
    region=(),
    volumes={},
    apt_packages=(),
    custom_domains=(),
    memory_snapshot=False,
    extras=(),
    extra_packages=(),
    data_files=(),
    rehearse=True,
)
