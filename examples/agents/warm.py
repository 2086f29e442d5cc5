"""Plays all rollouts in one process, one after another, so that an agent imports its libraries only once.

python warm.py serve agent.sock with_openai_agents.py     once
python warm.py ask agent.sock                             the program of from_program(…, boxed=False)

Importing the libraries takes seconds of CPU time, but an answer takes only milliseconds. `ask` passes its stdin, its
stdout and its rollout's environment variables to the server, and fails if the agent fails. Use this script only for
agents that read their base URL in each run.
"""

import os
import runpy
import socket
import struct
import sys

PASSED = ("OPENAI_", "ANTHROPIC_", "TASKAPP_")


def serve(path: str, program: str) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(128)
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        with connection:
            play(connection, program)


def play(connection: socket.socket, program: str) -> None:
    """Run the agent with the file descriptors and variables of an `ask` process."""
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
    (size,) = struct.unpack("!I", connection.recv(4, socket.MSG_WAITALL))
    for line in connection.recv(size, socket.MSG_WAITALL).decode().split("\0"):
        name, _, value = line.partition("=")
        os.environ[name] = value
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    code = 1
    try:
        runpy.run_path(program, run_name="__main__")
        code = 0
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):  # closes stdout and stderr, because their reader waits until they are closed
        os.dup2(nothing, number)
    os.close(nothing)
    connection.sendall(bytes([code]))


def ask(path: str) -> int:
    variables = "\0".join(f"{name}={value}" for name, value in os.environ.items() if name.startswith(PASSED)).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        socket.send_fds(connection, [b"f"], [0, 1, 2])
        connection.sendall(struct.pack("!I", len(variables)) + variables)
        return (connection.recv(1) or b"\1")[0]


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], sys.argv[3])
    sys.exit(ask(sys.argv[2]))
