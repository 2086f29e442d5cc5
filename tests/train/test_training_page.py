"""The walk of docs/train/training.md: its commands in their order, with a job of two iterations."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.conftest import clean_environ
from tests.docs.test_blocks import ROOT, blocks, commands, first_missing

PAGE = ROOT / "docs/train/training.md"
CONFIG = "examples/rl/learn_tiny.toml"
SHORTER = {"iterations_per_epoch = 36": "iterations_per_epoch = 2", "every_n_iters = 12": "every_n_iters = 2"}
NAMED = "rl:tiny:rl_0123456789abcdef:checkpoint-24"
"""The trained model, as the page names it."""

pytestmark = [pytest.mark.train, pytest.mark.server, pytest.mark.process]


@pytest.mark.skipif(
    not all(find_spec(name) for name in ("torch", "matplotlib", "tensorboardX")),
    reason="needs the train extra: make test-train",
)
@pytest.mark.timeout(900)
def test_every_command_of_the_walk_does_what_the_page_says(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "rl", tmp_path / "examples" / "rl")
    config = (tmp_path / CONFIG).read_text(encoding="utf-8")
    for long, short in SHORTER.items():
        assert long in config
        config = config.replace(long, short)
    (tmp_path / CONFIG).write_text(config, encoding="utf-8")
    environ = clean_environ(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", COLUMNS="200")
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    model = NAMED
    walk = [each for block in blocks(PAGE) if "walk" in block.words.split() for each in commands(block.text)]
    for command, expected in walk:
        done = subprocess.run(
            ["bash", "-c", command.replace(NAMED, model)],
            cwd=tmp_path,
            env=environ,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, f"`{command}`:\n{done.stdout}\n{done.stderr}"
        missing = first_missing([line.replace(NAMED, model) for line in expected], done.stdout)
        assert missing is None, f"`{command}` did not print {missing!r}:\n{done.stdout}"
        if found := re.search(r"^model +(rl:tiny:\S+)$", done.stdout, re.MULTILINE):
            model = found[1]
    assert model != NAMED
    assert (tmp_path / "keys.tar.gz").exists() and list(tmp_path.glob("elsewhere/rl/tiny/*/*/model.safetensors"))
    pictures = [Path(name) for name in re.findall(r"!\[[^\]]+\]\((\S+)\)", PAGE.read_text(encoding="utf-8"))]
    assert len(pictures) == 2 and all((PAGE.parent / name).stat().st_size < 100_000 for name in pictures)
