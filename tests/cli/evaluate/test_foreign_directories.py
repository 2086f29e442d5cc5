"""A directory that somebody else made is data: nothing that it names is imported, and no key goes to its addresses."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.cli.conftest import ADDER, Run

pytestmark = pytest.mark.server
KEY = "key-of-the-reader-0123456789"


class Listener:
    """A server of whoever made the directory; requests: what reached it."""

    def __init__(self, port: int, requests: list[str]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.requests = requests


@pytest.fixture
def stranger() -> Iterator[Listener]:
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(f"{self.path} {self.headers.get('X-API-Key')}")
            self.send_response(404)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield Listener(server.server_port, requests)
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def own(run: Run, tmp_path: Path) -> Path:
    """An evaluation that this user made: two of three rollouts are played."""
    shutil.copy(ADDER, tmp_path / "adder.py")
    run("eval", "adder.py", "--policy", "gold", "--seeds", "0-2", "--out", "own", status=0)
    results = tmp_path / "own" / "results.jsonl"
    results.write_text("".join(results.read_text().splitlines(keepends=True)[:2]))
    return tmp_path / "own"


def change(directory: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((directory / "config.json").read_text())
    edit(config)
    (directory / "config.json").write_text(json.dumps(config))


def from_elsewhere(own: Path, stranger: Listener) -> Path:
    """The directory as it comes out of an archive that somebody else packed: with their app and their address in it."""
    foreign = own.with_name("foreign")
    shutil.copytree(own, foreign)
    code = f"open({str(own.parent / 'ran')!r}, 'w').close()\n" + Path(ADDER).read_text()
    (foreign / "app.py").write_text(code)
    change(foreign, lambda config: config.update(app_reference=str(foreign / "app.py") + ":app"))
    return foreign


COMMANDS = [
    ("eval", "{}"),
    ("eval", "--seeds-from", "{}", "--worst", "1", "--out", "again"),
    ("eval", "--seeds-from", "{}", "--worst", "1", "--out", "again", "--policy", "gold"),
    ("rescore", "{}"),
    ("replay", "{}"),
    ("replay", "--from", "{}"),
    ("export", "{}", "--format", "sft", "--demonstrations", "--out", "sft.jsonl"),
    ("export", "{}", "--format", "dpo", "--demonstrations", "--out", "dpo.jsonl"),
]
HARMLESS = [
    ("show", "{}"),
    ("compare", "{}", "{}"),
    ("export", "{}", "--format", "jsonl", "--out", "rollouts.jsonl"),
]


@pytest.mark.ci(keep=3)
@pytest.mark.parametrize("command", [*COMMANDS, *HARMLESS], ids=" ".join)
@pytest.mark.parametrize("names", ["code", "address"])
def test_what_a_foreign_directory_names_is_neither_imported_nor_sent_a_key(
    command: tuple[str, ...], names: str, run: Run, own: Path, stranger: Listener
) -> None:
    foreign = from_elsewhere(own, stranger)
    if names == "address":
        change(foreign, lambda config: config["options"].update(url=stranger.url))
    done = run(*(part.format(foreign) for part in command), ENVIRONMENT_API_KEY=KEY)
    assert not (own.parent / "ran").exists()
    assert stranger.requests == []
    assert (done.exit_code == 0) == (command in HARMLESS), done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)


@pytest.mark.parametrize("command", [*COMMANDS[:-1], *HARMLESS], ids=" ".join)
def test_a_directory_that_the_user_made_needs_no_more_words(command: tuple[str, ...], run: Run, own: Path) -> None:
    run(*(part.format(own) for part in command), status=0)


@pytest.mark.parametrize(
    "edit",
    [
        lambda config: config.update(app_reference="elsewhere.py:app"),
        lambda config: config["options"].update(url="http://127.0.0.1:9"),
        lambda config: config["options"].update(store="elsewhere.db"),
        lambda config: config["options"].update(models={"gold": "another"}),
        lambda config: config["asked"]["policy"].update(inference_url="http://127.0.0.1:9/v1"),
    ],
)
def test_a_directory_that_was_changed_since_is_foreign(
    edit: Callable[[dict[str, Any]], object], run: Run, own: Path
) -> None:
    change(own, edit)
    assert run("eval", str(own)).exit_code == 2


@pytest.mark.ci(keep=2)
@pytest.mark.parametrize("command", COMMANDS[:-1], ids=" ".join)
def test_the_printed_command_is_the_whole_one_with_the_app(
    command: tuple[str, ...], run: Run, own: Path, stranger: Listener
) -> None:
    foreign = from_elsewhere(own, stranger)
    words = [part.format(foreign) for part in command]
    refused = run(*words)
    printed = shlex.split(refused.stderr.partition("in the command: ")[2])[1:]
    assert printed[: len(words)] == words
    assert printed[printed.index("--app") + 1] == f"{foreign / 'app.py'}:app"
    assert run(*printed).exit_code == 0
    assert (own.parent / "ran").exists()


@pytest.mark.ci(keep=1)
@pytest.mark.parametrize("names", ["--inference-url", "--store", "--app"])
def test_every_address_is_named_to_go_on_with_a_foreign_directory(
    names: str, run: Run, own: Path, stranger: Listener
) -> None:
    foreign = from_elsewhere(own, stranger)
    address = "sqlite:///elsewhere.db" if names == "--store" else stranger.url
    option = {"--app": "url", "--store": "store"}.get(names)
    if option is not None:
        change(foreign, lambda config: config["options"].update({option: address}))
    else:
        change(foreign, lambda config: config["asked"].update(policy={"model": "m", "inference_url": address}))
        (foreign / "results.jsonl").write_text("")
    given = () if names == "--app" else ("--app", "adder.py")
    refused = run("eval", str(foreign), *given, ENVIRONMENT_API_KEY=KEY)
    assert (refused.exit_code, stranger.requests) == (2, [])
    assert f"{names} {address}" in refused.stderr
    assert run("eval", str(foreign), "--inference-url", "http://127.0.0.1:7/v1").exit_code == 2
    done = run("eval", str(foreign), *given, names, address, ENVIRONMENT_API_KEY=KEY)
    assert done.exit_code != 2, done.output


def test_a_key_of_the_command_line_is_not_repeated(run: Run, own: Path, stranger: Listener) -> None:
    refused = run("eval", str(from_elsewhere(own, stranger)), "--key", KEY)
    assert (refused.exit_code, KEY in refused.output) == (2, False)


def test_a_record_that_others_could_write_does_not_count(run: Run, own: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    (state / "taskapp-kit").mkdir(parents=True)
    (state / "taskapp-kit").chmod(0o777)
    done = run("eval", ADDER, "--policy", "gold", "--seeds", "0", "--out", "e", XDG_STATE_HOME=str(state))
    assert (done.exit_code, "Warning" in done.stderr) == (0, True)
    assert run("rescore", "e", XDG_STATE_HOME=str(state)).exit_code == 2


def test_a_moved_directory_is_foreign_until_the_printed_command_names_its_app(run: Run, own: Path) -> None:
    moved = own.rename(own.with_name("moved"))
    refused = run("eval", str(moved), width=10_000, status=2)
    printed = refused.stderr[refused.stderr.index("taskapp eval") :].strip().removesuffix(".").split()
    assert run(*printed[1:]).exit_code == 0
    assert run("rescore", str(moved)).exit_code == 0


def test_naming_an_app_does_not_make_the_directorys_own_address_trusted(
    run: Run, own: Path, stranger: Listener
) -> None:
    foreign = from_elsewhere(own, stranger)
    change(foreign, lambda config: config["options"].update(url=stranger.url))
    going_on = ("--policy", "gold", "--seeds", "0-2", "--out", str(foreign), "--resume")
    assert run("eval", "adder.py", *going_on, "--env", "adder").exit_code in (0, 2)
    (foreign / "results.jsonl").write_text("")
    assert run("eval", str(foreign), ENVIRONMENT_API_KEY=KEY).exit_code == 2
    assert stranger.requests == []


def test_without_a_state_directory_an_evaluation_goes_on_and_says_what_is_missing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a-file").write_text("")
    blocked = {"XDG_STATE_HOME": str(tmp_path / "a-file")}
    done = run("eval", ADDER, "--policy", "gold", "--seeds", "0,1", "--out", "e", status=0, **blocked)
    assert "Warning" in done.stderr
    assert run("rescore", "e", **blocked).exit_code == 2


def test_the_record_is_private_and_has_no_key(run: Run, tmp_path: Path) -> None:
    state = tmp_path / "state"
    run(
        "eval", ADDER, "--policy", "gold", "--seeds", "0", "--out", "e",
        XDG_STATE_HOME=str(state), ENVIRONMENT_API_KEY=KEY, status=0)  # fmt: skip
    files = [file for file in state.rglob("*") if file.is_file()]
    assert len(files) == 1
    assert files[0].stat().st_mode & 0o077 == 0 and files[0].parent.stat().st_mode & 0o077 == 0
    assert KEY not in files[0].read_text()
