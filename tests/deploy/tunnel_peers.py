"""A scripted `cloudflared`, and what the real one would lead to: programs and servers of the tests' own, on loopback."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import alive

ADDRESS = "https://lone-word-plain-sample.trycloudflare.com"

# a line that both a shell and Python read: the interpreter's path may hold a space, which `#!` cannot
HEAD = """#!/bin/sh
"exec" "{python}" "$0" "$@"
import json, os, signal, subprocess, sys, time
seen = dict(pid=os.getpid(), argv=sys.argv[1:], token=os.environ.get("TUNNEL_TOKEN"), names=sorted(os.environ))
with open({record!r}, "a") as file:
    file.write(json.dumps(seen) + "\\n")
def say(text):
    sys.stderr.write(text + "\\n"); sys.stderr.flush()
"""
BOX = f"""
say("2025-01-01T10:00:00Z INF Thank you for trying Cloudflare Tunnel. Doing so, without a Cloudflare account, is fine.")
say("2025-01-01T10:00:00Z INF Requesting new quick Tunnel on trycloudflare.com...")
say("2025-01-01T10:00:02Z INF +--------------------------------------------------------------------+")
say("2025-01-01T10:00:02Z INF |  Your quick Tunnel has been created! Visit it at (it may take time): |")
say("2025-01-01T10:00:02Z INF |  {ADDRESS}                 |")
say("2025-01-01T10:00:02Z INF +--------------------------------------------------------------------+")
while True:
    say("2025-01-01T10:00:03Z INF Registered tunnel connection connIndex=0" + " x" * 2000)
    time.sleep(0.05)
"""
QUIET = "time.sleep(600)\n"
REFUSED = """
say('2025-01-01T10:00:00Z ERR failed to request quick Tunnel: Post "https://api.trycloudflare.com/tunnel": no such host')
sys.exit(1)
"""
GARBAGE = """
sys.stdout.buffer.write(bytes(range(256)) * 400 + b"https://.trycloudflare.com https://evil.trycloudflare.com.example.org")
sys.stdout.flush()
time.sleep(600)
"""


class FakeCloudflared:
    """A program that behaves as `behaviour` says, and notes how it was called."""

    def __init__(self, folder: Path, behaviour: str) -> None:
        self.path = folder / "cloudflared"
        self.record = folder / "cloudflared.calls"
        self.path.write_text(HEAD.format(python=sys.executable, record=str(self.record)) + behaviour)
        self.path.chmod(0o755)

    def calls(self) -> list[dict[str, Any]]:
        """How it was called, one a start."""
        return [json.loads(line) for line in self.record.read_text().splitlines()] if self.record.exists() else []


def gone(pid: int, seconds: float = 20.0) -> bool:
    """The process ends within this time."""
    end = time.monotonic() + seconds
    while alive(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Edge:
    """Stands in for Cloudflare's edge: an HTTPS proxy that answers for any name with what is served at `target`.

    A client reaches it with HTTPS_PROXY; its certificate is its own, so the client must not check it.
    """

    def __init__(self, folder: Path) -> None:
        self.target = 0
        self.asked: list[str] = []
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(_certificate(folder))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(ssl.SSLError):  # a client that looks at the certificate hangs up
            asked = _head(client).split()[1].decode()
            self.asked.append(asked)
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            with self._context.wrap_socket(client, server_side=True) as secure:
                head = _head(secure)
                with socket.create_connection(("127.0.0.1", self.target)) as app:
                    app.sendall(head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
                    while data := app.recv(65_536):
                        secure.sendall(data)


def _head(stream: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        got = stream.recv(65_536)
        if not got:
            break
        data += got
    return data


def _certificate(folder: Path) -> Path:
    """A certificate that nobody trusts, and its key, in one file."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("needs openssl (Debian: apt-get install openssl)")
    key, certificate, both = (folder / name for name in ("edge.key", "edge.crt", "edge.pem"))
    subject = ["-subj", "/CN=edge", "-days", "3", "-nodes"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    subprocess.run(
        [program, "req", "-x509", *curve, *subject, "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    both.write_text(key.read_text() + certificate.read_text())
    return both
