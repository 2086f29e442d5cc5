"""The plan of a Modal deployment as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskapp_kit.cli.output.terminal import clean, console, size_words, table
from taskapp_kit.records.formatting import counted
from taskapp_kit.wire.chat.conversation import role_variables

if TYPE_CHECKING:
    from taskapp_kit.deploy.modal.plan import DeployPlan


SHOWN_FILES = 12
LOST = "nothing is stored. Rollouts cannot be replayed, and /rollouts/{id} returns them for one day only."


def plan_json(plan: DeployPlan) -> dict[str, Any]:
    """Return the plan as a JSON object. It contains the names of keys but not their values."""
    return {
        "app_name": plan.app_name,
        "target": plan.target,
        "address": address_form(plan),
        "settings": plan.settings.said(),
        "secrets": list(plan.secret_names),
        "required_keys": list(plan.required_keys),
        "optional_keys": list(plan.rehearsal.optional) if plan.rehearsal is not None else [],
        "undeclared_roles": _undeclared_roles(plan),
        "image": image_steps(plan),
        "requirements": list(plan.requirements),
        "wheel": plan.wheel.name,
        "files": [{"path": path, "bytes": size} for path, size in plan.files()],
        "stays": list(plan.left),
        "coordinator": plan.coordinator,
        "warnings": list(plan.warnings),
    }


def address_form(plan: DeployPlan) -> str:
    """Return the app's address. It contains the placeholder WORKSPACE, which is not known before the deployment."""
    domains = plan.settings.custom_domains
    label = f"{plan.app_name}-web".lower().replace("_", "-").replace(".", "-")
    return f"https://{domains[0]}" if domains else f"https://WORKSPACE--{label}.modal.run"


def image_steps(plan: DeployPlan) -> list[str]:
    """Return a description of each layer of the image, and of the mounted files."""
    steps = [f"Debian slim with Python {plan.settings.python_version}"]
    if plan.settings.apt_packages:
        steps.append(f"apt-get install {' '.join(plan.settings.apt_packages)}")
    steps.append(f"uv pip install {len(plan.requirements)} packages (below)")
    steps.append(
        f"uv pip install --no-deps {plan.wheel.name} ({size_words(plan.wheel.stat().st_size)}, built from this kit)"
    )
    if plan.trees:
        steps.append("the files below, which are mounted, so an edit rebuilds nothing")
    return steps


def show_plan(plan: DeployPlan) -> None:
    """Print the plan."""
    settings, out = plan.settings, console()
    out.print(f"{clean(plan.app_name)} on Modal: {clean(plan.target)}", style="bold", soft_wrap=True)
    facts = table("", "")
    facts.add_row("address", address_form(plan))
    for index, step in enumerate(image_steps(plan), start=1):
        facts.add_row("image" if index == 1 else "", f"{index}. {clean(step)}")
    facts.add_row("packages", clean("  ".join(plan.requirements)))
    facts.add_row("files", clean(_files(plan)))
    if plan.left:
        facts.add_row("stays here", clean(_some(list(plan.left))))
    facts.add_row("secrets", ", ".join(plan.secret_names) + f" with {', '.join(plan.required_keys)}")
    for index, words in enumerate(_model_words(plan)):
        facts.add_row("" if index else "models", words)
    facts.add_row("store", _store(plan))
    facts.add_row("containers", _containers(plan))
    facts.add_row(
        "per container",
        f"at most {settings.max_inputs} concurrent requests (target: {settings.target_inputs}); "
        f"{'cores as needed' if settings.cpu is None else f'{settings.cpu:g} cores'}, "
        f"{'memory as needed' if settings.memory_mib is None else f'{settings.memory_mib} MiB'}; "
        f"timeouts: request {settings.timeout_seconds} s, startup {settings.startup_timeout_seconds} s",
    )
    if settings.region:
        facts.add_row("region", f"{', '.join(settings.region)}, at a higher price")
    if settings.volumes:
        facts.add_row("volumes", ", ".join(f"{folder} = {name}" for folder, name in settings.volumes.items()))
    if settings.memory_snapshot:
        facts.add_row("snapshot", "containers start from a memory snapshot with the app imported")
    out.print(facts)
    for warning in plan.warnings:
        out.print(f"Warning: {clean(warning)}", soft_wrap=True)


def _model_words(plan: DeployPlan) -> list[str]:
    """Return lines about optional variables in the Secret that set the models of judges and environments."""
    optional = plan.rehearsal.optional if plan.rehearsal is not None else ()
    lines = [f"the Secret may also contain {', '.join(optional)}"] if optional else []
    return [line for line in (*lines, _undeclared_roles(plan)) if line]


def _undeclared_roles(plan: DeployPlan) -> str:
    """Return a note on the variables for model roles that an environment may use without declaring them.

    The note is empty if no environment can do this.
    """
    # Without a rehearsal, the app's environments and judges are unknown.
    if plan.rehearsal is not None and not plan.rehearsal.context:
        return ""
    address, name, key = role_variables("{role}")
    return (
        "if an environment calls context.model(ROLE) for a role that it does not declare with models=, the Secret must "
        f"contain {address} and may contain {name} and {key}; list them in required_keys to have them checked"
    )


def _files(plan: DeployPlan) -> str:
    files = plan.files()
    if not files:
        return "none, because the app is part of the kit"
    total = sum(size for _, size in files)
    return f"{counted(len(files), 'file')}, {size_words(total)}: {_some([path for path, _ in files])}"


def _some(names: list[str]) -> str:
    more = len(names) - SHOWN_FILES
    return ", ".join(names[:SHOWN_FILES]) + (f", and {more} more (--json lists all)" if more > 0 else "")


def _store(plan: DeployPlan) -> str:
    together = {
        "dict": "containers share idempotency keys and results through a modal.Dict",
        "memory": "one container keeps idempotency keys and results in its memory",
        "store": "containers share idempotency keys and results in this database",
    }[plan.coordinator]
    stored = "every rollout is stored in the Postgres database of TASKAPP_STORE in the Secret."
    storage = LOST if plan.settings.store == "none" else stored
    return f"{plan.settings.store}: {storage} {together[0].upper()}{together[1:]}."


def _containers(plan: DeployPlan) -> str:
    settings = plan.settings
    buffered = f", plus {settings.buffer_containers} idle under load" if settings.buffer_containers else ""
    return (
        f"{settings.min_containers} to {settings.max_containers}{buffered}; an idle one stops after "
        f"{settings.scaledown_window_seconds} s"
    )
