"""A plan for Modal, for a person and as JSON: what will be built, sent and registered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskapp_kit.cli.output.terminal import clean, console, size_words, table
from taskapp_kit.records.words import counted
from taskapp_kit.wire.chat.conversation import role_variables

if TYPE_CHECKING:
    from taskapp_kit.deploy.modal.plan import DeployPlan


SHOWN_FILES = 12
LOST = "nothing is stored. Lost with each answer: its replay, and /rollouts/{id} once its day is over."


def plan_json(plan: DeployPlan) -> dict[str, Any]:
    """The plan as JSON: names and numbers, no value of a key."""
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
    """Where the app will answer; the workspace is the account's own and not known before."""
    domains = plan.settings.custom_domains
    label = f"{plan.app_name}-web".lower().replace("_", "-").replace(".", "-")
    return f"https://{domains[0]}" if domains else f"https://WORKSPACE--{label}.modal.run"


def image_steps(plan: DeployPlan) -> list[str]:
    """The image, layer by layer, then what is mounted over it."""
    steps = [f"Debian slim with Python {plan.settings.python_version}"]
    if plan.settings.apt_packages:
        steps.append(f"apt-get install {' '.join(plan.settings.apt_packages)}")
    steps.append(f"uv pip install {len(plan.requirements)} packages (below)")
    steps.append(
        f"uv pip install --no-deps {plan.wheel.name} ({size_words(plan.wheel.stat().st_size)}, made from this kit)"
    )
    if plan.trees:
        steps.append("mounted, so that an edit rebuilds nothing: the files below")
    return steps


def show_plan(plan: DeployPlan) -> None:
    """Prints the plan."""
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
        "each one",
        f"{settings.max_inputs} requests at most, {settings.target_inputs} aimed at; "
        f"{'cores as needed' if settings.cpu is None else f'{settings.cpu:g} cores'}, "
        f"{'memory as needed' if settings.memory_mib is None else f'{settings.memory_mib} MiB'}; "
        f"a request may take {settings.timeout_seconds} s, a start {settings.startup_timeout_seconds} s",
    )
    if settings.region:
        facts.add_row("region", f"{', '.join(settings.region)}, at a higher price")
    if settings.volumes:
        facts.add_row("volumes", ", ".join(f"{folder} = {name}" for folder, name in settings.volumes.items()))
    if settings.memory_snapshot:
        facts.add_row("snapshot", "containers start from a picture of one that had imported the app")
    out.print(facts)
    for warning in plan.warnings:
        out.print(f"Warning: {clean(warning)}", soft_wrap=True)


def _model_words(plan: DeployPlan) -> list[str]:
    """Variables of models that the Secret may hold besides those that it must."""
    optional = plan.rehearsal.optional if plan.rehearsal is not None else ()
    known = [f"the Secret may also hold {', '.join(optional)}"] if optional else []
    unknown = _undeclared_roles(plan)
    return [*known, unknown] if unknown else known


def _undeclared_roles(plan: DeployPlan) -> str:
    """The rule for roles that only an environment's code names; empty where no environment can ask a model.

    Without a rehearsal nothing is known of the app, its judges' roles neither.
    """
    if plan.rehearsal is not None and not plan.rehearsal.context:
        return ""
    address, name, key = role_variables("{role}")
    return (
        "a role that an environment calls with context.model(ROLE) and does not declare (models=) is not known before it "
        f"plays: the Secret then needs {address}, and may hold {name} and {key}; name them in required_keys to have them "
        "checked"
    )


def _files(plan: DeployPlan) -> str:
    files = plan.files()
    if not files:
        return "none of your own: the app comes with the kit"
    total = sum(size for _, size in files)
    return f"{counted(len(files), 'file')}, {size_words(total)}: {_some([path for path, _ in files])}"


def _some(names: list[str]) -> str:
    more = len(names) - SHOWN_FILES
    return ", ".join(names[:SHOWN_FILES]) + (f", and {more} more (--json lists all)" if more > 0 else "")


def _store(plan: DeployPlan) -> str:
    together = {
        "dict": "containers share idempotency keys and results through a modal.Dict",
        "memory": "one container holds idempotency keys and results in its memory",
        "store": "containers share idempotency keys and results there, too",
    }[plan.coordinator]
    storage = (
        LOST if plan.settings.store == "none" else "every rollout goes to the Postgres of TASKAPP_STORE in the Secret."
    )
    return f"{plan.settings.store}: {storage} {together[0].upper()}{together[1:]}."


def _containers(plan: DeployPlan) -> str:
    settings = plan.settings
    buffered = f", {settings.buffer_containers} ahead of the load" if settings.buffer_containers else ""
    return (
        f"{settings.min_containers} to {settings.max_containers}{buffered}; an idle one goes after "
        f"{settings.scaledown_window_seconds} s"
    )
