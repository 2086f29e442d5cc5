"""A TCP proxy before Postgres that loses the connection at the worst moment: a commit went in, its answer never came out."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class CuttingProxy:
    """Listens on a free loopback port and forwards to `port`; use it in a `with` block.

    cut_commits: so many commits from now on are forwarded and their answers dropped, with the connection. cut: how many
    were.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cut_commits = 0
        self.cut = 0

    def __enter__(self) -> CuttingProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                doomed = threading.Event()
                threading.Thread(target=self._up, args=(client, server, doomed), daemon=True).start()
                threading.Thread(target=self._down, args=(client, server, doomed), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket, doomed: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if self.cut_commits and b"COMMIT" in data:
                    self.cut_commits -= 1
                    self.cut += 1
                    doomed.set()
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _down(self, client: socket.socket, server: socket.socket, doomed: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if doomed.is_set():  # this is the answer to the commit: it is done
                    break
                client.sendall(data)
        for end in (client, server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
