"""README and docs are run: what they show is what happens.

tests/docs/pages.py describes the words after the opening fence of a block.

`$ taskapp serve FILE`, `$ taskapp backend serve` and `$ taskapp mock-model` run in the background until the next one of
the kind; their ports are free ones instead of 8001, 8500 and 8100, and THE-KEY-THAT-SERVE-PRINTED is the key that the first one minted. A page that
names `examples/` has the checkout's examples in its working directory.
"""

from __future__ import annotations

import ast
import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from tests.docs.pages import KEY_PLACEHOLDER, MINTED_KEY, Block, blocks, commands, first_missing

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEACHING = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/start/tutorial.md",
    "docs/reference/contract.md",
    "docs/contribute/architecture.md",
)
LONG_JOURNEYS = {"crafter", "evaluating", "export", "jobs", "math", "store", "trainers", "tutorial"}
"""Pages whose commands take seconds of processor time each; the tests of cli, client, evaluate and the environments
assert their parts."""
QUICK = {"README", "agents", "backend", "gymnasium", "in-process", "judges", "models", "rl-config"}
"""Those that `make test` runs."""
SKIPPED_FOLDERS = {"out", "build", "dist", "node_modules"}
COMMAND_SECONDS = 60
SENTINEL = "===block-command-done==="
PORTS = {"taskapp serve": 8001, "taskapp backend serve": 8500, "taskapp mock-model": 8100}
"""What runs in the background, and the port that the pages give it."""


def markdown_files() -> list[Path]:
    found: list[Path] = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in SKIPPED_FOLDERS]
        found += [Path(folder, name) for name in names if name.endswith(".md") and not name.startswith(".")]
    return sorted(found)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class Shell:
    """One bash for a page, and the servers that it has running."""

    def __init__(self, folder: Path) -> None:
        self.ports = {kind: free_port() for kind in PORTS}
        self.key = ""
        self.folder = folder
        self.servers: dict[str, int] = {}
        kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=folder,
            env={
                **kept,
                "PATH": path,
                "HOME": str(folder),
                "TASKAPP_PORT": str(self.ports["taskapp serve"]),
                "NO_COLOR": "1",
                "COLUMNS": "120",
                "PYTEST_ADDOPTS": "-pno:schemathesis -pno:hypothesispytest -pno:xdist",  # slow to load
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str) -> tuple[int, str]:
        """Exit status and everything printed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        watchdog = threading.Timer(COMMAND_SECONDS, self.process.kill)
        watchdog.start()
        try:
            self.process.stdin.write(f"{self.here(command)}\n_status=$?; echo; echo {SENTINEL} $_status\n")
            self.process.stdin.flush()
            printed: list[str] = []
            for line in self.process.stdout:
                if line.startswith(SENTINEL):
                    return int(line.split()[1]), "".join(printed)
                printed.append(line)
        finally:
            watchdog.cancel()
        raise AssertionError(f"`{command}` did not end within {COMMAND_SECONDS} s:\n{''.join(printed)}")

    def here(self, text: str) -> str:
        """The text with this shell's ports and key."""
        for kind, port in PORTS.items():
            text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{self.ports[kind]}")
        return text.replace(KEY_PLACEHOLDER, self.key)

    def serve(self, kind: str, command: str) -> str:
        """Starts the server, waits until it answers; what it printed."""
        self.stop_server(kind)
        if kind != "taskapp serve":  # whose port is in the shell's environment
            command = command.replace(kind, f"{kind} --port {self.ports[kind]}", 1)
        log = self.folder / f"serve-{time.monotonic_ns()}.log"
        status, printed = self.run(f"{command} >{log} 2>&1 </dev/null & echo pid $!; disown")
        assert status == 0, printed
        server = self.servers[kind] = int(printed.split("pid ")[1].split()[0])
        deadline = time.monotonic() + COMMAND_SECONDS
        while time.monotonic() < deadline:
            try:
                os.kill(server, 0)
                if httpx.get(f"http://127.0.0.1:{self.ports[kind]}/").status_code < 500:
                    break
            except httpx.TransportError:
                time.sleep(0.1)
            except ProcessLookupError:
                break
        text = log.read_text()
        if minted := MINTED_KEY.search(text):
            self.key = minted[1]
        return text

    def stop_server(self, kind: str) -> None:
        server = self.servers.pop(kind, None)
        if server is None:
            return
        deadline = time.monotonic() + COMMAND_SECONDS
        try:
            os.kill(server, 15)
            while time.monotonic() < deadline:
                os.kill(server, 0)
                time.sleep(0.05)
        except ProcessLookupError:
            return
        raise AssertionError(f"`{kind}` did not stop when it was asked to")

    def close(self) -> None:
        try:
            for kind in list(self.servers):
                self.stop_server(kind)
        finally:
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A fresh working directory; what a block does to this process is undone."""
    before = Path.cwd(), dict(os.environ), list(sys.path)
    os.chdir(tmp_path)
    sys.path.insert(0, str(tmp_path))
    try:
        yield tmp_path
    finally:
        os.chdir(before[0])
        os.environ.clear()
        os.environ.update(before[1])
        sys.path[:] = before[2]
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
                del sys.modules[name]


@pytest.mark.process
@pytest.mark.server
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            id=page.name,
            marks=[pytest.mark.exhaustive] * (page.stem in LONG_JOURNEYS) + [pytest.mark.ci] * (page.stem not in QUICK),
        )
        for page in PAGES
        if any(block.runs for block in blocks(page))
    ],
)
def test_every_block_of_the_page_runs(page: Path, folder: Path) -> None:
    found = [block for block in blocks(page) if block.runs]
    if any(block.language == "console" for block in found) and not (shutil.which("bash") and shutil.which("curl")):
        pytest.skip("needs bash and curl (Debian: apt-get install bash curl)")
    if page.stem == "math":
        pytest.importorskip("reasoning_gym", reason="needs taskapp-kit[math]")
    module = ModuleType(f"docs_{page.stem}")
    sys.modules[module.__name__] = module
    copy = folder / page.name  # what a traceback and an author's `file:line` point at: the page's own lines
    copy.write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
    module.__file__ = str(copy)
    if any(block.language in ("console", "python") and "examples/" in block.text for block in found):
        shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    shell = Shell(folder)
    try:
        for block in found:
            if block.language == "console":
                run_console(block, shell)
            elif block.title:
                file = block.save(folder)
                if file.suffix == ".py":
                    runpy.run_path(str(file))
            else:
                exec(compile("\n" * (block.line - 1) + block.text, str(copy), "exec"), module.__dict__)
    finally:
        shell.close()
        del sys.modules[module.__name__]


def run_console(block: Block, shell: Shell) -> None:
    for command, expected in commands(block.text):
        kind = next((kind for kind in PORTS if command.startswith(kind)), None)
        if kind is not None:
            printed = shell.serve(kind, command)
        else:
            status, printed = shell.run(command)
            assert status == 0, f"{block}: `{command}` ended with {status}:\n{printed}"
        missing = first_missing([shell.here(line) for line in expected], printed)
        assert missing is None, f"{block}: `{command}` did not print {missing!r} there; it printed:\n{printed}"


def test_the_comparison_notices_what_is_not_there() -> None:
    printed = 'HTTP/1.1 200 OK\ndate: today\n{"healthy":true,"in_flight":0}\n'
    assert first_missing(["HTTP/1.1 200 OK", "…", '{"healthy":true,…}'], printed) is None
    assert first_missing(["HTTP/1.1 401 Unauthorized"], printed) == "HTTP/1.1 401 Unauthorized"
    assert first_missing(['{"healthy":true,…}', "HTTP/1.1 200 OK"], printed) == "HTTP/1.1 200 OK"
    assert commands("$ a \\\n    b\nout\n$ c\n") == [("a \\\n    b", ["out"]), ("c", [])]


def test_few_blocks_are_only_read() -> None:
    every = [block for page in PAGES for block in blocks(page)]
    unrun = [
        str(block)
        for block in every
        if block.language in ("python", "py") and not block.runs and "needs=" not in block.words
    ]
    assert len(unrun) <= 2, unrun
    pages = {ROOT / name for name in TEACHING}
    taught = [
        block
        for page in sorted(pages)
        for block in blocks(page)
        if block.language in ("console", "bash", "sh", "shell")
    ]
    read = [str(block) for block in taught if not block.runs]
    assert len(read) <= 4, read
    assert len(taught) - len(read) >= 8, "the teaching pages show their commands in blocks that run"


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ +(.*?) *$", text, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", markdown_files(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(<?([^)\s>]+)>?\)", text):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), f"{page.name} links to {target}, which is not there"
        if anchor and linked.suffix == ".md":
            assert anchor in headings(linked), f"{page.name} links to {target}; {linked.name} has no such heading"


FOREIGN = re.compile(
    r"pypi\.org|pythonhosted\.org|npmjs\.org|anaconda\.org|(?:extra-)?index-url|/simple/"
    r"|(?<![\w.$}~-])/(?:home|root|work|tmp|Users|workspace|mnt)/\w",
    re.I,
)


@pytest.mark.parametrize("page", markdown_files(), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_names_a_registry_or_a_machines_path(page: Path) -> None:
    found = FOREIGN.search(page.read_text(encoding="utf-8"))
    assert found is None, f"{page.name} holds {found[0] if found else ''!r}"


def codes_in(source: str) -> set[str]:
    """The words that a caller may find under `error.code`, as a module's calls give them."""
    places = {"Failure": 1, "EnvironmentProblem": 0, "Refusal": 0, "_wrong": 2, "envelope": 1}
    found: set[str] = set()
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
        given: list[ast.expr] = [
            item.value for item in call.keywords if item.arg == "code" and name in ("RequestError", *places)
        ]
        if name in places and len(call.args) > places[name]:
            given.append(call.args[places[name]])
        found |= {item.value for item in given if isinstance(item, ast.Constant) and isinstance(item.value, str)}
    return {code for code in found if re.fullmatch(r"[a-z]+(_[a-z0-9]+)*", code)}


def test_the_contract_lists_every_error_code() -> None:
    packages = ("declare", "net", "rollout", "serve")
    modules = [path for name in packages for path in sorted((ROOT / "taskapp_kit" / name).rglob("*.py"))]
    # in serve/routes/task_info.py the third word of `_wrong` is a field's type; its code is invalid_query
    codes = {"invalid_query"}.union(
        *(codes_in(path.read_text(encoding="utf-8")) for path in modules if path.name != "task_info.py")
    )
    codes |= {"invalid_request", "internal_error", "store_failed"}
    assert len(codes) > 30, codes
    contract = (ROOT / "docs/reference/contract.md").read_text(encoding="utf-8")
    assert not {code for code in codes if f"`{code}`" not in contract}
