"""A task app on Modal as one autoscaled web function, whose Modal objects are created here from a plan.

`modal_app.py` defines the function, because a container finds it by its module and name:

    DEPLOYMENT = Deployment("my_app.py", ModalSettings(app_name="my-app", store="none"), beside=__file__)
    app = DEPLOYMENT.app

    @app.function(**DEPLOYMENT.function)
    @modal.concurrent(**DEPLOYMENT.concurrency)
    @modal.asgi_app(**DEPLOYMENT.web)
    def web():
        return DEPLOYMENT.serve()

Building these objects needs neither network nor account. Keys reach the container only through named Secrets, never
through a layer, a mounted file or the function's definition.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskapp_kit.config import from_environment, keep_from_authors
from taskapp_kit.deploy.modal.account import OWNER_TAG
from taskapp_kit.deploy.modal.container import preload, require_modal, serve, tickets_of
from taskapp_kit.deploy.modal.modal_settings import ModalSettings
from taskapp_kit.deploy.modal.plan import SOURCE_ROOT, DeployPlan, make_plan, together
from taskapp_kit.deploy.packaging.import_check import ImportCheck
from taskapp_kit.deploy.packaging.source_files import FileSet, folder_of
from taskapp_kit.deploy.packaging.wheel import keep
from taskapp_kit.errors import KitError
from taskapp_kit.version import __version__

if TYPE_CHECKING:
    import modal
    from fastapi import FastAPI

__all__ = ["OWNER_TAG", "Deployment", "ModalSettings"]

CONTAINER_FILE = "taskapp_deployment.json"
"""The container's part of the plan, at its source root. It contains names and numbers, never a key."""
ASKED_FILE = "taskapp_asked.json"
"""The request of `taskapp deploy`, next to the entry module. It stays on this machine."""
ADDRESSES = "*.modal.run"
"""The hosts of Modal's web functions."""
WHEEL_DIR = "/opt/taskapp-kit"


class Deployment:
    """One task app on Modal: the arguments of its function, and the server of its container.

    In a container the arguments are ignored: a file contains the decisions of the deployment.

    Args:
        target: `my_app.py`, `my_app.py:app`, a directory with an `app.py`, `package.module:app`, or a bundled name.
        said: Settings that override the app's own `[tool.taskapp.modal]`.
        beside: `__file__` of the calling module. A relative `target` is relative to its directory.
        rehearsal: The result of an import check of the same app. By default the app is imported.

    Raises:
        DiscoveryError: See `plan.make_plan`.
        ConfigError: See `plan.make_plan`.
        Unavailable: Modal's client is not installed.
    """

    def __init__(
        self,
        target: str,
        said: ModalSettings | None = None,
        *,
        beside: str | Path,
        rehearsal: ImportCheck | None = None,
    ) -> None:
        self._client = require_modal()
        self._beside = folder_of(beside)
        self.plan: DeployPlan | None = None
        # A container does not have the plan's inputs (the author's pyproject.toml, this machine's packages).
        if self._client.is_local():
            try:
                self.plan = make_plan(target, said or ModalSettings(), beside=beside, rehearsal=rehearsal)
            except KitError as error:  # the author needs the message, not our traceback
                raise error.with_traceback(None) from None
            container_part, self._target = self.plan.for_container(), self.plan.target
        else:
            container_part = json.loads((self._beside / CONTAINER_FILE).read_text("utf-8"))
            self._target = container_part["target"]
        self._required_keys = container_part["required_keys"]
        self.settings = ModalSettings(**container_part["settings"])
        if self.settings.memory_snapshot:
            preload(self._target, beside=self._beside)  # part of the memory snapshot, unlike keys and clients

    @classmethod
    def asked(cls, *, beside: str | Path) -> Deployment:
        """Return the deployment that `taskapp deploy` requested in a file next to its entry module. Raises like the class."""
        file = folder_of(beside) / ASKED_FILE
        if not require_modal().is_local():
            return cls("", beside=beside)
        asked = json.loads(file.read_text("utf-8"))
        rehearsal = asked["rehearsal"]
        return cls(
            asked["target"],
            ModalSettings(**asked["said"]),
            beside=asked["beside"],
            rehearsal=ImportCheck.of(rehearsal) if rehearsal is not None else None,
        )

    @property
    def app(self) -> modal.App:
        """A new Modal app with the image and the kit's tag."""
        made: modal.App = self._client.App(self.settings.app_name, image=self._image(), tags={OWNER_TAG: __version__})
        return made

    @property
    def function(self) -> dict[str, Any]:
        """The arguments of `@app.function`."""
        settings = self.settings
        *others, own = (*(settings.extra_secrets or ()), str(settings.secret_name))
        secrets = [self._client.Secret.from_name(name) for name in others]
        secrets.append(self._client.Secret.from_name(own, required_keys=list(self._required_keys)))
        return {
            "secrets": secrets,
            "volumes": {
                folder: self._client.Volume.from_name(name, create_if_missing=True)
                for folder, name in sorted((settings.volumes or {}).items())
            },
            "timeout": settings.timeout_seconds,
            "startup_timeout": settings.startup_timeout_seconds,
            "min_containers": settings.min_containers,
            "max_containers": settings.max_containers,
            "buffer_containers": settings.buffer_containers or None,
            "scaledown_window": settings.scaledown_window_seconds,
            "cpu": settings.cpu,
            "memory": settings.memory_mib,
            "region": list(settings.region) if settings.region else None,
            "enable_memory_snapshot": bool(settings.memory_snapshot),
        }

    @property
    def concurrency(self) -> dict[str, Any]:
        """The arguments of `@modal.concurrent`."""
        return {"max_inputs": self.settings.max_inputs, "target_inputs": self.settings.target_inputs}

    @property
    def web(self) -> dict[str, Any]:
        """The arguments of `@modal.asgi_app`."""
        return {"custom_domains": list(self.settings.custom_domains)} if self.settings.custom_domains else {}

    def serve(self) -> FastAPI:
        """Import the app and return the server of this container or process.

        Raises DiscoveryError, DeclarationError, ConfigError, Unavailable, StoreError.
        """
        settings = from_environment()
        if not self._client.is_local():
            # The author's code, and programs that it starts, could read the Secret's keys in the environment.
            keep_from_authors()
            hosts = (*settings.hosts, ADDRESSES, *(self.settings.custom_domains or ()))
            settings = dataclasses.replace(settings, hosts=hosts)
        if self.settings.store == "none":  # a Secret shared with other apps may contain a store's address
            settings = dataclasses.replace(settings, store=None)
        return serve(
            self._target,
            beside=self._beside,
            settings=settings,
            coordinator=together(self.settings),
            dict_name=tickets_of(str(self.settings.app_name)),
        )

    def _image(self) -> modal.Image:
        image: modal.Image = self._client.Image.debian_slim(python_version=self.settings.python_version)
        plan = self.plan
        if plan is None:
            return image  # a container has its image already
        if plan.settings.apt_packages:
            image = image.apt_install(*plan.settings.apt_packages)
        wheel = f"{WHEEL_DIR}/{plan.wheel.name}"
        image = image.uv_pip_install(*plan.requirements)
        image = image.add_local_file(plan.wheel, wheel, copy=True).uv_pip_install(wheel, extra_options="--no-deps")
        container_part = keep(json.dumps(plan.for_container(), sort_keys=True, indent=1).encode(), CONTAINER_FILE)
        image = image.add_local_file(container_part, f"{SOURCE_ROOT}/{CONTAINER_FILE}")
        for tree in plan.trees:  # mounts: an edit rebuilds no layer
            image = _with_tree(image, tree)
        return image


def _with_tree(image: modal.Image, tree: FileSet) -> modal.Image:
    remote = f"{SOURCE_ROOT}/{tree.remote_dir}".rstrip("/")
    if (tree.local_dir / "__init__.py").is_file():
        return image.add_local_dir(tree.local_dir, remote, ignore=_all_but(tree.files))
    for file in tree.files:  # the directory may contain anything of any size, so Modal must not walk it
        image = image.add_local_file(tree.local_dir / file, f"{remote}/{file}")
    return image


def _all_but(files: Iterable[str]) -> Callable[[Path], bool]:
    """Return a filter that excludes all other files, because Modal walks a package itself."""
    selected = frozenset(files)
    return lambda path: path.as_posix() not in selected
