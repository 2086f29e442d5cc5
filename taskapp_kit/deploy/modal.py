"""Modal: a task app as one autoscaled web function. The only module of the kit that imports `modal`.

`modal_app.py` holds the function, because a container finds it by module and name. All it needs is here:

    SETTINGS = ModalSettings(app_name="my-task-app")
    app = modal.App(SETTINGS.app_name, image=build_image("my_app.py", SETTINGS, beside=__file__))

    @app.function(**function_options(SETTINGS))
    @modal.concurrent(max_inputs=SETTINGS.max_inputs, target_inputs=SETTINGS.target_inputs)
    @modal.asgi_app()
    def web():
        return load_task_app("my_app.py", beside=__file__).asgi()

Building these objects needs neither network nor account. Keys reach the container through one named Secret
and nothing else: no layer, no mounted file and no function definition ever holds one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from taskapp_kit.deploy import cargo, packages
from taskapp_kit.errors import ConfigError, Unavailable

if TYPE_CHECKING:
    import modal

    from taskapp_kit import TaskApp

SOURCE_ROOT = "/root"
"""Modal's working directory, which is on the container's import path."""

_OBJECT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class ModalSettings:
    """How one task app runs on Modal.

    Attributes:
        app_name: name of the Modal app; the address is `https://WORKSPACE--APP_NAME-web.modal.run`.
        secret_name: the named Secret with the keys; "" means `APP_NAME-env`.
        required_keys: variables that the Secret must hold, checked by Modal at deploy. Names, never values.
        timeout_seconds: the longest a single request may run (Modal's own default is 300).
        startup_timeout_seconds: the longest an import and its data may take to load.
        min_containers, max_containers: 0 kept warm costs nothing while idle.
        scaledown_window_seconds: how long an idle container stays, 2 to 3600.
        max_inputs, target_inputs: requests in flight per container: the most, and what scaling aims at.
        cpu: cores reserved, None for Modal's default. memory_mib: MiB reserved, None for Modal's default.
        python_version: of the container, "3.11" or later.
        extras: groups of the kit's optional packages; a bundled environment brings its own.
        extra_packages: what the author's file imports besides, as pip requirements.
        data_files: files that it reads, relative to its own folder.
    """

    app_name: str
    secret_name: str = ""
    required_keys: tuple[str, ...] = ("ENVIRONMENT_API_KEY",)
    timeout_seconds: int = 3600
    startup_timeout_seconds: int = 120
    min_containers: int = 0
    max_containers: int = 8
    scaledown_window_seconds: int = 300
    max_inputs: int = 32
    target_inputs: int = 24
    cpu: float | None = None
    memory_mib: int | None = None
    python_version: str = "3.12"
    extras: tuple[str, ...] = ()
    extra_packages: tuple[str, ...] = ()
    data_files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.secret_name:
            object.__setattr__(self, "secret_name", f"{self.app_name}-env")
        for name in ("required_keys", "extras", "extra_packages", "data_files"):
            if isinstance(getattr(self, name), str):
                raise ConfigError(f"ModalSettings.{name} is one text.", hint=f"Write {name}=(…,), a tuple of texts.")
        for name in ("app_name", "secret_name"):
            if not _OBJECT_NAME.fullmatch(getattr(self, name)):
                raise ConfigError(
                    f"ModalSettings.{name} is no name that Modal accepts.",
                    hint="Use up to 64 letters, digits, dots, dashes and underscores.",
                )
        if not all(_VARIABLE.fullmatch(key) for key in self.required_keys):
            raise ConfigError(  # the entry is not repeated: it may be a key itself
                "ModalSettings.required_keys holds something that is no variable name.",
                hint='Give names such as "ENVIRONMENT_API_KEY"; the values belong in the Secret.',
            )
        if "ENVIRONMENT_API_KEY" not in self.required_keys:
            raise ConfigError(
                "ModalSettings.required_keys lacks ENVIRONMENT_API_KEY; without it every request is refused.",
                hint="Add it; then a deploy whose Secret lacks it fails at once, and not in each container.",
            )
        self._check_numbers()

    def _check_numbers(self) -> None:
        bounds: dict[str, tuple[int, int]] = {
            "timeout_seconds": (1, 86_400),
            "startup_timeout_seconds": (1, 86_400),
            "min_containers": (0, 10_000),
            "max_containers": (max(1, self.min_containers), 10_000),
            "scaledown_window_seconds": (2, 3600),
            "max_inputs": (1, 1000),
            "target_inputs": (1, self.max_inputs),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ConfigError(
                    f"ModalSettings.{name} is {value!r}.",
                    hint=f"Expected a whole number from {low} to {high}.",
                )
        for name, amount in (("cpu", self.cpu), ("memory_mib", self.memory_mib)):
            if amount is not None and not 0 < amount < float("inf"):
                raise ConfigError(f"ModalSettings.{name} is {amount!r}.", hint="Expected a positive number, or None.")
        version = re.fullmatch(r"3\.(\d{1,2})", self.python_version)
        if version is None or int(version[1]) < 11:
            raise ConfigError(
                f"ModalSettings.python_version is {self.python_version!r}.", hint='Expected "3.11" or later.'
            )


def build_image(target: str, settings: ModalSettings, *, beside: str | Path) -> modal.Image:
    """The container's image: slim Debian, pinned packages, and the source as mounts: edits rebuild nothing.

    Args:
        target: `my_app.py`, `my_app.py:app`, `package.module:app`, or a bundled name such as `crafter`.
        settings: of the same deploy.
        beside: `__file__` of the calling module; a relative `target` starts from its folder.

    Raises:
        DiscoveryError, ConfigError: see `cargo.trees` and `packages.requirements`.
        Unavailable: Modal's client is not installed.
    """
    client = _require_modal()
    image: modal.Image = client.Image.debian_slim(python_version=settings.python_version)
    if not client.is_local():
        return image  # the module is imported again inside the container, where the image already stands
    parsed = cargo.parse_target(target)
    extras = set(settings.extras)
    if parsed.kind == "bundled" and parsed.name in packages.known_extras():
        extras.add(parsed.name)
    trees = cargo.trees(parsed, beside=_folder(beside), data_files=settings.data_files)
    image = image.uv_pip_install(*packages.requirements(extras, settings.extra_packages))
    for tree in trees:
        image = _with_tree(image, tree)
    return image


def build_secret(settings: ModalSettings) -> modal.Secret:
    """The named Secret, as a reference: its values stay with Modal; a deploy without its keys fails there."""
    secret: modal.Secret = _require_modal().Secret.from_name(
        settings.secret_name, required_keys=list(settings.required_keys)
    )
    return secret


def function_options(settings: ModalSettings) -> dict[str, Any]:
    """The arguments of `@app.function`."""
    return {
        "secrets": [build_secret(settings)],
        "timeout": settings.timeout_seconds,
        "startup_timeout": settings.startup_timeout_seconds,
        "min_containers": settings.min_containers,
        "max_containers": settings.max_containers,
        "scaledown_window": settings.scaledown_window_seconds,
        "cpu": settings.cpu,
        "memory": settings.memory_mib,
    }


def load_task_app(target: str, *, beside: str | Path) -> TaskApp:
    """Imports the author's app: in the container from what was mounted, elsewhere (`web.local()`) in place.

    Raises:
        DiscoveryError: no such app, or its file failed while importing.
    """
    from taskapp_kit.declare.discovery import find_app

    parsed = cargo.parse_target(target)
    if not _require_modal().is_local():
        return find_app(cargo.container_address(parsed, cargo.KIT_DIR.parent))
    if parsed.kind == "file":
        attribute = f":{parsed.attribute}" if parsed.attribute else ""
        return find_app(f"{_folder(beside) / parsed.name}{attribute}")
    return find_app(target)


def _with_tree(image: modal.Image, tree: cargo.Tree) -> modal.Image:
    remote = f"{SOURCE_ROOT}/{tree.remote_dir}".rstrip("/")
    if (tree.local_dir / "__init__.py").is_file():
        return image.add_local_dir(tree.local_dir, remote, ignore=_all_but(tree.files))
    for file in tree.files:  # an author's folder may hold anything, of any size: Modal does not get to walk it
        image = image.add_local_file(tree.local_dir / file, f"{remote}/{file}")
    return image


def _all_but(files: Iterable[str]) -> Callable[[Path], bool]:
    """Modal walks a package itself; this leaves it the files that were chosen."""
    wanted = frozenset(files)
    return lambda path: path.as_posix() not in wanted


def _folder(beside: str | Path) -> Path:
    path = Path(beside).absolute()
    return path if path.is_dir() else path.parent


def _require_modal() -> ModuleType:
    try:
        import modal
    except ModuleNotFoundError as error:
        if error.name != "modal":
            raise
        raise Unavailable(
            "Deploying to Modal needs Modal's client, which is not installed here.",
            hint="Install it with: pip install 'taskapp-kit[modal]'",
        ) from error
    return modal
