"""What holds on each site: tasks are made again alike, and what is not there is a page with a way home."""

from __future__ import annotations

import re

import pytest

from environments.web.sites.catalog import KINDS
from environments.web.sites.kind import LEVELS, Kind, Level
from environments.web.sites.site import Request
from tests.environments.web.sites.site_requests import get, problem_of, problems_of

CASES = [
    pytest.param(kind, level, feasible, id=f"{kind.name}-{level}-{'feasible' if feasible else 'infeasible'}")
    for kind in KINDS.values()
    for level in LEVELS
    for feasible in ((True, False) if kind.infeasible else (True,))
]


@pytest.mark.parametrize(("kind", "level", "feasible"), CASES)
def test_a_task_is_made_again_alike_differs_by_seed_and_is_not_solved_by_doing_nothing(
    kind: Kind, level: Level, feasible: bool
) -> None:
    tasks = problems_of(kind, level, feasible)
    for seed, task in enumerate(tasks):
        again, record = problem_of(kind, level, seed, feasible), task.site.record()
        assert again.site is not task.site
        assert again.site.record() == record
        assert (again.goal, again.answer, again.expected) == (task.goal, task.answer, task.expected)
        assert task.feasible is feasible
        assert (task.expected != record) == (feasible and kind.verb != "find")
        assert bool(task.answer) == (feasible and kind.verb == "find")
        assert task.ends_on_change == (kind.name == "admin/switch")
    for path in ("/", *re.findall(r'href="(/[^"]+)"', get(task.site, "/").html)):
        assert get(task.site, path) == get(again.site, path)
    assert len({task.goal for task in tasks}) > 5


UNKNOWN = {
    "admin/edit": "/no /machines/M-0 /machines/M-0/edit /machines/../x/y /changes/1 /changes/add /settings/no /machines/C-1",
    "calendar/book": "/nowhere /rooms /rooms/cellar /days /days/2031-02-30 /days/x /bookings /bookings/0 /bookings/x "
    f"/bookings/² /bookings/{'9' * 5000} /bookings/-1/change /bookings/1/cancel /new/1",
    "mail/find": f"/nope /folder/nope /message/0 /message/x /message/٣ /message/{'9' * 400} /message/1/reply /sent/0 "
    "/sent/99 /tickets/T-0 /tickets/<b> /folder/inbox/more /assets",
    "shop/order": f"/nowhere /p/none /c/none /orders/99 /orders/x /orders/{'9' * 50} /orders/12/none /c /p/a/b",
}


@pytest.mark.parametrize("kind", UNKNOWN)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_unknown_path_is_a_404_with_a_way_home(kind: str, method: str) -> None:
    site = problem_of(KINDS[kind], "medium", 1).site
    for path in UNKNOWN[kind].split():
        page = site.handle(Request(method, path))
        assert page.status == 404, path
        assert 'href="/"' in page.html
