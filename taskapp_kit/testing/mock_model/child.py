"""The program of a mock model in a separate process, which `process.py` starts."""

from __future__ import annotations

import sys

import orjson

from taskapp_kit.errors import KitError
from taskapp_kit.records.content import Json
from taskapp_kit.system.child import end_with_input
from taskapp_kit.testing.mock_model.faults import Faults
from taskapp_kit.testing.mock_model.server import MockModel


def main() -> None:
    """Read settings from a line of standard input, print the address, and serve until the input ends."""
    message = orjson.loads(sys.stdin.buffer.readline())

    def say(answer: dict[str, Json]) -> None:
        sys.stdout.buffer.write(orjson.dumps(answer) + b"\n")
        sys.stdout.buffer.flush()

    try:
        settings = message["settings"]
        if isinstance(settings.get("latency_seconds"), list):
            settings["latency_seconds"] = tuple(settings["latency_seconds"])
        faults = Faults(**message["faults"]) if message["faults"] else None
        model = MockModel(message["script"], faults=faults, **settings)
        end_with_input()
        model.run(lambda model: say({"url": model.url}))
    except KitError as error:
        say({"error": str(error)})
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
