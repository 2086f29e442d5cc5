"""Creates Modal's objects for a task app, which runs on Modal as an autoscaled web function.

`modal_app.py` must define the function, because a container finds the function by its module and name:

    DEPLOYMENT = Deployment("my_app.py", ModalSettings(app_name="my-app", store="none"), beside=__file__)
    app = DEPLOYMENT.app

    @app.function(**DEPLOYMENT.function)
    @modal.concurrent(**DEPLOYMENT.concurrency)
    @modal.asgi_app(**DEPLOYMENT.web)
    def web():
        return DEPLOYMENT.serve()

Creating these objects requires neither a network nor an account. Keys are passed to the container only in named
Secrets, never in an image layer, a mounted file or the definition of the function.
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
"""The name of the file with the container's part of the plan, in its source root. The file never contains a key."""
ASKED_FILE = "taskapp_asked.json"
"""The name of the file with the options of `taskapp deploy`, next to the entry module. It is not uploaded."""
ADDRESSES = "*.modal.run"
"""The domain of Modal's web functions."""
WHEEL_DIR = "/opt/taskapp-kit"


class Deployment:
    """A task app on Modal: the arguments of its web function, and the server in its containers.

    In a container, the constructor ignores its arguments. It reads the settings from a file that the deployment has
    written.

    Args:
        target: `my_app.py`, `my_app.py:app`, a directory with an `app.py`, `package.module:app`, or a bundled name.
        said: Settings that override the app's `[tool.taskapp.modal]`.
        beside: `__file__` of the calling module. A relative path in `target` starts in this module's
            directory.
        rehearsal: The result of an import check of the same app. By default, the check is run.

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
        # A container has no access to the inputs of the plan, such as the author's pyproject.toml.
        if self._client.is_local():
            try:
                self.plan = make_plan(target, said or ModalSettings(), beside=beside, rehearsal=rehearsal)
            except KitError as error:  # shows the author the message without a traceback of the kit
                raise error.with_traceback(None) from None
            container_part, self._target = self.plan.for_container(), self.plan.target
        else:
            container_part = json.loads((self._beside / CONTAINER_FILE).read_text("utf-8"))
            self._target = container_part["target"]
        self._required_keys = container_part["required_keys"]
        self.settings = ModalSettings(**container_part["settings"])
        if self.settings.memory_snapshot:
            preload(self._target, beside=self._beside)  # imported before the memory snapshot, unlike keys and clients

    @classmethod
    def asked(cls, *, beside: str | Path) -> Deployment:
        """Return the deployment for the options that `taskapp deploy` wrote next to its entry module.

        Raises the same exceptions as the constructor.
        """
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
        """Import the app and return the server of this container or process. See `container.serve` for exceptions."""
        settings = from_environment()
        if not self._client.is_local():
            # The author's code and its child processes must not find the Secret's keys in the environment.
            keep_from_authors()
            hosts = (*settings.hosts, ADDRESSES, *(self.settings.custom_domains or ()))
            settings = dataclasses.replace(settings, hosts=hosts)
        if self.settings.store == "none":  # other apps may share the Secret, which may contain the address of a store
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
            return image  # a container already runs in its image
        if plan.settings.apt_packages:
            image = image.apt_install(*plan.settings.apt_packages)
        wheel = f"{WHEEL_DIR}/{plan.wheel.name}"
        image = image.uv_pip_install(*plan.requirements)
        image = image.add_local_file(plan.wheel, wheel, copy=True).uv_pip_install(wheel, extra_options="--no-deps")
        container_part = keep(json.dumps(plan.for_container(), sort_keys=True, indent=1).encode(), CONTAINER_FILE)
        image = image.add_local_file(container_part, f"{SOURCE_ROOT}/{CONTAINER_FILE}")
        for tree in plan.trees:  # mounted, so that an edit does not rebuild a layer
            image = _with_tree(image, tree)
        return image


def _with_tree(image: modal.Image, tree: FileSet) -> modal.Image:
    remote = f"{SOURCE_ROOT}/{tree.remote_dir}".rstrip("/")
    if (tree.local_dir / "__init__.py").is_file():
        return image.add_local_dir(tree.local_dir, remote, ignore=_all_but(tree.files))
    for file in tree.files:  # Modal must not walk the whole directory, which may contain private and large files
        image = image.add_local_file(tree.local_dir / file, f"{remote}/{file}")
    return image


def _all_but(files: Iterable[str]) -> Callable[[Path], bool]:
    """Return a filter that excludes all files except `files` when Modal collects the files of a package."""
    selected = frozenset(files)
    return lambda path: path.as_posix() not in selected
