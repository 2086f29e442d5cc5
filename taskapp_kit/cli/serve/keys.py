"""`taskapp keys`: create, rotate, list and revoke API keys in a key file that running servers watch.

`keys upload` gives a training backend the key of the task app.
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
from taskapp_kit.records.formatting import counted
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
    """Create, rotate, list and revoke API keys, and upload the task app's key to a backend.

    Each key has a label, which is logged and stored with the requests that use the key. The key file contains only the
    SHA-256 of each key. A server that uses the file (--keys-file or TASKAPP_KEYS_FILE) applies changes within about a
    second.
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
    help="Maximum concurrent rollouts of this label.  [default: no limit]",
)
@click.option("--admin", is_flag=True, help="Let the key see and cancel the rollouts of every label.")
@click.option("--another", is_flag=True, help="Add a second key to a label that already has a key.")
@_keys_file
@json_option()
def mint(
    label: str, max_in_flight: int | None, admin: bool, another: bool, keys_file: str | None, as_json: bool
) -> None:
    """Create a key for LABEL and print it once.

    A key can fetch, list, cancel, replay and compare the rollouts of its label. With --admin, it can do so for every label.
    The key file stores only the key's SHA-256. Only the key is printed on stdout. If the key file doesn't exist, it is
    created with mode 600. A label consists of 1 to 64 characters: a-z, A-Z, 0-9, dots, underscores and dashes.
    """
    if not key_file.is_label(label) or key_file.is_own_label(label):
        reserved = "environment, development, aliasN and fileN are reserved for keys without a label"
        raise click.BadParameter(f"a label has {key_file.LABEL_RULE}. The labels {reserved}.", param_hint="LABEL")
    path = _path(keys_file)
    key = secrets.token_urlsafe(32)
    holder = key_file.add(path, label, key, max_in_flight=max_in_flight, admin=admin, another=another)
    if as_json:
        rights = {"max_in_flight": holder.max_in_flight, "admin": holder.admin}
        print_json({"label": label, "key": key, **rights, "keys_file": str(path)})
    else:
        echo(key)
    _say(f"Stored the SHA-256 of the key in {path} under the label {label}. The key itself is not shown again.")
    option = f"--keys-file {shlex.quote(str(path))}"
    _say(f"A server that runs with {option} accepts the key within about a second.")
    _warn_if_open(path)


@command.command(epilog=example("KEY=$(taskapp keys rotate ci)", "taskapp keys rotate ci --finish"))
@click.argument("label")
@click.option("--finish", is_flag=True, help="Remove the older keys, once every caller has the new key.")
@_keys_file
@json_option()
@click.pass_context
def rotate(ctx: click.Context, label: str, finish: bool, keys_file: str | None, as_json: bool) -> None:
    """Replace the key of LABEL without downtime.

    Without --finish, a second key is created and printed, and the old key stays valid. Once every caller has the new key,
    run the command with --finish to remove the old key.
    """
    if finish:
        ctx.invoke(revoke, label=label, keep_newest=True, keys_file=keys_file, as_json=as_json)
        return
    path = _path(keys_file)
    lines = [line for line in _read(path) if line.holder.label == label]
    if not lines:
        raise key_file.KeyFileError(
            f"{path} contains no key with the label {label!r}.",
            hint="`taskapp keys list` lists the labels, and `taskapp keys mint` creates a key.",
        )
    quota = lines[-1].holder.max_in_flight
    ctx.invoke(mint, label=label, max_in_flight=quota, admin=False, another=True, keys_file=keys_file, as_json=as_json)
    file = "" if keys_file is None else f" --keys-file {shlex.quote(keys_file)}"
    _say(
        f"The old key is still valid. Once every caller has the new key, run: taskapp keys rotate {label} --finish{file}"
    )


@command.command(
    epilog=example(
        "taskapp keys upload --backend-url http://127.0.0.1:8500",
        "taskapp keys upload --mint --file .env --env-file .env",
    )
)
@BACKEND
@ENV_FILES
@click.option("--mint", "minting", is_flag=True, help="First create a new key and write it to --file.")
@click.option("--file", "file", metavar="F", default=".env", help="The file for a new key. Its mode is 600.")
@json_option()
def upload(backend_url: str | None, env_files: tuple[str, ...], minting: bool, file: str, as_json: bool) -> None:
    """Upload the task app's key, ENVIRONMENT_API_KEY, to the backend, encrypted for the backend only.

    The backend needs this key to call the task app. The key is never printed.
    """
    settings = job_settings(env_files=env_files, backend_url=backend_url)
    backend, backend_key = settings.needed_backend(), settings.needed_backend_key()
    token = client.mint_environment_api_key() if minting else settings.needed_task_app_key()
    if minting:
        env_file.write(Path(file), {ENVIRONMENT_KEY: token})
        _say(f"Wrote a new {ENVIRONMENT_KEY} to {file}. Start (or deploy) the task app with this key.")
    stored = client.setup_environment_api_key(backend, backend_key, token)
    if as_json:
        print_json({name: value for name, value in stored.items() if name != "token"})
    else:
        echo(f"Uploaded {ENVIRONMENT_KEY} to {clean(backend)}.")


@command.command("list", epilog=example("taskapp keys list", "taskapp keys list --keys-file keys --json"))
@_keys_file
@json_option()
def list_(keys_file: str | None, as_json: bool) -> None:
    """List the labels of a key file, without their keys.

    For each label, the list shows the number of keys, the quota, whether the file contains hashed or plain-text keys, and
    whether the label can see the rollouts of all labels.
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
        echo(f"{clean(str(path))} contains no keys. `taskapp keys mint LABEL` creates a key.")
    if any(row["kind"] != "hashed" for row in rows.values()):
        _say(
            "(!) The file contains the key in plain text. To store only its SHA-256, replace the line with LABEL sha256:HEX, "
            "where HEX is the output of: printf %s KEY | sha256sum. Or mint another key and revoke this one."
        )
    _warn_if_open(path)


@command.command(epilog=example("taskapp keys revoke ci", "taskapp keys revoke trainer --keep-newest"))
@click.argument("label")
@click.option("--keep-newest", is_flag=True, help="Keep the newest key, to finish a rotation.")
@_keys_file
@json_option()
def revoke(label: str, keep_newest: bool, keys_file: str | None, as_json: bool) -> None:
    """Remove every key of LABEL from the file.

    Running servers that use the file reject the removed keys within about a second.
    """
    path = _path(keys_file)
    revoked, left = key_file.remove(path, label, keep_newest=keep_newest)
    if as_json:
        print_json({"label": label, "revoked": revoked, "left": left, "keys_file": str(path)})
    else:
        echo(f"Revoked {counted(revoked, 'key')} of {clean(label)} in {clean(str(path))}; {counted(left, 'key')} left.")
    _say("Running servers that use the file apply this change within about a second. Rollouts in progress continue.")
    if left == 0:
        _say("A server that has no other key now returns 503 on every route except /.")
    _warn_if_open(path)


def _path(keys_file: str | None) -> Path:
    """Return the path of the key file: from the flag or the settings, or the default path."""
    return load({"keys_file": keys_file}).keys_file or Path(DEFAULT_FILE)


def _read(path: Path) -> list[KeyLine]:
    try:
        return key_file.read(path)
    except FileNotFoundError:
        raise key_file.missing(path) from None
    except OSError as error:
        raise key_file.KeyFileError(
            f"The key file {path} cannot be read: {error.strerror}.",
            hint="Make the file readable, or pass another --keys-file.",
        ) from None


def _warn_if_open(path: Path) -> None:
    if key_file.open_to_others(path):
        mode = path.stat().st_mode & 0o777
        _say(f"Warning: other users of this machine can access {path} (mode {mode:o}). Run: chmod 600 {path}")


def _say(text: str) -> None:
    """Print a note to stderr, so that stdout contains only the result."""
    echo(clean(text), err=True)
