"""Run as a program: plays episodes and prints their observations as JSON, with a hash for each picture.

Its argument is the number of episodes that run beside them.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from typing import Any

from pages import ORIGIN, PageWindow, pages

from environments.web.app import Web, gold
from environments.web.browser import Browser, shared
from environments.web.tasks import WebTask

CLOCKWORK = """<title>Clockwork</title>
<style>
@font-face { font-family: "Site"; src: url("/assets/regular.otf"); }
body { font: 14px/1.4 "Site"; }
@keyframes turn { to { transform: translateX(300px) rotate(360deg); } }
#turning { width: 30px; height: 30px; background: #c33; animation: turn 1.7s linear infinite; }
#moving { transition: margin-left 1s; width: 30px; height: 30px; background: #33c; }
</style>
<h1>Clockwork</h1><div id=turning></div><div id=moving></div><canvas id=canvas width=120 height=30></canvas>
<button onclick="moving.style.marginLeft = '200px'; show(event)">Go</button>
<form><label>Name <input required name=name></label><label>Day <input type=date name=day value=2025-03-04></label>
<button>Send</button></form>
<ul id=values></ul>
<script>
let timers = 0, ticks = 0, frames = 0, resolved = 0;
setTimeout(() => timers++, 10); setTimeout(() => timers++, 700); setInterval(() => ticks++, 33);
(function frame() { frames++; requestAnimationFrame(frame); })();
fetch("/other").then((answer) => answer.text()).then((text) => (resolved = text.length));
const context = canvas.getContext("2d"); context.font = "20px Site"; context.fillText("Drawn", 5, 20);
function show(event) {
  const bytes = crypto.getRandomValues(new Uint8Array(4));
  const values = {
    random: Math.random(), bytes, uuid: crypto.randomUUID(), date: new Date().toString(), now: Date.now(),
    clock: performance.now(), local: new Date().toLocaleString(), money: (1234.5).toLocaleString(),
    zone: Intl.DateTimeFormat().resolvedOptions().timeZone, locale: Intl.DateTimeFormat().resolvedOptions().locale,
    languages: navigator.languages, offset: new Date().getTimezoneOffset(), timers, ticks, frames, resolved,
    width: context.measureText("Width of a text").width, height: document.body.scrollHeight,
    scale: devicePixelRatio, size: [innerWidth, innerHeight, screen.width, screen.height], at: event && event.isTrusted,
    message: document.forms[0].elements[0].validationMessage, sort: ["ä", "z", "a"].sort(Intl.Collator().compare),
    origin: performance.timeOrigin, stamp: new Event("x").timeStamp, modified: document.lastModified,
    clicked: event && event.timeStamp,
  };
  document.getElementById("values").innerHTML = Object.entries(values).map((pair) => `<li>${pair.join(": ")}</li>`).join("");
}
show(); setTimeout(show, 400);
</script>"""

BODIES = {"/": CLOCKWORK, "/other": "<p>other {query}</p>"}
TASKS = (("admin/edit", "medium", 3),)


def picture(data: bytes) -> str:
    return "PNG " + hashlib.sha256(data).hexdigest()


def clockwork(browser: Browser) -> list[str]:
    """Ten actions on a page whose scripts ask for everything that differs between runs."""
    page = PageWindow(browser, pages(BODIES), screenshot=True, seed=5)
    seen = [page.text]
    for name, role, element, arguments in (
        ("click", "button", "Go", {}),
        ("click", "button", "Send", {}),
        ("fill", "textbox", "Name", {"value": "Ada"}),
        ("hover", "button", "Go", {}),
        ("dblclick", "button", "Go", {}),
        ("click", "button", "Send", {}),
    ):
        page.on(name, role, element, **arguments)
        seen.append(page.text)
    for name in ("noop", "go_back", "new_tab", "tab_close"):
        page.do(name)
        seen.append(page.text)
    page.do("goto", url=ORIGIN + "/")
    page.close()
    return [*seen, page.text, *map(picture, page.pictures)]


def solved(kind: str, difficulty: Any, number: int) -> list[str]:
    """A task of a site, solved by its rules."""
    task = WebTask(kind=kind, difficulty=difficulty, number=number, feasible=True, tags=[])
    episode = Web(screenshot=True)
    found: Any = episode.reset(task)
    seen: list[str] = []
    for _ in range(40):
        if isinstance(found, str):  # the end
            break
        seen += ["".join(part.text for part in found[:-1]), picture(found[-1].png)]
        [(name, arguments)] = gold(seen[-2], task).items()
        found = getattr(episode, name)(**arguments).observation
    episode.close()
    return [*seen, str(found)]


def main() -> None:
    browser = shared()
    ended = threading.Event()

    def beside() -> None:
        while not ended.is_set():
            page = PageWindow(browser, pages(BODIES), seed=9)
            for _ in range(3):
                page.on("click", "button", "Go")
            page.close()

    threads = [threading.Thread(target=beside) for _ in range(int(sys.argv[1]))]
    for thread in threads:
        thread.start()
    try:
        print(json.dumps([clockwork(browser), *(solved(*task) for task in TASKS)]))
    finally:
        ended.set()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
