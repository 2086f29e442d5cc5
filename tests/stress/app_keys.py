"""An app whose author's code does what leaks keys: it shows its process' environment, and files that it can read."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from taskapp_kit import Step, TaskApp, action

app = TaskApp("keys", version="1.0.0", description="Tells what it should not.")


class Teller:
    """tells: "environment" shows os.environ, "file" the file at `path`; by each way that it has."""

    def __init__(self, tells: str = "", path: str = "", breaks: str = "") -> None:
        self.tells, self.path, self.breaks = tells, path, breaks

    def reset(self, seed: int) -> str:
        """Says that it is here."""
        return f"here, with {seed}"

    @action(noop={})
    def tell(self) -> Step:
        """Tell."""
        seen: Any = "nothing"
        if self.tells == "environment":
            names = sorted(os.environ, key=lambda name: "OPENAI" not in name)  # first, before a span's text is cut
            seen = {"environment": {name: os.environ[name] for name in names}, "argv": sys.argv, "pid": os.getpid()}
        if self.tells == "file":
            seen = {"file": Path(self.path).read_text(), "long": "long " * 2000}
        print(json.dumps(seen))
        sys.stderr.write(json.dumps(seen) + "\n")
        logging.getLogger("taskapp_kit.environment").debug("seen %s", seen)
        logging.getLogger("authors").warning("seen %s", seen)
        if self.breaks:
            raise RuntimeError(json.dumps(seen))
        return Step(seen, 0.5, terminated=True)


app.environment("shared", splits={"train": range(100)}, max_steps=4)(Teller)
app.environment("alone", splits={"train": range(100)}, max_steps=4, isolation="process")(Teller)
