"""`taskapp keys`: who may come in. Keys are made, rotated, listed and revoked in a key file, while servers read it.

`keys upload` gives the backend that trains the key of the task app.
"""

from __future__ import annotations

import secrets
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskapp_kit import client
from taskapp_kit.cli import env_file
from taskapp_kit.cli.job_options import ENVIRONMENT_KEY, job_settings
from taskapp_kit.cli.options import BACKEND, ENV_FILES, json_option
from taskapp_kit.cli.output.terminal import clean, console, echo, example, print_json, table
from taskapp_kit.config import load
from taskapp_kit.records.words import counted
from taskapp_kit.serve import key_file

if TYPE_CHECKING:
    from taskapp_kit.serve.key_file import KeyLine


DEFAULT_FILE = ".taskapp/keys"

_keys_file = click.option(
    "--keys-file", metavar="F", help=f"The key file.  [default: TASKAPP_KEYS_FILE, else {DEFAULT_FILE}]"
)


@click.group(
    epilog=example(
        "taskapp keys mint trainer --max-in-flight 64",
        "KEY=$(taskapp keys mint ci)",
        "taskapp keys list",
        "taskapp keys rotate ci",
        "taskapp keys revoke ci",
        "taskapp serve crafter --keys-file .taskapp/keys",
        "taskapp keys upload --backend-url http://127.0.0.1:8500",
    )
)
def command() -> None:
    """Make, rotate, list and revoke the keys of a key file; give a backend the task app's key.

    A key has a label, which is logged and stored with what it asks for; the file has only the key's SHA-256. A server
    that was started with the file (--keys-file or TASKAPP_KEYS_FILE) notices a change within about a second.
    """


@command.command(
    epilog=example(
        "taskapp keys mint trainer --max-in-flight 64",
        "KEY=$(taskapp keys mint ci)",
        "taskapp keys mint operator --admin",
    )
)
@click.argument("label")
@click.option(
    "--max-in-flight",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    help="Rollouts that this label may have in flight at once.  [default: any number]",
)
@click.option("--admin", is_flag=True, help="It sees and cancels the rollouts of every label, not only of its own.")
@click.option("--another", is_flag=True, help="Add a second key to a label that has one, to rotate it.")
@_keys_file
@json_option()
def mint(
    label: str, max_in_flight: int | None, admin: bool, another: bool, keys_file: str | None, as_json: bool
) -> None:
    """Make a key for LABEL and print it, once.

    A key fetches, lists, cancels, replays and compares the rollouts of its own label; with --admin those of all. Its
    SHA-256 is noted in the file; only the key goes to stdout. The file is made when it is missing, for its owner
    alone to read. A label has 1 to 64 letters, digits, dots, underscores or dashes.
    """
    if not key_file.is_label(label) or key_file.is_own_label(label):
        own = "environment, development, aliasN and fileN are what a server calls keys without a label"
        raise click.BadParameter(f"a label has {key_file.LABEL_RULE}; {own}.", param_hint="LABEL")
    path = _path(keys_file)
    key = secrets.token_urlsafe(32)
    holder = key_file.add(path, label, key, max_in_flight=max_in_flight, admin=admin, another=another)
    if as_json:
        rights = {"max_in_flight": holder.max_in_flight, "admin": holder.admin}
        print_json({"label": label, "key": key, **rights, "keys_file": str(path)})
    else:
        echo(key)
    _say(f"Noted in {path} under the label {label}, as a SHA-256: the key is shown only now and not stored.")
    named = shlex.quote(str(path))
    _say(f"A server that reads the file (taskapp serve APP --keys-file {named}) takes it within about a second.")
    _warn_if_open(path)


@command.command(epilog=example("KEY=$(taskapp keys rotate ci)", "taskapp keys rotate ci --finish"))
@click.argument("label")
@click.option("--finish", is_flag=True, help="The callers have the new key: refuse the older ones from now on.")
@_keys_file
@json_option()
@click.pass_context
def rotate(ctx: click.Context, label: str, finish: bool, keys_file: str | None, as_json: bool) -> None:
    """Change the key of LABEL without a moment in which none is valid.

    First a second key is made beside the old one, and printed; once every caller has it, --finish removes the old one.
    """
    if finish:
        ctx.invoke(revoke, label=label, keep_newest=True, keys_file=keys_file, as_json=as_json)
        return
    path = _path(keys_file)
    lines = [line for line in _read(path) if line.holder.label == label]
    if not lines:
        raise key_file.KeyFileError(
            f"{path} has no key under the label {label!r}.",
            hint="`taskapp keys list` shows the labels; `mint` makes one.",
        )
    quota = lines[-1].holder.max_in_flight
    ctx.invoke(mint, label=label, max_in_flight=quota, admin=False, another=True, keys_file=keys_file, as_json=as_json)
    file = "" if keys_file is None else f" --keys-file {shlex.quote(keys_file)}"
    _say(f"The old key is valid, too. When all callers have the new one: taskapp keys rotate {label} --finish{file}")


@command.command(
    epilog=example(
        "taskapp keys upload --backend-url http://127.0.0.1:8500",
        "taskapp keys upload --mint --file .env --env-file .env",
    )
)
@BACKEND
@ENV_FILES
@click.option("--mint", "minting", is_flag=True, help="Make a new key and write it into --file first.")
@click.option("--file", "file", metavar="F", default=".env", help="Where a new key is written, mode 600.")
@json_option()
def upload(backend_url: str | None, env_files: tuple[str, ...], minting: bool, file: str, as_json: bool) -> None:
    """Give the backend the task app's key, ENVIRONMENT_API_KEY, in a sealed box that it alone opens.

    The backend needs it to call the task app. The key is never printed.
    """
    settings = job_settings(env_files=env_files, backend_url=backend_url)
    backend, backend_key = settings.needed_backend(), settings.needed_backend_key()
    token = client.mint_environment_api_key() if minting else settings.needed_task_app_key()
    if minting:
        env_file.write(Path(file), {ENVIRONMENT_KEY: token})
        _say(f"A new {ENVIRONMENT_KEY} stands in {file}; the task app must be started (or deployed) with it.")
    stored = client.setup_environment_api_key(backend, backend_key, token)
    if as_json:
        print_json({name: value for name, value in stored.items() if name != "token"})
    else:
        echo(f"{clean(backend)} has {ENVIRONMENT_KEY} now.")


@command.command("list", epilog=example("taskapp keys list", "taskapp keys list --keys-file keys --json"))
@_keys_file
@json_option()
def list_(keys_file: str | None, as_json: bool) -> None:
    """List the labels of a key file, never a key.

    For each label: whether the file has its keys' SHA-256 or the keys themselves, its quota, whether it sees the
    rollouts of every label, and how many keys it has.
    """
    path = _path(keys_file)
    rows: dict[str, dict[str, Any]] = {}
    for line in _read(path):
        kind = "hashed" if line.hashed else "plain text"
        holder = line.holder
        row = rows.setdefault(
            holder.label,
            {
                "label": holder.label,
                "kind": kind,
                "max_in_flight": holder.max_in_flight,
                "admin": holder.admin,
                "keys": 0,
            },
        )
        row["keys"] += 1
        row["kind"] = kind if row["kind"] == kind else "mixed"
    if as_json:
        print_json({"keys_file": str(path), "keys": list(rows.values())})
    elif rows:
        echo(f"Keys in {clean(str(path))}:")
        shown = table("label", "kind", "max in flight", "admin", "keys", right=("max in flight", "keys"))
        for row in rows.values():
            marked = row["kind"] if row["kind"] == "hashed" else f"{row['kind']} (!)"
            quota = "any" if row["max_in_flight"] is None else str(row["max_in_flight"])
            shown.add_row(row["label"], marked, quota, "yes" if row["admin"] else "no", str(row["keys"]))
        console().print(shown)
    else:
        echo(f"{clean(str(path))} has no keys. Make one: taskapp keys mint LABEL.")
    if any(row["kind"] != "hashed" for row in rows.values()):
        _say(
            "(!) The key itself stands in the file. To have only its SHA-256 there, write LABEL sha256:HEX in its "
            "place, with HEX from: printf %s KEY | sha256sum. Or mint another key and revoke this one."
        )
    _warn_if_open(path)


@command.command(epilog=example("taskapp keys revoke ci", "taskapp keys revoke trainer --keep-newest"))
@click.argument("label")
@click.option("--keep-newest", is_flag=True, help="Leave the key that was added last: the end of a rotation.")
@_keys_file
@json_option()
def revoke(label: str, keep_newest: bool, keys_file: str | None, as_json: bool) -> None:
    """Remove every key of LABEL from the file.

    A running server that reads the file refuses them within about a second.
    """
    path = _path(keys_file)
    revoked, left = key_file.remove(path, label, keep_newest=keep_newest)
    if as_json:
        print_json({"label": label, "revoked": revoked, "left": left, "keys_file": str(path)})
    else:
        echo(f"Revoked {counted(revoked, 'key')} of {clean(label)} in {clean(str(path))}; {counted(left, 'key')} left.")
    _say("A running server that reads the file notices within about a second; rollouts under way go on.")
    if left == 0:
        _say("A server that has no other key now answers 503 on every route but /.")
    _warn_if_open(path)


def _path(keys_file: str | None) -> Path:
    """The file that is meant: flag, process environment, .env, taskapp.toml, else the default one."""
    return load({"keys_file": keys_file}).keys_file or Path(DEFAULT_FILE)


def _read(path: Path) -> list[KeyLine]:
    try:
        return key_file.read(path)
    except FileNotFoundError:
        raise key_file.missing(path) from None
    except OSError as error:
        raise key_file.KeyFileError(
            f"The key file {path} cannot be read: {error.strerror}.", hint="Name a file that you may read."
        ) from None


def _warn_if_open(path: Path) -> None:
    if key_file.open_to_others(path):
        mode = path.stat().st_mode & 0o777
        _say(f"Warning: other users of this machine may read or write {path} (mode {mode:o}). Do: chmod 600 {path}")


def _say(text: str) -> None:
    """What is not the result goes to stderr, so that stdout can be taken as it is."""
    echo(clean(text), err=True)
