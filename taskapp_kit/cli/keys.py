"""`taskapp keys`: who may come in. Keys are made, listed and revoked in a key file, while servers read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from taskapp_kit.cli.terminal import clean, console, example, print_json, table

if TYPE_CHECKING:
    from pathlib import Path

    from taskapp_kit.serve.key_file import KeyLine

DEFAULT_FILE = ".taskapp/keys"

_keys_file = click.option(
    "--keys-file", metavar="F", help=f"The key file.  [default: TASKAPP_KEYS_FILE, else {DEFAULT_FILE}]"
)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(
    epilog=example(
        "taskapp keys mint trainer --max-in-flight 64",
        "KEY=$(taskapp keys mint ci)",
        "taskapp keys list",
        "taskapp keys revoke ci",
        "taskapp serve crafter --keys-file .taskapp/keys",
    )
)
def command() -> None:
    """Make, list and revoke the keys of a key file.

    A key has a label, which is logged and stored with what it asks for; the file has only the key's SHA-256. A server
    that was started with the file (--keys-file or TASKAPP_KEYS_FILE) notices a change within about a second.
    """


@command.command(epilog=example("taskapp keys mint trainer --max-in-flight 64", "KEY=$(taskapp keys mint ci)"))
@click.argument("label")
@click.option(
    "--max-in-flight",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    help="Rollouts that this label may have in flight at once.  [default: any number]",
)
@click.option("--another", is_flag=True, help="Add a second key to a label that has one, to rotate it.")
@_keys_file
@_as_json
def mint(label: str, max_in_flight: int | None, another: bool, keys_file: str | None, as_json: bool) -> None:
    """Make a key for LABEL and print it, once.

    Its SHA-256 is noted in the file; only the key goes to stdout. The file is made when it is missing, for its owner
    alone to read. A label has 1 to 64 letters, digits, dots, underscores or dashes.
    """
    import secrets
    import shlex

    from taskapp_kit.serve import key_file

    if not key_file.is_label(label) or key_file.is_own_label(label):
        own = "environment, development, aliasN and fileN are what a server calls keys without a label"
        raise click.BadParameter(f"a label has {key_file.LABEL_RULE}; {own}.", param_hint="LABEL")
    path = _path(keys_file)
    key = secrets.token_urlsafe(32)
    holder = key_file.add(path, label, key, max_in_flight=max_in_flight, another=another)
    if as_json:
        print_json({"label": label, "key": key, "max_in_flight": holder.max_in_flight, "keys_file": str(path)})
    else:
        click.echo(key)
    _say(f"Noted in {path} under the label {label}, as a SHA-256: the key is shown this once and kept nowhere.")
    named = shlex.quote(str(path))
    _say(f"A server that reads the file (taskapp serve APP --keys-file {named}) takes it within about a second.")
    _warn_if_open(path)


@command.command("list", epilog=example("taskapp keys list", "taskapp keys list --keys-file keys --json"))
@_keys_file
@_as_json
def list_(keys_file: str | None, as_json: bool) -> None:
    """List the labels of a key file, never a key.

    For each label: whether the file has its keys' SHA-256 or the keys themselves, its quota, and how many keys it has.
    """
    path = _path(keys_file)
    rows: dict[str, dict[str, Any]] = {}
    for line in _read(path):
        kind = "hashed" if line.hashed else "plain text"
        row = rows.setdefault(
            line.holder.label,
            {"label": line.holder.label, "kind": kind, "max_in_flight": line.holder.max_in_flight, "keys": 0},
        )
        row["keys"] += 1
        row["kind"] = kind if row["kind"] == kind else "mixed"
    if as_json:
        print_json({"keys_file": str(path), "keys": list(rows.values())})
    elif rows:
        click.echo(f"Keys in {clean(str(path))}:")
        shown = table("label", "kind", "max in flight", "keys", right=("max in flight", "keys"))
        for row in rows.values():
            marked = row["kind"] if row["kind"] == "hashed" else f"{row['kind']} (!)"
            quota = "any" if row["max_in_flight"] is None else str(row["max_in_flight"])
            shown.add_row(row["label"], marked, quota, str(row["keys"]))
        console().print(shown)
    else:
        click.echo(f"{clean(str(path))} has no keys. Make one: taskapp keys mint LABEL.")
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
@_as_json
def revoke(label: str, keep_newest: bool, keys_file: str | None, as_json: bool) -> None:
    """Remove every key of LABEL from the file.

    A running server that reads the file refuses them within about a second.
    """
    from taskapp_kit.serve import key_file

    path = _path(keys_file)
    revoked, left = key_file.remove(path, label, keep_newest=keep_newest)
    if as_json:
        print_json({"label": label, "revoked": revoked, "left": left, "keys_file": str(path)})
    else:
        click.echo(f"Revoked {_count(revoked)} of {clean(label)} in {clean(str(path))}; {_count(left)} left.")
    _say("A running server that reads the file notices within about a second; rollouts under way go on.")
    if left == 0:
        _say("A server that has no other key now answers 503 on every route but /.")
    _warn_if_open(path)


def _path(keys_file: str | None) -> Path:
    """The file that is meant: flag, process environment, .env, taskapp.toml, else the default one."""
    from pathlib import Path

    from taskapp_kit.config import load

    return load({"keys_file": keys_file}).keys_file or Path(DEFAULT_FILE)


def _read(path: Path) -> list[KeyLine]:
    from taskapp_kit.serve import key_file

    try:
        return key_file.read(path)
    except FileNotFoundError:
        raise key_file.missing(path) from None
    except OSError as error:
        raise key_file.KeyFileError(
            f"The key file {path} cannot be read: {error.strerror}.", hint="Name a file that you may read."
        ) from None


def _warn_if_open(path: Path) -> None:
    from taskapp_kit.serve import key_file

    if key_file.open_to_others(path):
        mode = path.stat().st_mode & 0o777
        _say(f"Warning: other users of this machine may read or write {path} (mode {mode:o}). Do: chmod 600 {path}")


def _say(text: str) -> None:
    """What is not the result goes to stderr, so that stdout can be taken as it is."""
    click.echo(clean(text), err=True)


def _count(keys: int) -> str:
    return "1 key" if keys == 1 else f"{keys} keys"
