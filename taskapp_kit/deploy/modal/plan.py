"""Plans a deployment to Modal: everything that is built, uploaded and registered.

`make_plan` requires no Modal client, account or network. `deploy/modal/deployment.py` creates Modal's objects from a
plan, and `taskapp deploy --dry-run` prints the plan.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskapp_kit.deploy.modal.container import Together
from taskapp_kit.deploy.modal.declared_requirements import DeclaredRequirements, python_version, read_needs
from taskapp_kit.deploy.modal.modal_settings import STORE_CHOICES, ModalSettings
from taskapp_kit.deploy.packaging import requirements as python_requirements
from taskapp_kit.deploy.packaging import source_files
from taskapp_kit.deploy.packaging.import_check import ImportCheck, ImportCheckFailed, MissingModule, rehearse
from taskapp_kit.deploy.packaging.wheel import kit_wheel
from taskapp_kit.errors import ConfigError

SOURCE_ROOT = "/root"
"""Modal's working directory, which is on the import path of the container."""
ALWAYS_THERE = frozenset(
    {source_files.KIT_DIR.name, "modal", "modal_proto", "modal_version", "grpclib", "synchronicity"}
)
"""Modules in every container besides the installed packages: the kit and Modal's client."""
Known = tuple[frozenset[str], tuple[str, ...]]
"""The result of `requirements.modules_of`, which is slow, so that it is called once per plan."""


@dataclass(frozen=True, slots=True)
class DeployPlan:
    """A planned deployment.

    Attributes:
        target: The app's reference, as the author wrote it.
        address: The app's reference in the container.
        settings: All settings, including defaults.
        required_keys: Variables that the Secrets must contain.
        requirements: Packages that are installed before the kit's wheel.
        wheel: The kit's wheel.
        trees: The author's files.
        rehearsal: The result of the import check, or None if it was disabled.
        warnings: Warnings for the author.
        left: Files and directories next to the app that are not uploaded.
        source: The file that declares the requirements, or None if the app declares no requirements.
    """

    target: str
    address: str
    settings: ModalSettings
    required_keys: tuple[str, ...]
    requirements: tuple[str, ...]
    wheel: Path
    trees: tuple[source_files.FileSet, ...]
    rehearsal: ImportCheck | None
    warnings: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    source: Path | None = None

    @property
    def app_name(self) -> str:
        """The name of the Modal app."""
        return str(self.settings.app_name)

    @property
    def secret_names(self) -> tuple[str, ...]:
        """The named Secrets. The app's own Secret is the last one and overrides the others."""
        return (*(self.settings.extra_secrets or ()), str(self.settings.secret_name))

    @property
    def coordinator(self) -> Together:
        """Where Idempotency-Keys and results are stored, so that they work across containers."""
        return together(self.settings)

    def files(self) -> list[tuple[str, int]]:
        """Return the author's files as pairs of path in the container and size in bytes."""
        return [
            (f"{SOURCE_ROOT}/{tree.remote_dir}/{file}".replace("//", "/"), (tree.local_dir / file).stat().st_size)
            for tree in self.trees
            for file in tree.files
        ]

    def for_container(self) -> dict[str, Any]:
        """Return the part of the plan that the container needs, as JSON. It contains no local paths and no keys."""
        return {
            "target": Path(self.target).name if self.trees and self.address.startswith("/") else self.target,
            "settings": self.settings.said(),
            "required_keys": list(self.required_keys),
        }


def make_plan(
    target: str, said: ModalSettings, *, beside: str | Path, rehearsal: ImportCheck | None = None
) -> DeployPlan:
    """Plan the deployment of one app.

    Args:
        target: `my_app.py`, `my_app.py:app`, a directory with an `app.py`, `package.module:app`, or a bundled name.
        said: Settings in `modal_app.py` or on the command line, which override the app's declarations.
        beside: A directory, or a file in a directory. A relative path in `target` starts in this directory.
        rehearsal: The result of an import check of the same app and settings. By default, the check is run.

    Raises:
        DiscoveryError: The app does not exist, or cannot be imported with the container's packages.
        ConfigError: A setting, package or file is invalid.
    """
    folder = source_files.folder_of(beside)
    target = source_files.resolve(target, beside=folder)
    parsed = source_files.parse_target(target)
    tree = next(iter(source_files.trees(parsed, beside=folder)), None)
    needs = read_needs(parsed, beside=folder)
    chosen = said.over(needs.settings)
    settings = chosen.completed()
    settings = dataclasses.replace(
        settings,
        python_version=settings.python_version or python_version(needs.requires_python, sys.version_info[:2]),
    )
    extras = set(settings.extras or ()) | set(needs.extras)
    if settings.store == "postgres-secret":
        extras.add("postgres")
    if parsed.kind == "bundled" and parsed.name in python_requirements.known_extras():
        extras.add(parsed.name)
    lines = python_requirements.requirements(extras, (*needs.dependencies, *(settings.extra_packages or ())))
    known = python_requirements.modules_of(lines)
    warnings = [f"No store is selected. Set `store` or pass --store: {STORE_CHOICES}"] if chosen.store is None else []
    import_check = rehearsal
    data = list(settings.data_files or ())
    if settings.rehearse and import_check is None:
        import_check, more = _rehearsed(parsed, needs, known, tree, data, folder=folder)
        warnings += more
    if import_check is not None and tree is not None:
        data += _named_files(import_check, tree)
    trees = source_files.trees(parsed, beside=folder, data_files=data)
    if trees:
        warnings += _lazy_imports(trees[0], needs, known)
    return DeployPlan(
        target=target,
        address=source_files.container_address(parsed, Path(SOURCE_ROOT)),
        settings=settings,
        required_keys=tuple(
            dict.fromkeys((*settings.all_required_keys(), *(import_check.roles if import_check else ())))
        ),
        requirements=lines,
        wheel=kit_wheel(),
        trees=trees,
        rehearsal=import_check,
        warnings=tuple(warnings),
        left=tuple(_left(trees[0])) if trees else (),
        source=needs.source,
    )


def together(settings: ModalSettings) -> Together:
    """Return where idempotency records are stored.

    Records are stored in the app's store if there is one, in memory if there is a single container, and in a modal.Dict
    otherwise.
    """
    if settings.store == "postgres-secret":
        return "store"
    return "memory" if settings.max_containers == 1 else "dict"


def _rehearsed(
    parsed: source_files.Target,
    needs: DeclaredRequirements,
    known: Known,
    tree: source_files.FileSet | None,
    data: list[str],
    *,
    folder: Path,
) -> tuple[ImportCheck, list[str]]:
    """Run the import check, and return its result and warnings.

    Raises:
        DiscoveryError: The app cannot be imported with the container's packages.
        ConfigError: The app reads a file that would not be uploaded.
    """
    modules, unknown = known
    own = _own_modules(tree) if tree is not None else frozenset()
    attribute = f":{parsed.attribute}" if parsed.attribute else ""
    address = f"{folder / parsed.name}{attribute}" if parsed.kind == "file" else f"{parsed.name}{attribute}"
    try:
        import_check = rehearse(
            address,
            allowed=[*modules, *own, *ALWAYS_THERE],
            folder=tree.local_dir if tree is not None else None,
            own=(*tree.files, *data) if tree is not None else (),
        )
    except MissingModule as error:
        sentence, advice = _advice(error.module, needs, unknown, _inside(parsed, error.module, folder))
        raise ImportCheckFailed(f"{error.message}, {sentence}", hint=advice) from None
    warnings = []
    public = [path for path in import_check.opened if not source_files.is_private(path)]
    private = [path for path in import_check.opened if source_files.is_private(path)]
    if public and tree is not None:
        names = ", ".join(_relative(path, tree.local_dir) for path in public)
        raise ConfigError(
            f"During the import, the app opens {names}, which would be missing in a container.",
            hint='Use app.path("FILE") in the app, or add the file to data_files under [tool.taskapp.modal].',
        )
    if private and tree is not None:
        names = ", ".join(_relative(path, tree.local_dir) for path in private)
        warnings.append(
            f"The app reads {names}. Private files are not uploaded, so add the values in these files to the Secret."
        )
    return import_check, warnings


def _inside(parsed: source_files.Target, module: str, folder: Path) -> str | None:
    """Return the module reference to deploy if the app's file is in the package `module`, or None if it is not."""
    file = folder / parsed.name
    above, names = file.parent, [file.stem]
    while parsed.kind == "file" and (above / "__init__.py").is_file():
        names.insert(0, above.name)
        if above.name == module:
            return f"{'.'.join(names)}:{parsed.attribute or 'app'}"
        above = above.parent
    return None


def _advice(module: str, needs: DeclaredRequirements, unknown: tuple[str, ...], inside: str | None) -> tuple[str, str]:
    if inside is not None:
        return (
            "the package that contains the app, but a single file is deployed without its package.",
            f"In the directory that contains {module}/, run: taskapp deploy {inside}",
        )
    if not python_requirements.providers_of(module) and source_files.find_top(module) is not None:
        return (
            "which is on this machine but not in an installed package, so it would be missing in the container.",
            f"Move {module} next to the app's file, or create a package that the container can install.",
        )
    package = next(iter(python_requirements.providers_of(module)), module)
    if (
        python_requirements.normalized_name(module) in unknown
        or python_requirements.normalized_name(package) in unknown
    ):
        return (
            "which is declared but not installed on this machine, so the import cannot be checked.",
            f"Install it (pip install {package}), or set rehearse = false under [tool.taskapp.modal].",
        )
    place = "the `# /// script` block"
    if needs.source is not None and not needs.block:
        place = needs.source.name
    return f"which is not declared in {place}.", needs.where_to_declare(package)


def _own_modules(tree: source_files.FileSet) -> frozenset[str]:
    if tree.remote_dir and tree.remote_dir != source_files.APP_DIR:  # a package is mounted with its own name
        return frozenset({tree.remote_dir})
    return frozenset(file.partition("/")[0].removesuffix(".py") for file in tree.files)


def _named_files(import_check: ImportCheck, tree: source_files.FileSet) -> list[str]:
    return [_relative(path, tree.local_dir) for path in import_check.files]


def _relative(path: str, folder: Path) -> str:
    for top in (folder, folder.resolve()):
        relative = os.path.relpath(path, top)
        if not relative.startswith(".."):
            return Path(relative).as_posix()
    return path


def _lazy_imports(tree: source_files.FileSet, needs: DeclaredRequirements, known: Known) -> Iterator[str]:
    """Yield a warning for each module that a function imports and that would be missing in a container."""
    modules, unknown = known
    there = modules | _own_modules(tree) | ALWAYS_THERE | sys.stdlib_module_names | set(unknown)
    for file in tree.files:
        if not file.endswith(".py"):
            continue
        for module, line in source_files.lazy_imports(tree.local_dir / file):
            if module not in there and python_requirements.normalized_name(module) not in there:
                yield (
                    f"{file}:{line} imports {module} in a function, but the module would be missing in the container. "
                    f"{needs.where_to_declare(next(iter(python_requirements.providers_of(module)), module))}"
                )


def _left(tree: source_files.FileSet) -> Iterator[str]:
    """Yield the files in the app's directory that are not uploaded, and the directories without uploaded files."""
    taken = {file.partition("/")[0] for file in tree.files}
    for entry in sorted(tree.local_dir.iterdir()):
        if entry.name not in taken and entry.name != "__pycache__":
            yield f"{entry.name}/" if entry.is_dir() else entry.name


__all__ = ["SOURCE_ROOT", "DeployPlan", "make_plan"]
