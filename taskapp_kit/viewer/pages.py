"""HTML of rollouts and reports: Jinja templates with autoescape, and files that are complete in themselves.

Text that a model, a judge or an environment wrote is escaped by Jinja and made visible by `shown` (control characters and
marks of writing direction become signs), so a page shows it and never does what it says. No template marks data as safe.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from taskapp_kit.records.trajectory import Status
from taskapp_kit.records.words import dollars, utc_time
from taskapp_kit.rollout.details import RolloutDetails
from taskapp_kit.viewer.plots import StripStep, strip

FOLDER = Path(__file__).parent
TEXT_LIMIT = 20_000
"""Characters of one text that are open on a page; the rest is there, folded."""
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but for tab and line end
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction: a text could show itself, and what follows, in another order
    "\ud800-\udfff]"
)


def standalone_rollout(details: RolloutDetails, blobs: Mapping[str, bytes]) -> str:
    """One rollout as one HTML file that needs no script and no network.

    blobs: PNG bytes of its pictures by SHA-256; a picture without bytes is named by its size.
    """

    def picture(sha256: str | None) -> str | None:
        data = blobs.get(sha256 or "")
        return None if data is None else "data:image/png;base64," + base64.b64encode(data).decode()

    body = render("rollout_body.html", details=details, picture=picture, strip=rewards_of(details))
    return standalone(f"{details.stored.environment} seed {details.stored.seed}", body)


def standalone(title: str, body: Markup) -> str:
    """One HTML file that needs no script and no network, in the pages' own style; light and dark.

    title: plain text. body: HTML as `render`, `html` and the plots return it. Raises TypeError for a plain str, which may
    hold text that nobody escaped.
    """
    if not isinstance(body, Markup):
        raise TypeError("the body of a page is Markup, made by a template or a plot, not a plain str")
    return str(render("standalone.html", title=title, body=body))


def html(source: str, **values: Any) -> Markup:
    """Renders a short template that the code itself contains; every value is escaped unless it is Markup.

    The filters are those of the pages: `num`, `secs`, `count`, `money`, `when`, `signed`, `pretty`, `shown`.
    """
    return Markup(_environment().from_string(source).render(values))  # noqa: S704 - made by a template with autoescape


def render(name: str, **values: Any) -> Markup:
    """Renders one of the pages' templates; every value is escaped unless it is Markup."""
    return Markup(_environment().get_template(name).render(values))  # noqa: S704 - made by a template with autoescape


def rewards_of(details: RolloutDetails, address: str = "") -> Markup:
    """The rewards of a rollout's steps as a strip; each leads to its turn on the page at `address`, this one by default."""
    return strip(
        [
            StripStep(
                step.reward, step.refused is not None, f"{address}#turn-{turn.index + 1}", f"step {step.index + 1}"
            )
            for turn in details.turns
            for step in turn.steps
        ]
    )


@functools.cache
def style_sheet() -> str:
    """The style sheet of all pages."""
    return (FOLDER / "static" / "style.css").read_text(encoding="utf-8")


def style_hash() -> str:
    """The style sheet's hash for a Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(style_sheet().encode()).digest()).decode()


@functools.cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates", encoding="utf-8"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(FILTERS)
    made.globals.update(
        text_limit=TEXT_LIMIT,
        known_statuses=get_args(Status),
        style=Markup(style_sheet()),  # noqa: S704 - our own file
        style_hash=style_hash(),
    )
    return made


def shown(text: Any) -> str:
    """The text with every control character and mark of writing direction as a visible sign; line ends and tabs stay."""
    return _INVISIBLE.sub(_sign, str(text).replace("\r\n", "\n"))


def _sign(found: re.Match[str]) -> str:
    return f"⟨U+{ord(found[0]):04X}⟩"  # the pictures of control characters (U+2400 on) are in few fonts


def number(value: float | None) -> str:
    """A number in at most 4 digits; `–` for None."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def signed(value: float) -> str:
    """A number with its sign."""
    return f"{value:+.4g}"


def seconds(value: float | None) -> str:
    """A duration: `under 0.1 ms`, `12 ms`, `3.1 s`, `4 min 05 s`; `–` for None."""
    if value is None:
        return "–"
    if value < 1e-4:
        return "under 0.1 ms"
    if value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g} s" if value < 60 else f"{int(value // 60)} min {int(value % 60):02d} s"


def count(value: float | None) -> str:
    """A whole number with a space between thousands; `–` for None."""
    return "–" if value is None else f"{int(value):,}".replace(",", "\u202f")


def money(value: float | None) -> str:
    """US dollars; `–` where the price is not known."""
    return "–" if value is None else dollars(value)


def when(value: float | None) -> str:
    """A unix time as `2026-03-01 11:00:00`, in UTC; `–` for None."""
    return "–" if value is None else utc_time(value).strftime("%Y-%m-%d %H:%M:%S")


def moment(value: str) -> str:
    """An ISO 8601 time in UTC as `2026-03-01 11:00:00`."""
    return value[:19].replace("T", " ")


def _json(value: Any, *, indent: int | None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, default=dict)


def _metric_rows(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    return [(shown(name), number(value)) for name, value in metrics.items()]


def _second_rows(timing: Mapping[str, float]) -> list[tuple[str, str]]:
    return [(shown(name), seconds(value)) for name, value in timing.items()]


FILTERS: Mapping[str, Callable[..., Any]] = {
    "compact": functools.partial(_json, indent=None),
    "count": count,
    "metric_rows": _metric_rows,
    "moment": moment,
    "money": money,
    "num": number,
    "pretty": functools.partial(_json, indent=2),
    "second_rows": _second_rows,
    "secs": seconds,
    "shown": shown,
    "signed": signed,
    "start": lambda text, limit: text if len(text) <= limit else text[:limit] + "…",
    "when": when,
}
