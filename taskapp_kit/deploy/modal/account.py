"""Queries a Modal account for apps, Secrets and addresses, and creates Secrets.

Modal's client runs in a child process, which executes this module as a program. The process reads one request and
writes one response, as JSON over pipes. Values of keys are passed only over the pipe, never in a command line or a
file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

from taskapp_kit.config import child_environment
from taskapp_kit.errors import KitError, Unavailable
from taskapp_kit.system.child_python import python_command

OWNER_TAG = "taskapp-kit"
"""The tag of every app that the kit deploys. The value of the tag is the version of the kit."""
SECONDS = 120.0
CONNECT_SECONDS = 20.0
"""How many seconds connecting to Modal may take. Modal's client itself would try for a minute without a message."""


class ModalRefused(KitError):
    """A request to Modal failed, or an app could not be deployed or checked."""


@dataclass(frozen=True, slots=True)
class Account:
    """The state of an account.

    Attributes:
        owner: Who deployed an app with this name: `nobody`, `ours` (this kit) or `others`.
        version: The version of the kit that deployed the app, if `owner` is `ours`.
        missing: The Secrets that do not exist.
        lacking: The required keys that the app's Secret does not contain.
    """

    owner: Literal["nobody", "ours", "others"]
    version: str
    missing: tuple[str, ...]
    lacking: tuple[str, ...]


def look(
    app_name: str,
    secrets: Sequence[str],
    required_keys: Sequence[str],
    *,
    environment: str = "",
    connect_seconds: float = CONNECT_SECONDS,
) -> Account:
    """Check who deployed an app with this name, and whether the Secrets exist.

    The last Secret in `secrets` is the app's own Secret, and it must contain `required_keys`. Raises ModalRefused if
    the query fails.
    """
    answer = _ask(
        "look",
        environment,
        app=app_name,
        secrets=list(secrets),
        own=secrets[-1],
        required_keys=list(required_keys),
        connect_seconds=connect_seconds,
    )
    return Account(answer["owner"], answer["version"], tuple(answer["missing"]), tuple(answer["lacking"]))


def make_secret(name: str, values: Mapping[str, str], *, environment: str = "", update: bool = False) -> bool:
    """Create a Secret, and return whether it was created or updated.

    If the Secret exists, it is not changed unless `update` is set. With `update`, the given keys are replaced and all
    other keys are preserved. Raises ModalRefused if Modal rejects the request.
    """
    made: bool = _ask("secret", environment, name=name, values=dict(values), update=update)["made"]
    return made


def address(app_name: str, function: str, *, environment: str = "") -> str:
    """Return the address of a deployed web function. Raises ModalRefused if the query fails."""
    url: str = _ask("address", environment, app=app_name, function=function)["url"]
    return url.rstrip("/")


def require_client() -> None:
    """Raise Unavailable if Modal's client is not installed."""
    if find_spec("modal") is None:
        raise Unavailable(
            "Deploying to Modal requires Modal's client, which is not installed.",
            hint="Run: pip install 'taskapp-kit[modal]'",
        )


def refusal(kind: str, message: str, environment: str) -> ModalRefused:
    """Return the exception for an error of Modal's client. `kind` is the class name of the error."""
    if kind == "AuthError" or "Token missing" in message:
        return ModalRefused("This machine is not signed in to Modal.", hint="Run: modal setup")
    if kind in ("ConnectionError", "OSError"):
        return ModalRefused("Modal cannot be reached.", hint="Check the network, and https://status.modal.com.")
    if (
        kind == "NotFoundError"
        and "nvironment" in message
        and environment
        and environment in message
        and "Secret" not in message
    ):
        return ModalRefused(
            f"The Modal environment {environment!r} does not exist.",
            hint="To list the environments, run: modal environment list",
        )
    return ModalRefused(f"Modal rejected the request ({kind}): {message.strip()[:300]}")


def _ask(what: str, environment: str, **question: Any) -> dict[str, Any]:
    require_client()
    try:
        done = subprocess.run(  # noqa: S603  runs this module
            python_command("taskapp_kit.deploy.modal.account"),
            input=json.dumps(
                {"what": what, "environment": environment, "connect_seconds": CONNECT_SECONDS, **question}
            ),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            env=child_environment(),
        )
    except subprocess.TimeoutExpired:
        raise ModalRefused(f"Modal did not respond within {SECONDS:.0f} s.", hint="Run the command again.") from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise ModalRefused(
            f"Modal's client ended with status {done.returncode}.", hint="To see the error, run: modal app list"
        ) from None
    if "error" in answer:
        raise refusal(answer["error"], answer["message"], environment)
    return answer


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    import modal
    from modal.exception import AlreadyExistsError, NotFoundError

    _connect(question["connect_seconds"])
    environment: str | None = question["environment"] or None
    if question["what"] == "secret":
        try:
            modal.Secret.objects.create(question["name"], question["values"], environment_name=environment)
        except AlreadyExistsError:
            if not question["update"]:
                return {"made": False}
            modal.Secret.from_name(question["name"], environment_name=environment).hydrate().update(question["values"])
        return {"made": True}
    if question["what"] == "address":
        function = modal.Function.from_name(question["app"], question["function"], environment_name=environment)
        return {"url": function.get_web_url() or ""}

    answer: dict[str, Any] = {"owner": "nobody", "version": "", "missing": [], "lacking": []}
    try:
        tags = modal.App.lookup(question["app"], environment_name=environment).get_tags()
    except NotFoundError as error:
        if environment and "nvironment" in str(error) and "App" not in str(error):
            raise
    else:
        answer["owner"] = "ours" if OWNER_TAG in tags else "others"
        answer["version"] = tags.get(OWNER_TAG, "")

    def there(name: str, *keys: str) -> bool:
        try:
            modal.Secret.from_name(name, environment_name=environment, required_keys=list(keys)).hydrate()
        except NotFoundError:
            return False
        return True

    answer["missing"] = [name for name in question["secrets"] if not there(name)]
    if question["own"] not in answer["missing"]:
        answer["lacking"] = [key for key in question["required_keys"] if not there(question["own"], key)]
    return answer


def _connect(seconds: float) -> None:
    """Create Modal's client, which later calls use.

    If connecting takes longer than `seconds`, report a ConnectionError and exit the process.
    """
    import modal

    def too_long() -> None:
        _report({"error": "ConnectionError", "message": ""})
        os._exit(0)

    late = threading.Timer(seconds, too_long)
    late.daemon = True
    late.start()
    modal.Client.from_env()
    late.cancel()


def _report(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201  the pipe to the parent


def main() -> None:
    """Run as the child process. Error messages never contain the values of keys."""
    question = json.loads(sys.stdin.read())
    try:
        answer = _answer(question)
    except Exception as error:  # all errors are reported to the parent
        values = question.get("values", {}).values()
        words = str(error)
        answer = {
            "error": type(error).__name__,
            "message": "" if any(value and value in words for value in values) else words,
        }
    _report(answer)


if __name__ == "__main__":
    main()
