"""Pages as self-contained files: complete, without scripts, and with every text as text."""

from __future__ import annotations

import asyncio
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from taskapp_kit import Image, Step, TaskApp, action
from taskapp_kit.records.protocols import StoredRollout
from taskapp_kit.rollout.details import RolloutDetails, details_of
from taskapp_kit.rollout.service import Service
from taskapp_kit.store import open_store
from taskapp_kit.viewer import pages
from taskapp_kit.viewer.pages import shown, standalone, standalone_rollout
from taskapp_kit.viewer.plots import histogram
from tests.rollouts import a_request
from tests.viewer.hostile_texts import LINE, TEXTS

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc0000003010100c9fe92ef"
    "0000000049454e44ae426082"
)
SECRET = "sentinel-of-the-end-state"


def echo_app() -> TaskApp:
    """Whatever is said comes back as observation, info, metric's name and reason."""
    app = TaskApp("echo", version="1")

    @app.environment("echo", splits={"train": range(10)}, max_steps=3)
    class Echo:
        """Repeats what it hears."""

        def reset(self, seed: int) -> list[object]:
            self.said = ""
            return ["Say something.", Image(PNG)]

        @action(text=True)
        def say(self, text: str) -> Step:
            """Say it."""
            self.said = text
            return Step([text, Image(PNG)], 1.0, info={text[:100]: text[:1000]}, metrics={text[:100]: 1.0})

        def final_state(self) -> dict[str, str]:
            return {"secret": SECRET}

    return app


class Elements(HTMLParser):
    """Every element and attribute of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def harmless(self, scripts: int) -> None:
        """Nothing of it runs, covers the page or leads elsewhere. scripts: how many scripts of ours it has."""
        tags = [tag for tag, _ in self.tags]
        assert tags.count("script") == scripts
        assert not {"iframe", "object", "embed", "base", "style", "math", "template", "svg:script"} & set(tags)
        for tag, attrs in self.tags:
            assert not [name for name in attrs if name.startswith("on") or name in ("style", "srcdoc")], tag
            for name in ("href", "src", "action", "formaction"):
                assert re.match(r"(/(?!/)|#|\?|data:image/png;|$)", attrs.get(name) or ""), (tag, attrs)
            assert tag != "meta" or attrs.get("http-equiv") in (None, "Content-Security-Policy")
            assert tag != "script" or str(attrs.get("src")).startswith("/ui/static/ui.js")


def played(tmp_path: Path, text: str) -> tuple[StoredRollout, dict[str, bytes]]:
    """A stored rollout in which the policy says `text`, and its pictures."""

    async def play() -> tuple[StoredRollout, dict[str, bytes]]:
        store = open_store(f"sqlite:///{tmp_path}/rollouts.db")
        service = Service(echo_app(), store=store)
        try:
            rollout = await service.rollout(a_request("constant", action=text, seed=0))
            stored = await store.load(rollout.rollout_id)
            assert stored is not None
            pictures = {name: await store.blob(name) for name in details_of(stored).pictures}
            return stored, {name: data for name, data in pictures.items() if data is not None}
        finally:
            await service.close()

    return asyncio.run(play())


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[RolloutDetails, str]:
    stored, blobs = played(tmp_path_factory.mktemp("plain"), "hello")
    return details_of(stored), standalone_rollout(details_of(stored), blobs)


def test_a_rollout_is_one_file_without_scripts_and_without_anything_from_elsewhere(
    plain: tuple[RolloutDetails, str],
) -> None:
    details, page = plain
    found = Elements(page)
    assert not {"script", "link", "iframe", "object", "base", "form"} & {tag for tag, _ in found.tags}
    addresses = [value or "" for _, attrs in found.tags for name, value in attrs.items() if name in ("src", "href")]
    assert addresses
    assert all(address.startswith(("data:image/png;base64,", "#")) for address in addresses)
    assert "hello" in found.text
    assert details.stored.rollout_id in found.text
    assert found.text.count("Turn ") >= 3
    (policy,) = (attrs["content"] for tag, attrs in found.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in str(policy)
    ids = [attrs["id"] for _, attrs in found.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for target in (address for address in addresses if address.startswith("#")):
        assert target[1:] in ids


def test_page_contains_nothing_private(plain: tuple[RolloutDetails, str]) -> None:
    assert SECRET not in plain[1]


@pytest.mark.parametrize("name", TEXTS)
def test_a_hostile_text_is_shown_as_text(tmp_path: Path, plain: tuple[RolloutDetails, str], name: str) -> None:
    text = TEXTS[name]
    stored, blobs = played(tmp_path, text)
    stored.environment, stored.stop_reason, stored.run_id = text[:200], text[:200], text[:200]  # names, too
    assert stored.scorecard is not None
    stored.scorecard["criteria"] = [
        {"name": text[:200], "of": "outcome", "score": 1.0, "weight": 1.0, "reason": text[:5000], "error": text[:200]}
    ]
    stored.private["judge_calls"] = {
        "prompts": {"p": [{"role": text[:100], "content": text[:5000]}]},
        "calls": [{"judges": [text[:100]], "role": "judge", "sample": 0, "ask": 1, "prompt": "p", "model": text[:100],
                   "verdict": {"reason": text[:5000]}, "text": text[:5000], "problem": text[:100]}],
    }  # fmt: skip
    stored.private["second_calls"] = [
        {"role": text[:100], "messages": [{"role": "user", "content": text[:5000]}],
         "reply": {"role": "assistant", "content": text[:5000], "reasoning_content": text[:5000]}}
    ]  # fmt: skip
    page = standalone_rollout(details_of(stored), blobs)
    found = Elements(page)
    allowed = {tag for tag, _ in Elements(plain[1]).tags} | {
        "b", "details", "summary", "small", "table", "caption", "thead", "tbody", "tr", "th", "td", "code",
    }  # fmt: skip
    assert {tag for tag, _ in found.tags} <= allowed
    body = page.partition("</style>")[2]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200e\u200f]", body)
    assert shown(text)[:15_000] in found.text
    assert text != LINE or found.text.replace("more characters", "").count("x") >= len(LINE)


def test_control_characters_and_marks_of_direction_become_signs() -> None:
    assert shown("a\x1b[31m\x00\x7f") == "a⟨U+001B⟩[31m⟨U+0000⟩⟨U+007F⟩"
    assert shown("\u202e\x9b") == "⟨U+202E⟩⟨U+009B⟩"
    assert shown("two\r\nlines\tand ünïcode 漢字") == "two\nlines\tand ünïcode 漢字"


def test_a_report_is_a_page_of_plots_and_escaped_values() -> None:
    body = pages.html("<h1>{{ title }}</h1>{{ plot }}", title="<b>x</b>", plot=histogram([1.0, 2.0], title="t"))
    found = Elements(standalone("a </title><script>", body))
    assert [tag for tag, _ in found.tags].count("svg") == 1
    assert "script" not in {tag for tag, _ in found.tags}
    assert "<b>x</b>" in found.text


def test_standalone_rejects_a_plain_str_body() -> None:
    with pytest.raises(TypeError):
        standalone("t", "<p>who escaped this?</p>")  # type: ignore[arg-type]
