"""A class or a function as another process finds it, and finding it there."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskapp_kit.declare.discovery import load_file, loaded_from_file
from taskapp_kit.errors import BadArgument, ServiceError
from taskapp_kit.system.child_python import add_import_folder

MAIN, MAIN_OF_REPLICA = "__main__", "__mp_main__"
"""The names under which a script's classes are known: where it was started, and in replicas (as multiprocessing does it)."""


@dataclass(frozen=True, slots=True)
class ClassReference:
    """A class, or a function, as another process finds it. module: its name. file: of a script that Python runs as
    `__main__`, or of an app that was loaded from its path; else "".

    folders: of this process's import path.
    """

    module: str
    name: str
    file: str
    folders: tuple[str, ...]

    @classmethod
    def of(cls, target: Any, what: str = "class") -> ClassReference:
        """what: for messages. Raises BadArgument for a class or function that another process cannot import."""
        module = sys.modules.get(target.__module__)
        found: Any = module
        for part in target.__qualname__.split("."):
            found = getattr(found, part, None)
        if found is not target:
            raise BadArgument(
                f"{target.__qualname__} of {target.__module__} cannot be the {what} of a service: its replicas are other "
                "processes, which have to import it, and it is not in its module under that name.",
                hint="Define it at the top of a file.",
            )
        file = getattr(module, "__file__", None)
        if target.__module__ == MAIN and file is None:
            raise BadArgument(
                f"{target.__qualname__} cannot be the {what} of a service: its replicas are other processes, which have to "
                "import it, and it was typed into this one.",
                hint="Put it into a file, and import it.",
            )
        by_path = file is not None and (target.__module__ == MAIN or loaded_from_file(target.__module__))
        path = str(Path(file).resolve()) if by_path and file else ""
        return cls(target.__module__, target.__qualname__, path, tuple(filter(None, sys.path)))

    def load(self) -> Any:
        """Import the class here. A script is run under another name than `__main__`.

        Raises ServiceError, ImportError, DiscoveryError.
        """
        for folder in reversed(self.folders):
            add_import_folder(folder)
        if self.module == MAIN:
            found: Any = _script(self.file)
        else:
            found = load_file(Path(self.file)) if self.file else importlib.import_module(self.module)
        for part in self.name.split("."):
            found = getattr(found, part)
        return found


def _script(file: str) -> Any:
    spec = importlib.util.spec_from_file_location(MAIN_OF_REPLICA, file)
    if spec is None or spec.loader is None:
        raise ServiceError(f"{file} cannot be imported; expected a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MAIN_OF_REPLICA] = sys.modules[MAIN] = module
    spec.loader.exec_module(module)
    return module
