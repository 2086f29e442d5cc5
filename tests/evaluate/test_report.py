from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.evaluate.directory import Directory
from taskapp_kit.evaluate.plan import EvalPlan
from taskapp_kit.evaluate.report import write_report
from taskapp_kit.evaluate.run import configuration, summarise
from taskapp_kit.evaluate.runners import EvaluatedApp
from taskapp_kit.evaluate.summary import SummaryOptions
from taskapp_kit.records.protocols import RolloutRow
from taskapp_kit.records.seeds import Seeds

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\u202eevil"


class Page(HTMLParser):
    """The tags and captions of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: dict[str, int] = {}
        self.attributes: set[str] = set()
        self.captions: list[str] = []
        self._caption = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.attributes |= {name for name, _ in attrs}
        self._caption = tag == "figcaption"

    def handle_data(self, data: str) -> None:
        if self._caption:
            self.captions.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._caption = False


def report(path: Path, plan: EvalPlan, results: list[RolloutRow], *, app: str = "app") -> Page:
    about = EvaluatedApp(app, "1", "hash", "env", formula=f"reward = {HOSTILE}")
    directory = Directory(path, plan)
    try:
        directory.begin(configuration(plan, about), resume=True)
        directory.append(list(enumerate(results)))
        options = SummaryOptions(by=("difficulty", "topic"))
        write_report(
            plan, directory, summarise(plan, directory, about, None, options), created_at="2026-11-22T10:00:00"
        )
    finally:
        directory.close()
    return Page((path / "report.html").read_text("utf-8"))


def result(position: int, *, repeats: int, policies: int) -> RolloutRow:
    seed = position // (repeats * policies)
    row = {"difficulty": ("easy", HOSTILE)[seed % 2], "topic": seed % 3}
    if position % 5 == 4:
        return RolloutRow("failed", "r", seed=seed, boundary="policy", code="c", message=HOSTILE, row=row)
    return RolloutRow(
        "terminated", "r", seed=seed, reward=float(position % 2), criteria={HOSTILE: 0.5}, length=position % 7, row=row
    )  # fmt: skip


@pytest.mark.parametrize("names", [("one",), ("one", HOSTILE)])
def test_every_plot_is_there_and_hostile_text_is_text(tmp_path: Path, names: tuple[str, ...]) -> None:
    plan = EvalPlan(Seeds.read("0-11"), [{"policy": name} for name in names], repeats=2)
    results = [result(position, repeats=2, policies=len(names)) for position in range(len(plan))]
    page = report(tmp_path, plan, results, app=HOSTILE)
    text = (tmp_path / "report.html").read_text("utf-8")
    captions = " | ".join(page.captions)
    for caption in ("Distribution of rewards", "Criteria", "Reward by difficulty", "Reward by topic", "Length against reward",
                    "pass@k", "pass^k", "Failures by boundary"):  # fmt: skip
        assert caption in captions
    assert ("Reward with 95 % intervals" in captions) == (len(names) > 1)
    assert not page.tags.keys() & {"script", "img", "iframe", "link", "object"}
    assert not any(name.startswith("on") for name in page.attributes)
    assert page.tags["svg"] == page.tags["figure"]
    assert "&lt;script&gt;" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "prefers-color-scheme" in text


def test_without_results_and_with_failures_alone_there_is_a_report(tmp_path: Path) -> None:
    plan = EvalPlan(Seeds.read("0-3"), [{"policy": "one"}])
    assert report(tmp_path / "none", plan, []).captions == []
    failed = [RolloutRow("failed", "r", seed=0, boundary=None, code="status_500", message="gone")]
    page = report(tmp_path / "failed", plan, failed)
    assert "Failures by boundary" in page.captions
    assert not (tmp_path / "failed" / "summary.json").exists()
