"""Ports of this machine that nothing may reach: each counts the connections and datagrams that it gets."""

from __future__ import annotations

import selectors
import socket
import threading

ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nAccess-Control-Allow-Origin: *\r\nAccess-Control-Allow-Headers: *\r\n"
    b"Access-Control-Allow-Private-Network: true\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"
)


class Canary:
    """Listens on ports of 127.0.0.1, TCP and UDP on each, until closed. `port(name)` is the one of a name."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._hits: dict[str, list[str]] = {name: [] for name in names}
        self._ports: dict[str, int] = {}
        self._selector = selectors.DefaultSelector()
        for name in names:
            self._ports[name] = self._listen(name)
        self._wake, awake = socket.socketpair()
        self._selector.register(awake, selectors.EVENT_READ, ("", "wake"))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _listen(self, name: str) -> int:
        while True:
            stream = socket.create_server(("127.0.0.1", 0))
            datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                datagrams.bind(stream.getsockname())
            except OSError:  # the number is taken for UDP: another
                stream.close()
                datagrams.close()
                continue
            self._selector.register(stream, selectors.EVENT_READ, (name, "TCP"))
            self._selector.register(datagrams, selectors.EVENT_READ, (name, "UDP"))
            return int(stream.getsockname()[1])

    def port(self, name: str) -> int:
        """The number of a name's port, for TCP as for UDP."""
        return self._ports[name]

    def hits(self, name: str) -> list[str]:
        """`TCP` or `UDP` for each connection and datagram that the name's port has had."""
        return list(self._hits[name])

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                name, kind = key.data
                found = key.fileobj
                assert isinstance(found, socket.socket)
                if kind == "wake":
                    return
                if kind == "UDP":
                    found.recv(2048)
                    self._hits[name].append("UDP")
                elif kind == "TCP":
                    connection, _ = found.accept()
                    self._hits[name].append("TCP")
                    self._selector.register(connection, selectors.EVENT_READ, (name, "request"))
                else:
                    self._answer(found)

    def _answer(self, connection: socket.socket) -> None:
        try:
            if connection.recv(65536):
                connection.sendall(ANSWER)
        except OSError:
            pass
        self._selector.unregister(connection)
        connection.close()

    def close(self) -> None:
        """Ends the thread and frees the ports."""
        self._wake.close()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()
