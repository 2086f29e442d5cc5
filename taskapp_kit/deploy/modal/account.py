"""Queries a Modal account: the app with a name, Secrets and the names of their keys, an address. Also creates a Secret.

Modal's client runs in a process of its own, `taskapp_kit.deploy.modal.account`, with one question and one answer as JSON
over pipes. A key's value is sent over the pipe: never on a command line, never in a file.
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

SECONDS = 120.0
CONNECT_SECONDS = 20.0
"""The limit on connecting to Modal; by default its client tries for a minute without a message."""


class ModalRefused(KitError):
    """Modal could not be reached, refused, or lacks something that the deploy needs. One sentence, without a traceback."""


@dataclass(frozen=True, slots=True)
class Account:
    """The state of an account. owner: of the app's name: nobody, ours (a deploy of this kit), or others.

    version: the kit's, if ours. missing: names of Secrets that do not exist. lacking: required keys that the app's own
    Secret does not have.
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
) -> Account:
    """Checks the owner of the name and the Secrets, of which the last is the app's own. Raises ModalRefused."""
    answer = _ask(
        "look",
        environment,
        app=app_name,
        secrets=list(secrets),
        own=secrets[-1],
        required_keys=list(required_keys),
    )
    return Account(answer["owner"], answer["version"], tuple(answer["missing"]), tuple(answer["lacking"]))


def make_secret(name: str, values: Mapping[str, str], *, environment: str = "", update: bool = False) -> bool:
    """Creates the Secret; returns False if it exists, without a change. Raises ModalRefused.

    update: sets these keys in an existing one and leaves its others unchanged.
    """
    made: bool = _ask("secret", environment, name=name, values=dict(values), update=update)["made"]
    return made


def address(app_name: str, function: str, *, environment: str = "") -> str:
    """The address of a deployed web function. Raises ModalRefused."""
    url: str = _ask("address", environment, app=app_name, function=function)["url"]
    return url.rstrip("/")


def require_client() -> None:
    """Raises Unavailable when Modal's client is not installed here."""
    if find_spec("modal") is None:
        raise Unavailable(
            "Deploying to Modal needs Modal's client, which is not installed here.",
            hint="Install it with: pip install 'taskapp-kit[modal]'",
        )


def refusal(kind: str, message: str, environment: str) -> ModalRefused:
    """The exception for an error of Modal's client. kind: the name of its class. message: its text."""
    if kind == "AuthError" or "Token missing" in message:
        return ModalRefused(
            "Modal does not know the caller: no account is signed in here.", hint="Sign in: modal setup"
        )
    if kind in ("ConnectionError", "OSError"):
        return ModalRefused("Modal cannot be reached.", hint="Check the connection, and https://status.modal.com.")
    if (
        kind == "NotFoundError"
        and "nvironment" in message
        and environment
        and environment in message
        and "Secret" not in message
    ):
        return ModalRefused(
            f"There is no Modal environment {environment!r}.", hint="`modal environment list` shows them."
        )
    return ModalRefused(f"Modal refused ({kind}): {message.strip()[:300]}")


def _ask(what: str, environment: str, **question: Any) -> dict[str, Any]:
    require_client()
    try:
        done = subprocess.run(  # noqa: S603 — this Python, this module
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
        raise ModalRefused(f"Modal did not answer within {SECONDS:.0f} s.", hint="Try again.") from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise ModalRefused(
            f"Modal's client ended with status {done.returncode}.", hint="Try `modal app list`."
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

    from taskapp_kit.deploy.modal.deployment import OWNER_TAG

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
    """Creates the client for all further calls; exits this process with an answer when that takes too long."""
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
    print(json.dumps(answer), flush=True)  # noqa: T201 — the pipe to the parent


def main() -> None:
    """The child process. Reports an error of Modal's client by its class and its text, without values of ours."""
    question = json.loads(sys.stdin.read())
    try:
        answer = _answer(question)
    except Exception as error:  # whatever Modal raises is reported to the parent
        values = question.get("values", {}).values()
        words = str(error)
        answer = {
            "error": type(error).__name__,
            "message": "" if any(value and value in words for value in values) else words,
        }
    _report(answer)


if __name__ == "__main__":
    main()
