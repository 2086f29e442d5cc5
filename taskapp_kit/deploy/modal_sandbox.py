"""Old import path of `taskapp_kit.deploy.modal.sandboxes`, kept because the documentation named it."""

from taskapp_kit.deploy.modal.sandboxes import ModalMachines

__all__ = ["ModalMachines"]
