"""A program of the peer BrowserGym: plays episodes of MiniWoB++ by its own reset and step; see `miniwob_episodes.py`.

Arguments: the address of the pages, and the Chromium to drive. For each line of standard input, JSON with `task` and `seed`,
it plays one episode and writes a line: the seconds of its parts. BrowserGym passes the executable to the browser of the
page only, and starts another one for its chat, so both are started here with the same arguments.
"""

from __future__ import annotations

import json
import os
import sys
import time


def main(pages: str, chromium: str, steps: int) -> None:
    """Play until standard input ends."""
    os.environ["MINIWOB_URL"] = pages
    import browsergym.miniwob  # noqa: F401 (registers the environments)
    import gymnasium
    from playwright.sync_api import BrowserType

    launch = BrowserType.launch

    def launched(self: BrowserType, **options: object) -> object:
        return launch(
            self, **{**options, "executable_path": chromium, "chromium_sandbox": os.getuid() != 0, "headless": True}
        )

    BrowserType.launch = launched
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        begun = time.perf_counter()
        environment = gymnasium.make(f"browsergym/miniwob.{order['task']}")
        _, _ = environment.reset(seed=order["seed"])
        reset = time.perf_counter() - begun
        took = []
        for _ in range(steps):
            started = time.perf_counter()
            _, _, done, _, _ = environment.step("noop(0)")
            took.append(time.perf_counter() - started)
            if done:
                break
        environment.close()
        print(json.dumps({"reset": reset, "steps": took, "episode": time.perf_counter() - begun}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
