"""The settings of servers and commands. Only this package reads the process environment.

The sources of a setting, in order of precedence, are the flag, the process environment, `--env-file` (later files take
precedence), `.env` in the working directory, `taskapp.toml` in the working directory, and the default. The source of each
value is stored. `--show-config` prints `Settings.shown()`. Secrets and their lengths never appear in its output, in a repr or
in an error.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from taskapp_kit.config.parsers import (
    SERVER_ONLY,
    UnusableValue,
    integer,
    read_aliases,
    read_key,
    read_keys,
    read_keys_for,
    read_list,
    read_log_format,
    read_origins,
    read_path,
    read_seconds,
    read_store_keep,
    read_switch,
    read_text,
)
from taskapp_kit.errors import ConfigError, closest

CONFIG_FILE = "taskapp.toml"
MASK = "(set, hidden)"

LOG_FORMAT, LOG_LEVEL = "TASKAPP_LOG_FORMAT", "TASKAPP_SERVED_LOG_LEVEL"
LEVELS = ("debug", "info", "warning", "error")
PYTHON_PATH, SAFE_PATH = "PYTHONPATH", "PYTHONSAFEPATH"
_for_children: dict[str, str] = {}

CALLS_PER_ANSWER = 64
"""The default limit on executed tool calls per model reply. All further calls together count as one refusal."""
SESSION_IDLE_SECONDS = 900.0
"""The default idle time after which a session is closed, in seconds. It is long, because a model may take minutes."""
DEADLINE_SECONDS = 3600.0
"""The default time limit of a rollout, in seconds."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The validated settings of a server. Use `load()` or `from_environment()` to create an object.

    docs/reference/settings.md is generated from these descriptions.

    Attributes:
        environment_api_key: The key that callers must send.
        environment_api_key_aliases: Additional keys that the server accepts.
        dev_environment_api_key: An additional key for development.
        keys_file: A file with one key per line. The server reads the file again when it changes.
        store: The address of the store, or `none`. If not set, the command chooses the store.
        store_keep: Which rollouts the server keeps in the store: `30d` keeps the rollouts of the last 30 days, `1000` the
            newest 1000 rollouts. If not set, the server keeps all rollouts.
        max_concurrent: The maximum number of concurrent rollouts.
        workers: The number of worker processes that run environments. With 0, threads of the server run them.
        grace_seconds: How long rollouts may continue after the server receives the signal to stop. Modal kills a container
            after 30 s.
        max_time_seconds: The maximum duration of a rollout.
        max_calls_per_answer: How many tool calls of one model reply are executed. All further calls together count as one
            refusal.
        session_idle_seconds: After how many seconds without use a session is closed.
        debug_env: Whether `GET /debug/env` is served.
        cors_origins: The origins of web pages that may call the server.
        max_body_bytes: The maximum size of a request body.
        gold: Whether callers may request the policy `gold`. If not set, a policy `gold` that reads the task's row is
            rejected with exposure `public`.
        ui: Whether the viewer is served at `/ui`. If not set, the viewer is served only with exposure `local`.
        hosts: Host names that requests may use, in addition to the address that the server is bound to and, with exposure
            `local`, loopback names. If not set, every name is accepted with exposure `public`.
        ui_hosts: Additional host names that only requests to the viewer may use.
        protocols: Additional protocols to serve, such as `openenv` and `mcp`. `all` serves every protocol.
        max_connections: The maximum number of open connections. It is at most three quarters of the process's limit on file
            descriptors.
        stalled_seconds: For how long a client may stop reading its response before the connection is closed.
        max_buffered_bytes: The maximum memory for unsent responses of all connections together.
        host: The address to listen on.
        port: The port to listen on.
        log_format: The format of log lines.
        trace_content: Whether traces include observations and messages.
        allow_weak_sandbox: Whether untrusted code may run on a machine that cannot fully confine the code.
        inference_allow: Private hosts and networks at which models may be called.
        inference_keys_for: Entries `HOST=VARIABLE`. In calls to HOST, the server sends the key that VARIABLE contains.
        models_file: A file with the names, addresses and prices of models.
        models: The directory of base models and trained models.
        model_aliases: Entries `NAME=MODEL`. If a job names NAME, the local model MODEL is used.
        vllm: The vLLM that training jobs use: the directory of a virtual environment, or the address of a server.
        cache: The directory of cached model responses. If not set, nothing is cached.
        sources: The source of each setting's value, as text.
        variables: The variables of the process environment and the env files. `repr` omits them.
    """

    environment_api_key: str | None = field(default=None, repr=False)
    environment_api_key_aliases: tuple[str, ...] = field(default=(), repr=False)
    dev_environment_api_key: str | None = field(default=None, repr=False)
    keys_file: Path | None = None
    store: str | None = field(default=None, repr=False)  # the address of a database may contain a password
    store_keep: str | None = None
    max_concurrent: int = 1024
    workers: int = 0
    grace_seconds: int = 25
    max_time_seconds: float = DEADLINE_SECONDS
    max_calls_per_answer: int = CALLS_PER_ANSWER
    session_idle_seconds: float = SESSION_IDLE_SECONDS
    debug_env: bool = False
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = 4 * 1024 * 1024
    gold: bool | None = None
    ui: bool | None = None
    hosts: tuple[str, ...] = ()
    ui_hosts: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    max_connections: int = 8192
    stalled_seconds: float = 300.0
    max_buffered_bytes: int = 512 * 1024 * 1024
    host: str = "127.0.0.1"
    port: int = 8001
    log_format: Literal["text", "json"] = "text"
    trace_content: bool = False
    allow_weak_sandbox: bool = False
    inference_allow: tuple[str, ...] = ()
    inference_keys_for: tuple[str, ...] = ()
    models_file: Path | None = None
    models: Path = Path(".taskapp/models")
    model_aliases: tuple[str, ...] = ()
    vllm: str | None = None
    cache: Path | None = None
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def aliases(self) -> dict[str, str]:
        """Return the local models by alias."""
        return {name: model for name, _, model in (entry.partition("=") for entry in self.model_aliases)}

    def variable(self, name: str) -> str | None:
        """Return a variable from the process environment or an env file, or None if it is not set or empty."""
        return self.variables.get(name) or None

    def without_models(self) -> Settings:
        """Return a copy without the addresses of judges and of models that environments call."""
        kept = {name: value for name, value in self.variables.items() if not re.fullmatch(r"TASKAPP_\w+_URL", name)}
        return replace(self, variables=kept)

    def shown(self) -> list[tuple[str, str, str]]:
        """Return (setting, value, source) for each setting. The values of secrets are replaced with a fixed text."""
        rows = []
        for setting in SETTINGS:
            value = getattr(self, setting.name)
            if setting.secret:
                text = MASK if value else "(not set)"
            elif isinstance(value, tuple):
                text = ", ".join(value) or "(none)"
            elif setting.name == "store" and value is not None:
                text = _without_password(value)
            else:
                text = "(not set)" if value is None else str(value)
            rows.append((setting.name, text, self.sources.get(setting.name, "default")))
        return rows


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting: its name in `Settings`, in `taskapp.toml` and as a flag, its environment variable, and its parser."""

    name: str
    variable: str
    read: Callable[[Any], Any]
    secret: bool = False


SETTINGS = (
    Setting("environment_api_key", "ENVIRONMENT_API_KEY", read_key, secret=True),
    Setting("environment_api_key_aliases", "ENVIRONMENT_API_KEY_ALIASES", read_keys, secret=True),
    Setting("dev_environment_api_key", "DEV_ENVIRONMENT_API_KEY", read_key, secret=True),
    Setting("keys_file", "TASKAPP_KEYS_FILE", read_path),
    Setting("store", "TASKAPP_STORE", read_text),
    Setting("store_keep", "TASKAPP_STORE_KEEP", read_store_keep),
    Setting("max_concurrent", "TASKAPP_MAX_CONCURRENT", integer(1, 1_000_000)),
    Setting("workers", "TASKAPP_WORKERS", integer(0, 256)),
    Setting("grace_seconds", "TASKAPP_GRACE_SECONDS", integer(0, 3600)),
    Setting("max_time_seconds", "TASKAPP_MAX_TIME_SECONDS", read_seconds),
    Setting("max_calls_per_answer", "TASKAPP_MAX_CALLS_PER_ANSWER", integer(1, 10_000)),
    Setting("session_idle_seconds", "TASKAPP_SESSION_IDLE_SECONDS", read_seconds),
    Setting("debug_env", "TASKAPP_DEBUG_ENV", read_switch),
    Setting("cors_origins", "TASKAPP_CORS_ORIGINS", read_origins),
    Setting("max_body_bytes", "TASKAPP_MAX_BODY_BYTES", integer(1024, 2**30)),
    Setting("gold", "TASKAPP_GOLD", read_switch),
    Setting("ui", "TASKAPP_UI", read_switch),
    Setting("hosts", "TASKAPP_HOSTS", read_list),
    Setting("ui_hosts", "TASKAPP_UI_HOSTS", read_list),
    Setting("protocols", "TASKAPP_PROTOCOLS", read_list),
    Setting("max_connections", "TASKAPP_MAX_CONNECTIONS", integer(1, 1_000_000)),
    Setting("stalled_seconds", "TASKAPP_STALLED_SECONDS", read_seconds),
    Setting("max_buffered_bytes", "TASKAPP_MAX_BUFFERED_BYTES", integer(1024, 2**40)),
    Setting("host", "TASKAPP_HOST", read_text),
    Setting("port", "TASKAPP_PORT", integer(0, 65_535)),
    Setting("log_format", LOG_FORMAT, read_log_format),
    Setting("trace_content", "TASKAPP_TRACE_CONTENT", read_switch),
    Setting("allow_weak_sandbox", "TASKAPP_ALLOW_WEAK_SANDBOX", read_switch),
    Setting("inference_allow", "TASKAPP_INFERENCE_ALLOW", read_list),
    Setting("inference_keys_for", "TASKAPP_INFERENCE_KEYS_FOR", read_keys_for),
    Setting("models_file", "TASKAPP_MODELS_FILE", read_path),
    Setting("models", "TASKAPP_MODELS", read_path),
    Setting("model_aliases", "TASKAPP_MODEL_ALIASES", read_aliases),
    Setting("vllm", "TASKAPP_VLLM", read_text),
    Setting("cache", "TASKAPP_CACHE", read_path),
)


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    env_files: Sequence[str | Path] = (),
    folder: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
    dot_env: bool = True,
) -> Settings:
    """Load the settings of a command.

    Args:
        flags: The values from the command line by setting. None means that the flag is absent.
        env_files: The paths from `--env-file`.
        folder: The directory of `.env` and `taskapp.toml`. Defaults to the working directory.
        environ: The environment variables. Defaults to the process environment.
        dot_env: Whether to read `.env`.

    Raises:
        ConfigError: A setting is invalid. The message contains the setting, its source and what was expected.
    """
    environ = os.environ if environ is None else environ
    folder = Path.cwd() if folder is None else Path(folder)
    named = [(f"--env-file {path}", _env_file(Path(path))) for path in reversed(env_files)]
    if dot_env and (folder / ".env").is_file():
        named.append((".env", _env_file(folder / ".env")))
    return _settle(flags or {}, environ, named, _config_file(folder / CONFIG_FILE))


def from_environment(environ: Mapping[str, str] | None = None) -> Settings:
    """Load settings only from the process environment, for an app that uvicorn, TestClient or Modal runs."""
    return _settle({}, os.environ if environ is None else environ, [], {})


def process_variable(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """Return a variable of the process environment, or None if it is not set or empty.

    Clients use this function for defaults. It does not read env files, because a library uses the environment of the program
    that calls the library.
    """
    return ((os.environ if environ is None else environ).get(name) or "").strip() or None


def export(settings: Settings) -> list[str]:
    """Copy variables from the env files to the process environment, unless they are set there. Return their names.

    This is necessary because authors' environments and their libraries read variables from the process environment.
    """
    added = sorted(name for name in settings.variables if name not in os.environ)
    for name in added:
        os.environ[name] = settings.variables[name]
    return added


def hand_over(settings: Settings, **more: str) -> None:
    """Set the variable of every setting in the process environment, and also the variables in `more`.

    A child process that calls `from_environment()` then loads the same settings, including keys.
    """
    export(settings)
    # With this variable, the `python -c` that multiprocessing starts does not import from the working directory.
    os.environ[SAFE_PATH] = "1"
    for setting in SETTINGS:
        value = getattr(settings, setting.name)
        if value is None or value == ():
            os.environ.pop(setting.variable, None)
        else:
            os.environ[setting.variable] = ",".join(value) if isinstance(value, tuple) else str(value)
    os.environ.update(more)


def disable_ray_usage_statistics() -> None:
    """Disable usage statistics in Ray clusters that this process starts, unless Ray's variable is already set."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def set_child_logging(*, log_format: str, log_level: str) -> None:
    """Set the log format and level of worker processes that this process starts later."""
    _for_children.update({LOG_FORMAT: log_format, LOG_LEVEL: log_level})


def take_parent_logging(environ: MutableMapping[str, str] | None = None) -> tuple[Literal["text", "json"], str]:
    """Remove the log format and level from a worker's environment, and return them.

    The defaults for missing or unknown values are `text` and `info`.
    """
    environ = os.environ if environ is None else environ
    log_format, level = (environ.pop(name, "").strip().lower() for name in (LOG_FORMAT, LOG_LEVEL))
    return "json" if log_format == "json" else "text", level if level in LEVELS else "info"


def child_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables for a child that runs author code.

    The server's keys and the store's address are removed.
    """
    environ = {**os.environ, **_for_children} if environ is None else environ
    passed = {name: value for name, value in environ.items() if not _server_only(name)}
    if PYTHON_PATH in passed:  # Python treats an empty entry, as in `:$DIRECTORY`, as the working directory
        passed[PYTHON_PATH] = os.pathsep.join(filter(None, passed[PYTHON_PATH].split(os.pathsep)))
    return passed


def server_only_names() -> list[str]:
    """Return the names of the variables that `child_environment` removes from this process's environment."""
    return [name for name in os.environ if _server_only(name)]


def keep_from_authors() -> None:
    """Remove the server's variables from the process environment, so that environments on threads cannot read them.

    Call this function only in programs that are just a server, and only after settings are loaded.
    """
    for name in server_only_names():
        del os.environ[name]


@contextmanager
def hidden_from_authors() -> Iterator[None]:
    """Remove the server's variables from the process environment while the block runs.

    Programs use this when they import author code before they load settings.
    """
    hidden = {name: os.environ.pop(name) for name in server_only_names()}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _server_only(name: str) -> bool:
    # the keys of judges and simulated users, whose models only the server calls
    role_key = name.startswith("TASKAPP_") and name.endswith("_KEY")
    return name.startswith(SERVER_ONLY) or role_key or name in ("TASKAPP_KEYS_FILE", "TASKAPP_STORE")


def _settle(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    env_files: Sequence[tuple[str, Mapping[str, str]]],
    config_file: Mapping[str, Any],
) -> Settings:
    known = {setting.name for setting in SETTINGS}
    unknown = sorted(set(flags) - known)
    if unknown:
        raise ConfigError(f"The setting {unknown[0]!r} does not exist.", hint=_suggestion(unknown[0], known))
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for setting in SETTINGS:
        option = "--" + setting.name.replace("_", "-")
        layers: list[tuple[str, Any]] = [(f"flag {option}", flags.get(setting.name))]
        layers.append((f"process environment, {setting.variable}", environ.get(setting.variable)))
        layers += [(f"{source}, {setting.variable}", content.get(setting.variable)) for source, content in env_files]
        layers.append((f"{CONFIG_FILE}, {setting.name}", config_file.get(setting.name)))
        for source, value in layers:
            if value is None or (isinstance(value, str) and not value.strip()):
                continue  # shells and compose files set a variable to an empty string if it is not set
            try:
                values[setting.name] = setting.read(value)
            except UnusableValue as expected:
                hint = f"Correct this value, or set {option} or {setting.variable}."
                if setting.secret:  # secrets have no flags, because all users can read command lines
                    hint = f"Correct {setting.variable}."
                raise ConfigError(
                    f"The setting {setting.name} ({source}) is invalid. Expected {expected}.", hint=hint
                ) from None
            sources[setting.name] = source
            break
    variables: dict[str, str] = {}
    for _, content in reversed(env_files):
        variables.update(content)
    variables.update((name, value) for name, value in environ.items() if value.strip() or name not in variables)
    return Settings(**values, sources=sources, variables=variables)


def _env_file(path: Path) -> dict[str, str]:
    from dotenv.parser import parse_stream

    values: dict[str, str] = {}
    text = _text_of(path, "Pass an existing file to --env-file.", "Save the env file as UTF-8.")
    for binding in parse_stream(io.StringIO(text)):
        if binding.error:
            raise ConfigError(
                f"{path}:{binding.original.line} is not a setting.",
                hint="Write NAME=value, a comment that begins with #, or an empty line.",
            )
        if binding.key is not None and binding.value is not None:
            values[binding.key] = binding.value
    return values


def _config_file(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    import tomllib

    text = _text_of(path, "Make the file readable, or remove it.", "Save the file as UTF-8.")
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.", hint="Correct this line.") from None
    open_names = {setting.name for setting in SETTINGS if not setting.secret}
    for name in content:
        if any(setting.name == name for setting in SETTINGS if setting.secret):
            raise ConfigError(
                f"{path} contains the API key {name}. It must not contain API keys, because it is meant to be committed.",
                hint="Move the key to the process environment, an env file, or the file that the setting keys_file names.",
            )
        if name not in open_names:
            raise ConfigError(f"The setting {name!r} in {path} does not exist.", hint=_suggestion(name, open_names))
    return content


def _text_of(path: Path, unreadable: str, not_utf8: str) -> str:
    """Return the text of a file.

    Raises ConfigError with the hint `unreadable` if the file cannot be read, or `not_utf8` if it is not UTF-8.
    """
    try:
        return path.read_text("utf-8-sig")  # Windows editors may write a byte order mark
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}).", hint=unreadable) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text.", hint=not_utf8) from None


def _suggestion(name: str, known: set[str]) -> str:
    near = closest(name, sorted(known))
    return f"Did you mean {near}?" if near else "The settings are: " + ", ".join(sorted(known)) + "."


def _without_password(url: str) -> str:
    """Return the URL without user name, password and options. If parsers may disagree on the URL, hide all of it."""
    scheme, separator, rest = url.partition("://")
    if not separator:  # a path, or libpq's key=value syntax
        return "(hidden)" if re.search(r"^postgres\w*(\+\w+)?:|password\s*=", url, re.IGNORECASE) else url
    authority, path, options = re.fullmatch(r"([^/?#]*)([^?#]*)(.*)", rest, re.DOTALL).groups()  # type: ignore[union-attr]
    if authority.count("@") > 1 or (authority and "@" in path + options):
        # if the password contains an unescaped / ? # or @, a part of it would look like the host or path
        return f"{scheme}://… (rest hidden)"
    if "@" not in authority and not options:
        return url
    return f"{scheme}://{authority.rpartition('@')[2]}{path} (rest hidden)"
