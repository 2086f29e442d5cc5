"""What the programs share that serve environments with other packages: a free port, and an end when stdin closes."""

import os
import socket
import sys
import threading

import uvicorn


def serve(app, name):
    """Serve until stdin closes; print `NAME PORT`. name: the package and its release."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(64)  # before the port is printed
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
    threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
    print(name, listening.getsockname()[1], flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # openreward logs there, and a full pipe would stop the server
    sys.stdin.read()
    os._exit(0)  # openreward's threads would stay
