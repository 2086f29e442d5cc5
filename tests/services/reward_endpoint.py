"""A reward model's endpoint on a port of this machine: answers each request with what a function returns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Asked = list[tuple[dict[str, Any], str | None]]


@contextmanager
def reward_endpoint(answer: Callable[[dict[str, Any]], Any]) -> Iterator[tuple[str, Asked]]:
    """The address of one, and the requests that it got: body and Authorization. answer: (body) -> the answer's JSON."""
    asked: Asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((body, self.headers["Authorization"]))
            content = json.dumps(answer(body)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is written."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/classify", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
