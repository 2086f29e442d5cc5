"""What an account on Modal has: the app of a name, Secrets and their keys' names, an address. And a Secret is made.

Modal's client works in a process of its own, `taskapp_kit.deploy.modal.account`, with one question and one
answer as JSON over pipes. A key's value goes to it over the pipe: never on a command line, never in a file.
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
from taskapp_kit.errors import TaskappError, Unavailable
from taskapp_kit.system.child_python import python_command

SECONDS = 120.0
CONNECT_SECONDS = 20.0
"""The longest that Modal's client may take to reach Modal; by itself it tries for a minute and says nothing."""


class ModalRefused(TaskappError):
    """Modal could not be asked, refused, or has not what the deploy needs. One sentence, no traceback of Modal's."""


@dataclass(frozen=True, slots=True)
class Account:
    """What was found. owner: of the app's name: nobody, a deploy of ours, or something else. version: of our kit then.

    missing: names of Secrets that do not exist. lacking: required keys that the app's own Secret does not hold.
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
    """Who has the name, and what of the Secrets is there. The last of `secrets` is the app's own. Raises ModalRefused."""
    told = _ask(
        "look",
        environment,
        app=app_name,
        secrets=list(secrets),
        own=secrets[-1],
        required_keys=list(required_keys),
        connect_seconds=connect_seconds,
    )
    return Account(told["owner"], told["version"], tuple(told["missing"]), tuple(told["lacking"]))


def make_secret(name: str, values: Mapping[str, str], *, environment: str = "", update: bool = False) -> bool:
    """Makes the Secret; False when there is one already, which then stays as it is. Raises ModalRefused.

    update: set these keys in the one that is there, and leave its others.
    """
    made: bool = _ask("secret", environment, name=name, values=dict(values), update=update)["made"]
    return made


def address(app_name: str, function: str, *, environment: str = "") -> str:
    """Where a deployed web function answers. Raises ModalRefused."""
    url: str = _ask("address", environment, app=app_name, function=function)["url"]
    return url.rstrip("/")


def require_client() -> None:
    """Raises Unavailable when Modal's client is not installed here."""
    if find_spec("modal") is None:
        raise Unavailable(
            "Deploying to Modal needs Modal's client, which is not installed here.",
            hint="Install it with: pip install 'taskapp-kit[modal]'",
        )


def refusal(kind: str, told: str, environment: str) -> ModalRefused:
    """The sentence for an error of Modal's client. kind: the name of its class. told: its words."""
    if kind == "AuthError" or "Token missing" in told:
        return ModalRefused("Modal does not know who asks: nobody is signed in here.", hint="Sign in: modal setup")
    if kind in ("ConnectionError", "OSError"):
        return ModalRefused("Modal cannot be reached.", hint="Check the connection, and https://status.modal.com.")
    if (
        kind == "NotFoundError"
        and "nvironment" in told
        and environment
        and environment in told
        and "Secret" not in told
    ):
        return ModalRefused(
            f"There is no Modal environment {environment!r}.", hint="`modal environment list` shows them."
        )
    return ModalRefused(f"Modal refused ({kind}): {told.strip()[:300]}")


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
        told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise ModalRefused(
            f"Modal's client ended with status {done.returncode}.", hint="Try `modal app list`."
        ) from None
    if "error" in told:
        raise refusal(told["error"], told["told"], environment)
    return told


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

    told: dict[str, Any] = {"owner": "nobody", "version": "", "missing": [], "lacking": []}
    try:
        tags = modal.App.lookup(question["app"], environment_name=environment).get_tags()
    except NotFoundError as error:
        if environment and "nvironment" in str(error) and "App" not in str(error):
            raise
    else:
        told["owner"] = "ours" if OWNER_TAG in tags else "others"
        told["version"] = tags.get(OWNER_TAG, "")

    def there(name: str, *keys: str) -> bool:
        try:
            modal.Secret.from_name(name, environment_name=environment, required_keys=list(keys)).hydrate()
        except NotFoundError:
            return False
        return True

    told["missing"] = [name for name in question["secrets"] if not there(name)]
    if question["own"] not in told["missing"]:
        told["lacking"] = [key for key in question["required_keys"] if not there(question["own"], key)]
    return told


def _connect(seconds: float) -> None:
    """Makes the client that all further calls take; ends this process with the answer when that takes too long."""
    import modal

    def too_long() -> None:
        _tell({"error": "ConnectionError", "told": ""})
        os._exit(0)

    late = threading.Timer(seconds, too_long)
    late.daemon = True
    late.start()
    modal.Client.from_env()
    late.cancel()


def _tell(told: Mapping[str, Any]) -> None:
    print(json.dumps(told), flush=True)  # noqa: T201 — the pipe to the parent


def main() -> None:
    """The child. An error of Modal's client is told by its class and its words, which hold no value of ours."""
    question = json.loads(sys.stdin.read())
    try:
        told = _answer(question)
    except Exception as error:  # whatever Modal raises is told to the parent
        values = question.get("values", {}).values()
        words = str(error)
        told = {
            "error": type(error).__name__,
            "told": "" if any(value and value in words for value in values) else words,
        }
    _tell(told)


if __name__ == "__main__":
    main()
