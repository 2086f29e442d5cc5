"""Runs untrusted code in the strongest sandbox that works here: `async with Sandbox() as box: await box.run(code)`."""

from taskapp_kit.errors import SandboxError, SandboxTooWeak
from taskapp_kit.sandbox.box import Sandbox
from taskapp_kit.sandbox.limits import RunResult, SandboxLimits
from taskapp_kit.sandbox.probe import Capabilities, ProbedCapability, capabilities

__all__ = [
    "Capabilities",
    "ProbedCapability",
    "RunResult",
    "Sandbox",
    "SandboxError",
    "SandboxLimits",
    "SandboxTooWeak",
    "capabilities",
]
