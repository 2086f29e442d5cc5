"""`taskapp generate`: what is printed, and where an error is shown."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import ADDER, Run


def test_a_package_for_verifiers(run: Run, tmp_path: Path) -> None:
    done = run("generate", "verifiers", ADDER, "--out", "package", status=0)
    assert done.output.startswith("Created package (taskapp-adder):\n")
    assert (tmp_path / "package" / "taskapp_adder" / "task_app" / "adder.py").is_file()
    for text in (done.output, (tmp_path / "package" / "README.md").read_text()):
        (line,) = [line for line in text.splitlines() if "vf-eval" in line]
        assert " -n 5 " in line and " --env.taskset.split test " in line
    again = run("generate", "verifiers", ADDER, "--out", "package", status=2)
    assert "not an empty directory" in again.output
