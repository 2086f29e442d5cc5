"""HTML of rollouts and reports, rendered with Jinja templates and autoescape.

Jinja escapes the text of models, judges and environments, and `shown` makes its control characters and direction marks
visible. A page therefore displays such text and never executes it. No template marks data as safe.
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

from taskapp_kit.records.formatting import dollars, utc_time
from taskapp_kit.records.trajectory import Status
from taskapp_kit.rollout.details import RolloutDetails
from taskapp_kit.viewer.plots import StripStep, strip

FOLDER = Path(__file__).parent
TEXT_LIMIT = 20_000
"""How many characters of a text are shown before the rest is folded."""
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters except tab and line end
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction marks, which could reorder the text and any text after it
    "\ud800-\udfff]"
)


def standalone_rollout(details: RolloutDetails, blobs: Mapping[str, bytes]) -> str:
    """Return one rollout as an HTML file that needs neither scripts nor the network.

    blobs: PNG bytes of the rollout's images by SHA-256. For an image that is missing, only its size is shown.
    """

    def picture(sha256: str | None) -> str | None:
        data = blobs.get(sha256 or "")
        return None if data is None else "data:image/png;base64," + base64.b64encode(data).decode()

    body = render("rollout_body.html", details=details, picture=picture, strip=rewards_of(details))
    return standalone(f"{details.stored.environment} seed {details.stored.seed}", body)


def standalone(title: str, body: Markup) -> str:
    """Return an HTML file in the style of the viewer's pages. It needs neither scripts nor the network.

    Args:
        title: The title, as plain text.
        body: HTML from `render`, `html` or the plots.

    Raises:
        TypeError: `body` is a plain string, which may contain unescaped text.
    """
    if not isinstance(body, Markup):
        raise TypeError("`body` must be Markup from a template or a plot, not a plain string.")
    return str(render("standalone.html", title=title, body=body))


def html(source: str, **values: Any) -> Markup:
    """Render a template that is passed as a string. Every value is escaped unless it is Markup.

    The template can use the filters of the viewer's pages: `num`, `secs`, `count`, `money`, `when`, `signed`, `pretty` and
    `shown`.
    """
    return Markup(_environment().from_string(source).render(values))  # noqa: S704 - made by a template with autoescape


def render(name: str, **values: Any) -> Markup:
    """Render one of the viewer's templates. Every value is escaped unless it is Markup."""
    return Markup(_environment().get_template(name).render(values))  # noqa: S704 - made by a template with autoescape


def rewards_of(details: RolloutDetails, address: str = "") -> Markup:
    """Draw the rewards of a rollout's steps as a strip. Each step links to its turn.

    address: The address of the page with the turns. Defaults to the page that contains the strip.
    """
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
    """Return the style sheet of all pages."""
    return (FOLDER / "static" / "style.css").read_text(encoding="utf-8")


def style_hash() -> str:
    """Return the style sheet's hash, for a Content-Security-Policy header."""
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
    """Return the text with visible control characters and direction marks. Line ends and tabs are not changed."""
    return _INVISIBLE.sub(_sign, str(text).replace("\r\n", "\n"))


def _sign(found: re.Match[str]) -> str:
    return f"⟨U+{ord(found[0]):04X}⟩"  # few fonts contain the symbols for control characters (U+2400 and following)


def number(value: float | None) -> str:
    """Format a number with at most 4 significant digits. None is formatted as `–`."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def signed(value: float) -> str:
    """Format a number with a plus or minus sign."""
    return f"{value:+.4g}"


def seconds(value: float | None) -> str:
    """Format a duration as `under 0.1 ms`, `12 ms`, `3.1 s` or `4 min 05 s`. None is formatted as `–`."""
    if value is None:
        return "–"
    if value < 1e-4:
        return "under 0.1 ms"
    if value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g} s" if value < 60 else f"{int(value // 60)} min {int(value % 60):02d} s"


def count(value: float | None) -> str:
    """Format an integer with spaces between groups of thousands. None is formatted as `–`."""
    return "–" if value is None else f"{int(value):,}".replace(",", "\u202f")


def money(value: float | None) -> str:
    """Format US dollars. None is formatted as `–`."""
    return "–" if value is None else dollars(value)


def when(value: float | None) -> str:
    """Format a Unix time in UTC as `2026-03-01 11:00:00`. None is formatted as `–`."""
    return "–" if value is None else utc_time(value).strftime("%Y-%m-%d %H:%M:%S")


def moment(value: str) -> str:
    """Format an ISO 8601 time in UTC as `2026-03-01 11:00:00`."""
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
