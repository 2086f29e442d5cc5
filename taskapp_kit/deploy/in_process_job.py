"""Old import path of `taskapp_kit.deploy.local.in_process_job`, kept because the documentation named it."""

from taskapp_kit.deploy.local.in_process_job import run_in_process_job

__all__ = ["run_in_process_job"]
