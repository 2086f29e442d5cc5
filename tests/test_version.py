"""The commit of a checkout, read from its files."""

from __future__ import annotations

from pathlib import Path

from taskapp_kit.version import git_commit

SHA = "0123456789abcdef0123456789abcdef01234567"


def checkout(folder: Path, head: str, **files: str) -> Path:
    git = folder / ".git"
    git.mkdir(parents=True)
    (git / "HEAD").write_text(head)
    for name, text in files.items():
        file = git / name.replace("__", "/").replace("packed_refs", "packed-refs")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder / "sub" / "app.py"


def test_the_commit_of_each_kind_of_checkout(tmp_path: Path) -> None:
    assert git_commit(checkout(tmp_path / "a", f"{SHA}\n")) == SHA
    assert git_commit(checkout(tmp_path / "b", "ref: refs/heads/main\n", refs__heads__main=f"{SHA}\n")) == SHA
    packed = f"# pack-refs\n{SHA} refs/heads/main\n"
    assert git_commit(checkout(tmp_path / "c", "ref: refs/heads/main\n", packed_refs=packed)) == SHA
    assert git_commit(checkout(tmp_path / "d", "ref: refs/heads/new\n")) is None
    assert git_commit(checkout(tmp_path / "e", "nonsense\n")) is None


def test_a_worktree_is_not_taken_for_the_checkout_around_it(tmp_path: Path) -> None:
    checkout(tmp_path, SHA)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / ".git").write_text(f"gitdir: {tmp_path}/.git/worktrees/tree\n")
    assert git_commit(tmp_path / "tree" / "app.py") is None


def test_outside_a_checkout_there_is_none(tmp_path: Path) -> None:
    assert git_commit(tmp_path / "app.py") is None
