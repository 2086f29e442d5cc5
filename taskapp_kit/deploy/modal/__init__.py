"""A task app on Modal: `from taskapp_kit.deploy.modal import Deployment, ModalSettings`.

These names are imported on first use, because containers also import this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskapp_kit.deploy.modal.deployment import Deployment
    from taskapp_kit.deploy.modal.modal_settings import ModalSettings

__all__ = ["Deployment", "ModalSettings"]

_MODULES = {"Deployment": "deployment", "ModalSettings": "modal_settings"}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
