"""The tasks of the sites, and requests as the sites' pages send them."""

from __future__ import annotations

import random
from collections.abc import Mapping

from environments.web.sites.kind import Kind, Level, Problem
from environments.web.sites.site import Page, Request, Site

SEEDS = range(8)


def problem_of(kind: Kind, level: Level, seed: int, feasible: bool = True) -> Problem:
    return kind.make(random.Random(f"{kind.name} {level} {seed} {feasible}"), level, feasible)


def problems_of(kind: Kind, level: Level, feasible: bool = True) -> list[Problem]:
    return [problem_of(kind, level, seed, feasible) for seed in SEEDS]


def get(site: Site, path: str, /, **query: str) -> Page:
    return site.handle(Request("GET", path, query))


def post(site: Site, path: str, query: Mapping[str, str] | None = None, /, **form: str | tuple[str, ...]) -> Page:
    fields = {name: value if isinstance(value, tuple) else (value,) for name, value in form.items()}
    return site.handle(Request("POST", path, query or {}, fields))
