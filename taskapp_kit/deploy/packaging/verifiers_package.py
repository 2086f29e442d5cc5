"""Writes an app as a package for verifiers, with `load_environment` (up to 0.3.1) and a taskset (0.4 and later)."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from taskapp_kit.declare.app import TaskApp
from taskapp_kit.deploy.packaging.requirements import DISTRIBUTION, check_package, known_extras
from taskapp_kit.deploy.packaging.source_files import APP_DIR, parse_target, resolve, trees
from taskapp_kit.errors import ConfigError, RequestError
from taskapp_kit.version import __version__

VERIFIERS = "verifiers>=0.3.1,<0.5"
PREFIX = "taskapp-"


@dataclass(frozen=True, slots=True)
class VerifiersPackage:
    """A verifiers package that was written to a directory.

    Attributes:
        name: The name of the distribution.
        module: The name of the module.
        files: Sorted paths of the written files, relative to the package's directory.
        command: A command for verifiers 0.4 and later that evaluates a few tasks of the split `test`, or of the last
            split if there is no `test`.
    """

    name: str
    module: str
    files: tuple[str, ...]
    command: str


def write_verifiers_package(
    app: TaskApp,
    reference: str,
    out: Path,
    *,
    beside: Path,
    data_files: Sequence[str] = (),
    packages: Sequence[str] = (),
) -> VerifiersPackage:
    """Write an app as a verifiers package to the directory `out`.

    Args:
        app: The app.
        reference: The app's reference. A file is copied together with the local modules that it imports. A bundled app
            is part of the kit. For an installed module, `packages` must contain the distribution that provides it.
        out: The directory, which must be empty or not exist.
        beside: The directory to which a path in `reference` is relative.
        data_files: Files that the app reads, relative to the directory of the app's file.
        packages: Additional requirements of the package.

    Raises:
        RequestError: `out` exists and is not an empty directory.
        DiscoveryError: The app does not exist.
        ConfigError: A data file or requirement is invalid, or the app has a custom rollout function.
        OSError: The directory cannot be written.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise RequestError(f"{out} already exists and is not an empty directory.", hint="Choose another directory.")
    for line in packages:
        check_package(line)
    spec = app.freeze()
    if spec.rollout_function is not None:
        raise ConfigError(
            f"Task app {spec.name!r} has its own rollout function (app.rollout), but in verifiers the harness calls the model.",
            hint="Serve the app and collect rollouts over HTTP; see docs/connect/trainers.md.",
        )
    target = parse_target(resolve(reference, beside=beside))
    own_files = trees(target, beside=beside, data_files=data_files) if target.kind == "file" else ()
    word = re.sub(r"[^a-z0-9]+", "-", spec.name.lower()).strip("-") or "app"
    name = f"{PREFIX}{word}"
    module = name.replace("-", "_")
    attribute = f":{target.attribute}" if target.attribute else ""
    if target.kind == "file":
        place = f'str(Path(__file__).parent / "{APP_DIR}" / "{Path(target.name).name}"){f" + {attribute!r}" if attribute else ""}'
    else:
        place = repr(f"{target.name}{attribute}")
    extra = f"[{target.name}]" if target.kind == "bundled" and target.name in known_extras() else ""
    class_name = "".join(part.capitalize() for part in word.split("-"))
    class_name = class_name if class_name[0].isalpha() else f"App{class_name}"
    splits = spec.default_environment.split_names
    split = "test" if "test" in splits else splits[-1]
    command = f"vf-eval {name} -m MODEL --client.base-url URL -n 5 --env.taskset.split {split} --no-push"
    words = {
        "name": name,
        "command": command,
        "module": module,
        "app": spec.name,
        "version": spec.version if re.fullmatch(r"[0-9]+(\.[0-9]+)*", spec.version) else "0.1.0",
        "description": " ".join((spec.description or spec.default_environment.description).split()).replace('"', "'"),
        "place": place,
        "path_import": "from pathlib import Path\n\n" if target.kind == "file" else "",
        "class_name": class_name,
        "requirements": ",\n".join(
            f'    "{line}"' for line in (f"{DISTRIBUTION}{extra}>={__version__}", VERIFIERS, *packages)
        ),
    }
    written = {path.format(**words): text.format(**words) for path, text in FILES.items()}
    for path, text in written.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_text(text, "utf-8")
    copied = []
    for tree in own_files:
        for file in tree.files:
            copied.append(f"{module}/{tree.remote_dir}/{file}")
            (out / copied[-1]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(tree.local_dir / file, out / copied[-1])
    return VerifiersPackage(name, module, tuple(sorted([*written, *copied])), command)


FILES = {
    "pyproject.toml": """\
[project]
name = "{name}"
version = "{version}"
description = "{description}"
readme = "README.md"
requires-python = ">=3.11"
dependencies = [
{requirements},
]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["{module}"]
""",
    "README.md": """\
# {name}

{description}

The task app `{app}`, written by `taskapp generate verifiers`. The app defines the rules, rubrics and rewards, and verifiers
plays it in its own process.

| verifiers | |
|---|---|
| up to 0.3.1 | `verifiers.load_environment("{name}")`, with `split`, `num_examples`, `environment`, `config`, `output_mode` |
| from 0.4 | taskset, harness and environment `{name}`: `--env.taskset.id {name}` |

To evaluate five tasks with verifiers 0.4 or later (without `-n`, all tasks in the split):

```sh
{command}
```

A failure of the environment, of a judge or of the model is an error of the rollout. Its reward is null (0.4) or NaN
(0.3.1), never 0.
""",
    "{module}/__init__.py": """\
\"\"\"The task app {app} for verifiers: `load_environment` up to 0.3.1, a taskset with its own harness from 0.4.\"\"\"

from importlib.metadata import version

if tuple(int(part) for part in version("verifiers").split(".")[:2]) < (0, 4):
    from {module}.classic import load_environment

    __all__ = ["load_environment"]
else:
    from {module}.current import {class_name}Env, {class_name}Harness, {class_name}Taskset

    __all__ = ["{class_name}Env", "{class_name}Harness", "{class_name}Taskset"]
""",
    "{module}/place.py": """\
\"\"\"The reference of the app.\"\"\"

{path_import}APP = {place}
""",
    "{module}/classic.py": """\
\"\"\"The environment for verifiers up to 0.3.1.\"\"\"

from typing import Any

from taskapp_kit.interop.verifiers.v0 import TaskAppEnvironment, environment

from {module}.place import APP


def load_environment(**arguments: Any) -> TaskAppEnvironment:
    \"\"\"Return the environment. Accepts the arguments of `taskapp_kit.interop.verifiers.v0.environment`.\"\"\"
    return environment(APP, **arguments)
""",
    "{module}/current.py": """\
\"\"\"Taskset, harness and environment for verifiers from 0.4.\"\"\"

from taskapp_kit.interop.verifiers.v1 import TaskAppEnv, TaskAppHarness, TaskAppTaskset

from {module}.place import APP


class {class_name}Taskset(TaskAppTaskset):
    \"\"\"The tasks of {app}.\"\"\"

    app = APP


class {class_name}Harness(TaskAppHarness):
    \"\"\"Plays {app} in the worker's own process.\"\"\"

    app = APP


class {class_name}Env(TaskAppEnv):
    \"\"\"One agent plays {app}.\"\"\"
""",
}
"""The content of each written file, by path."""
