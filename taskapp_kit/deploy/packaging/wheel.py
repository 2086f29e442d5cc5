"""Builds a wheel of the kit for containers, because the kit is not on a package index.

The wheel contains the files of the running kit, except for private files. It is built without a build tool, so nothing
must be installed or downloaded. The same files always produce the same bytes, so that a provider can reuse the image
layer.
"""

from __future__ import annotations

import atexit
import base64
import functools
import hashlib
import io
import re
import shutil
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

from taskapp_kit.deploy.packaging.requirements import DISTRIBUTION, checkout_project
from taskapp_kit.deploy.packaging.source_files import kit_files
from taskapp_kit.errors import ConfigError
from taskapp_kit.system.private_files import make_private_folder, replaced
from taskapp_kit.version import __version__

_EPOCH = (1980, 1, 1, 0, 0, 0)
_TAG = "py3-none-any"


def kit_wheel(folder: Path | None = None) -> Path:
    """Build the wheel of this kit, and return its path.

    `folder` is the directory in which the wheel is stored. By default, this is the user's cache.

    Raises:
        ConfigError: The kit runs neither from a checkout nor from an installation, or no directory can be written.
    """
    described = _described()
    return keep(_packed(described), f"{_stem(described)}-{_TAG}.whl", folder)


def keep(content: bytes, name: str, folder: Path | None = None) -> Path:
    """Store the content in a directory whose name is the hash of the content, and return the path of the file.

    Args:
        content: The content of the file.
        name: The name of the file.
        folder: The parent directory. Defaults to the user's cache or, if the cache is not writable, to a temporary
            directory that is removed when this process ends.

    Raises:
        ConfigError: No directory can be written.
    """
    for top in (_cache, _for_this_process):
        try:
            return _stored(content, name, (folder or top()) / "modal")
        except (OSError, RuntimeError):  # RuntimeError if the user has no home directory
            continue
    raise ConfigError("The kit's wheel cannot be written.", hint="Set HOME to a directory that this user can write to.")


def _cache() -> Path:
    return Path.home() / ".cache" / DISTRIBUTION


@functools.cache
def _for_this_process() -> Path:
    folder = tempfile.mkdtemp(prefix="taskapp-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _stored(content: bytes, name: str, cache: Path) -> Path:
    """Store the content below `cache`, and return the file's path. Raises OSError if the file cannot be written."""
    # The same content has the same path, so that Modal reuses the layer.
    place = cache / hashlib.sha256(content).hexdigest()[:16]
    path = place / name
    make_private_folder(place)
    if path.is_file() and path.read_bytes() == content:
        return path
    with replaced(path) as new:
        new.write_bytes(content)
        new.chmod(0o644)
    return path


def _packed(described: dict[str, str]) -> bytes:
    info = f"{_stem(described)}.dist-info"
    entries = [(inside, path.read_bytes()) for path, inside in kit_files()]
    entries += [(f"{info}/{name}", text.encode()) for name, text in described.items()]
    record = "".join(f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in entries)
    entries.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode()))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, content in entries:
            # A fixed date and mode, so that the same files produce the same bytes.
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return made.getvalue()


def _stem(described: dict[str, str]) -> str:
    version = re.search(r"(?m)^Version: *(\S+)", described["METADATA"])
    return f"{DISTRIBUTION.replace('-', '_')}-{version[1] if version else __version__}"


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def _described() -> dict[str, str]:
    """Map the name of each file in the wheel's `.dist-info` directory, except for RECORD, to its content."""
    wheel = f"Wheel-Version: 1.0\nGenerator: {DISTRIBUTION}\nRoot-Is-Purelib: true\nTag: {_TAG}\n"
    project = checkout_project()
    if project is None:
        return {"METADATA": _installed_metadata(), "WHEEL": wheel}
    lines = ["Metadata-Version: 2.1", f"Name: {DISTRIBUTION}", f"Version: {__version__}"]
    if "requires-python" in project:
        lines.append(f"Requires-Python: {project['requires-python']}")
    lines += [f"Requires-Dist: {line}" for line in project.get("dependencies", [])]
    for extra, needed in project.get("optional-dependencies", {}).items():
        lines.append(f"Provides-Extra: {extra}")
        for line in needed:
            requirement, _, marker = line.partition(";")
            condition = f"({marker.strip()}) and extra == '{extra}'" if marker.strip() else f"extra == '{extra}'"
            lines.append(f"Requires-Dist: {requirement.strip()}; {condition}")
    described = {"METADATA": "\n".join(lines) + "\n", "WHEEL": wheel}
    scripts = project.get("scripts", {})
    if scripts:
        described["entry_points.txt"] = "[console_scripts]\n" + "".join(
            f"{name} = {place}\n" for name, place in scripts.items()
        )
    return described


def _installed_metadata() -> str:
    try:
        text = metadata.distribution(DISTRIBUTION).read_text("METADATA")
    except metadata.PackageNotFoundError:
        text = None
    if text is None:
        raise ConfigError(
            f"The kit's wheel cannot be built, because neither a checkout nor an installed {DISTRIBUTION} was found.",
            hint=f"Deploy from a checkout, or install {DISTRIBUTION}.",
        )
    return text
