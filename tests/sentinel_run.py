"""A whole run of the suite under `--sentinels DIR`: every log record, answer, span and file is kept, then searched.

Log records of every logger at every level, in both of our forms. Answers that go through `running_server.opened`, `load_test` and
the servers of `tests/stress`, and those that any httpx client of the tests got. Spans that the SDK ended. What the tests
and their processes printed. All temporary files, databases and archives unpacked.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from taskapp_kit import logs
from tests import recording
from tests.sentinels import Hit, Key, Search

VENDORS = {
    "OPENAI_API_KEY": "sk-ZqWnOpenai/+=7GxRwKvT",
    "GROQ_API_KEY": "gsk_VtJmGroq/+=7LsXpZyQ",
    "ANTHROPIC_API_KEY": "sk-YwQtAnthropic/+=7MrKzNuP",
    "TASKAPP_JUDGE_KEY": "jdg-KxPwJudge/+=7WnTyGvZ",
}
"""In the environment of the whole run."""
KEYS = [
    Key("running_server.KEY", "Tr0ub4dor-and-3-staples-9f27c1"),
    Key("running_server.ALIAS", "second-Sesame-0b55e8d2", first=False),
    Key("load_test.SECOND", "0b55e8d2-S3same-zw1/te+q"),
    Key("KEY of test_logs and test_tracing", "sentinel-Key-5d1c90", first=False),
    Key("KEY of cli/test_remote", "canary-key-4711", first=False, last=False),
    Key("the key of cli/test_serve", "my-own-key-4711", first=False, last=False),
    Key("the key of --show-config", "canary-4711", first=False, last=False),
    Key("KEY of deploy/deploys", "the-key-that-the-secret-holds", first=False, last=False),
    Key("environment key of deploy/test_modal", "canary-environment-key-5c1f", first=False, last=False),
    Key("development key of deploy/test_modal", "canary-dev-key-9a0e", first=False, last=False),
    Key("vendor's key of deploy/test_modal", "canary-vendor-key-77b2", first=False, last=False),
    Key("key in a wheel", "canary-of-the-wheel", first=False, last=False),
    Key("key in files of deploy/test_modal", "canary-in-a-file-e3d4", first=False, last=False),
    Key("key in files of deploy/test_wheel", "canary-in-the-wheel", first=False, last=False),
    Key("KEY of cli/test_deploy", "canary-door-key-" + "5c" * 24, first=False, last=False),
    Key("what stays here of cli/test_deploy", "canary-that-stays-9a0e", first=False, last=False),
    Key("KEY of store/test_rows", "sk-canary-1234567890", first=False, last=False),
    Key("vendor's key of test_routes", "sk-sentinel", first=False, last=False),
    Key("KEY of test_crafter_served", "a key of this test", first=False, last=False),
    *(Key(name, text, first=False) for name, text in VENDORS.items()),
]
CLIENTS = ("httpx", "httpcore", "aiohttp.client", "websockets.client", "hpack")
"""Loggers of what the tests ask with: they tell the address that a test chose, keys in it too."""
INPUTS = (
    (r"(^|/)\.env(\.\w+)?$|\.env$", "an env file that a test wrote"),
    (r"(^|/)[\w.-]*keys?[\w-]*(\.(txt|list|file|new))?$", "a key file that a test wrote"),
    (r"test_a_link_stays_a_link\d*/real$", "a key file that a test wrote"),
    (r"(^|/)planted\.txt$", "what the author's code is told to show, to prove the search"),
    (r"test_every_form_is_found_in_every_\w+/", "leaks that the search has to find"),
    (
        r"^pytest/copy\d+/checkout/",
        "test_wheel's copy of this checkout, with decoys planted; the wheel itself is searched",
    ),
    (
        r"^pytest/(checkout\d+|test_no_private_file_gets_in\d+/kit)/.*"
        r"(server\.pem|credentials\.json|service-account-1\.json|secrets\.toml|notes\.sqlite|\.git/config|/id_rsa)$",
        "a decoy in a copy of this checkout; what is packed and sent of the copy is searched",
    ),
    (r"(^|/)\.(mypy|ruff|pytest)_cache/", "a cache of a tool"),
)
"""Files that are not searched: pattern of their path, and why."""
SELF_TEST = (b"HTTP/1.1 401 1/te+q\n", b"ValueError: Tr0ub4dor-and-3-staples-9f27c1")
"""What serve/test_auth.py gives its load test itself, to prove that it would find a key in an answer and in a log."""
MARK = "sentinels"
"""A file that says that the folder is such a run's, which the next one may empty."""
MINTED = re.compile(rb"export ENVIRONMENT_API_KEY=([\w-]{16,})")


class SentinelRun:
    """The plugin. It begins when it is made."""

    def __init__(self, folder: Path, config: pytest.Config) -> None:
        if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
            raise pytest.UsageError(f"--sentinels {folder}: it holds something else; give a folder that is not there")
        shutil.rmtree(folder, ignore_errors=True)
        self.folder = folder
        (folder / "tmp").mkdir(parents=True)
        (folder / MARK).touch()
        config.option.basetemp = folder / "pytest"
        os.environ |= {**VENDORS, "TMPDIR": str(folder / "tmp")}
        tempfile.tempdir = None
        self.found: Search | None = None
        self._lock = threading.Lock()
        self._files: dict[str, BinaryIO] = {}
        self._counts = dict.fromkeys(("records", "answers", "spans", "outputs"), 0)
        self._forms = [logs.TextFormatter(), logs.JsonFormatter()]
        self._here = threading.local()
        self._real = (logging.Logger.isEnabledFor, logging.Logger.handle)
        recording.keep = self._answered
        self._hear_loggers()
        self._hear_spans()
        self._hear_clients()

    # -- what is kept ----------------------------------------------------------------------------------------------

    def _write(self, kind: str, data: bytes) -> None:
        with self._lock:
            if kind not in self._files:
                self._files[kind] = (self.folder / f"{kind}.bin").open("ab")
            self._counts[kind] += 1
            self._files[kind].write(data + b"\n")

    def _answered(self, data: bytes) -> None:
        self._write("answers", data)

    def _hear_loggers(self) -> None:
        """Every logger makes every record; those that it would not have made are kept here and go nowhere."""
        enabled, handle = self._real
        run = self

        def handled(logger: logging.Logger, record: logging.LogRecord) -> None:
            run._record(record)
            if enabled(logger, record.levelno):
                handle(logger, record)

        logging.Logger.isEnabledFor = lambda logger, level: True  # type: ignore[method-assign]
        logging.Logger.handle = handled  # type: ignore[method-assign]

    def _record(self, record: logging.LogRecord) -> None:
        if record.name.startswith(CLIENTS) or getattr(self._here, "within", False):
            return
        self._here.within = True  # what is logged while this is written is not written
        try:
            kept = logging.makeLogRecord(vars(record))
            logs.RolloutIdFilter().filter(kept)
            lines = [form.format(kept) for form in self._forms]
            self._write("records", f"{record.name}: ".encode() + "\n".join(lines).encode("utf-8", "backslashreplace"))
        except Exception as error:  # a record that cannot be written is its writer's matter, as in `logging` itself
            self._write("records", f"{record.name}: not written, {type(error).__name__}".encode())
        finally:
            self._here.within = False

    def _hear_spans(self) -> None:
        from opentelemetry.sdk.trace import Span

        end = Span.end
        run = self

        def ended(span: Any, end_time: int | None = None) -> None:
            end(span, end_time)
            run._write("spans", span.to_json(None).encode("utf-8", "backslashreplace"))

        Span.end = ended  # type: ignore[method-assign]

    def _hear_clients(self) -> None:
        import httpx

        read, aread = httpx.Response.read, httpx.Response.aread
        run = self

        def kept(response: httpx.Response, content: bytes) -> bytes:
            if not response.extensions.get("kept"):
                response.extensions["kept"] = True
                head = b"".join(name + b": " + value + b"\r\n" for name, value in response.headers.raw)
                run._answered(
                    f"{response.status_code} {response.reason_phrase}\r\n".encode() + head + b"\r\n" + content
                )
            return content

        async def asynchronously(response: httpx.Response) -> bytes:
            return kept(response, await aread(response))

        httpx.Response.read = lambda response: kept(response, read(response))  # type: ignore[method-assign]
        httpx.Response.aread = asynchronously  # type: ignore[method-assign]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """What a test and its processes printed."""
        if report.when == "teardown" and "test_every_form_is_found" not in report.nodeid:  # it has all three phases
            for name, text in report.sections:
                if not name.startswith("Captured log"):
                    self._write(
                        "outputs",
                        f"{report.nodeid.partition('[')[0]} {name}\n{text}".encode("utf-8", "backslashreplace"),
                    )

    # -- what is found ---------------------------------------------------------------------------------------------

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Searches; hits end the run with exit status 1."""
        logging.Logger.isEnabledFor, logging.Logger.handle = self._real  # type: ignore[method-assign]
        recording.keep = None
        for file in self._files.values():
            file.close()
        minted = {text.decode() for path in self.folder.rglob("out.txt") for text in MINTED.findall(path.read_bytes())}
        keys = [*KEYS, *(Key("a server's own", text) for text in sorted(recording.keys))]
        keys += [Key("minted for a terminal", text) for text in sorted(minted - set(recording.keys))]
        self.found = Search(keys, allowed=_allowed)
        self.found.folder(self.folder, self._left_out)
        hits = [
            {"key": hit.key, "form": hit.form, "place": hit.place, "around": repr(hit.around)}
            for hit in self.found.hits
        ]
        (self.folder / "hits.json").write_text(json.dumps(hits, indent=1))
        if hits and session.exitstatus == 0:
            session.exitstatus = 1

    def _left_out(self, path: Path) -> str | None:
        place = str(path.relative_to(self.folder))
        return next((reason for pattern, reason in INPUTS if re.search(pattern, place)), None)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """What was searched, what was left out and why, and the hits."""
        assert self.found is not None
        tell = terminalreporter.write_line
        terminalreporter.section("sentinels")
        tell(", ".join(f"{count} {kind}" for kind, count in self._counts.items()))
        tell(self.found.told())
        for reason in {told.partition(": ")[2] for told in self.found.excluded}:
            count = sum(told.endswith(f": {reason}") for told in self.found.excluded)
            tell(f"left out: {count} × {reason}")
        for hit in self.found.hits[:200]:
            tell(f"HIT {hit}")


def _allowed(hit: Hit) -> bool:
    """A minted key is shown where its server printed it; a test of a search plants what it has to find."""
    if any(planted in hit.around for planted in SELF_TEST):
        return True
    return hit.key == "minted for a terminal" and hit.place.endswith("out.txt")
