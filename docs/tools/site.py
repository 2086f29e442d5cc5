"""Build the documentation site: `make site` runs this with .venv-site's Python, and leaves the pages in out/site.

The pages are staged in out/site-source with the layout of the repository, so that the links between README, docs and
examples also work there. Reference pages of the public modules are made from their docstrings, which mkdocstrings reads
without importing them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "out" / "site-source"
SITE = ROOT / "out" / "site"
GROUPS = ("start", "environments", "evaluate", "train", "connect", "operate", "reference", "contribute")
ABOUT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "THIRD_PARTY.md")
MODULES = (
    "taskapp_kit", "taskapp_kit.grading", "taskapp_kit.testing", "taskapp_kit.asgi", "taskapp_kit.config",
    "taskapp_kit.client", "taskapp_kit.store", "taskapp_kit.sandbox", "taskapp_kit.services", "taskapp_kit.errors",
    "taskapp_kit.records.events", "taskapp_kit.deploy.modal", "taskapp_kit.jobs.server.app",
    "taskapp_kit.interop.gymnasium", "taskapp_kit.train.workflow",
)  # fmt: skip
"""The public modules: what their `__all__` names is documented."""
FENCE = re.compile(r"^([ >]*```)(\w+)[ \t]+(.+)$", re.M)
LINK = re.compile(r"\]\(<?([^)\s>]+)>?\)")


def title(page: Path) -> str:
    """Return the heading of a page."""
    heading = re.search(r"^# +(.+)$", page.read_text("utf-8"), re.M)
    return heading[1].replace("`", "") if heading else page.stem


def fence(opening: re.Match[str]) -> str:
    """Return the fence of a block without the words that our tests read; its title stays."""
    name = re.search(r"title=(\S+)", opening[3])
    return f'{opening[1]}{opening[2]} title="{name[1]}"' if name else f"{opening[1]}{opening[2]}"


def stage() -> None:
    """Copy the pages, and every file of the repository that they link to."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    linked = set(pages)
    for page in pages:
        for target in re.findall(r'(?:\]\(<?|src=")([^)\s>"#]+)', page.read_text("utf-8")):
            file = (page.parent / target).resolve()
            if "://" not in target and file.is_file() and file.is_relative_to(ROOT):
                linked.add(file)
    for file in sorted(linked):
        staged = SOURCE / file.relative_to(ROOT)
        staged.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            staged.write_text(FENCE.sub(fence, file.read_text("utf-8")), "utf-8")
        else:
            shutil.copyfile(file, staged)
    for module in MODULES:
        page = SOURCE / "docs" / "reference" / "api" / f"{module}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f"# {module}\n\n::: {module}\n", "utf-8")


def navigation() -> list[dict[str, object]]:
    """Return the groups: in each, the pages in the order of the index, then the pages that it doesn't link to."""
    index = [
        (ROOT / "docs" / target.partition("#")[0]).resolve()
        for target in LINK.findall((ROOT / "docs" / "README.md").read_text("utf-8"))
    ]
    groups: list[dict[str, object]] = [{"Home": "README.md"}, {"All pages": "docs/README.md"}]
    for group in GROUPS:
        pages = sorted(
            (ROOT / "docs" / group).glob("*.md"),
            key=lambda page: (index.index(page) if page in index else len(index), page.name),
        )
        entries: list[dict[str, object]] = [{title(page): str(page.relative_to(ROOT))} for page in pages]
        if group == "reference":
            entries.append({"Python": [{module: f"docs/reference/api/{module}.md"} for module in MODULES]})
        groups.append({group.capitalize(): entries})
    return [*groups, {"About": [{title(ROOT / name): name} for name in ABOUT]}]


def build() -> int:
    """Stage the pages and build the site; return the exit status of mkdocs."""
    stage()
    config = {
        "INHERIT": str(ROOT / "docs" / "site" / "mkdocs.yml"),
        "docs_dir": str(SOURCE),
        "site_dir": str(SITE),
        "nav": navigation(),
        "plugins": {"mkdocstrings": {"handlers": {"python": {"paths": [str(ROOT)]}}}},
    }
    written = SOURCE.parent / "mkdocs.yml"
    written.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), "utf-8")
    return subprocess.run(  # noqa: S603 - our own arguments
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(written)],
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    ).returncode


if __name__ == "__main__":
    sys.exit(build())
