"""The interface of a site: it has state and handles requests, but needs no browser, network or clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import jinja2

Json = Any
"""A value that JSON can hold."""

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Request:
    """A request for a page. `form` has the fields of a POST; a name that occurs several times has all its values."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def value(self, name: str) -> str:
        """Return the form's field without surrounding space; "" where it is absent."""
        values = self.form.get(name, ())
        return values[-1].strip() if values else ""


@dataclass(frozen=True)
class Page:
    """An answer: HTML with its status, or with `location` the path of the page to go to (after a POST)."""

    html: str = ""
    status: int = 200
    location: str | None = None


class Site(Protocol):
    """A site of one episode."""

    origin: str
    """The origin of the site, such as `https://shop.test`."""

    def handle(self, request: Request) -> Page:
        """Return the requested page. A POST may change the state."""
        ...

    def record(self) -> dict[str, Json]:
        """Return what the site holds and a task can be about: compared at the end with what it should hold."""
        ...


class Pages:
    """The Jinja templates of a site and the shared templates. Inserted values are escaped."""

    def __init__(self, folder: Path) -> None:
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader([folder, HERE / "shared"]),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    def render(self, template: str, status: int = 200, **values: Any) -> Page:
        """Return a template with its values."""
        return Page(self._templates.get_template(template).render(**values), status)
