"""Files in and out of a box whose inside is hostile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskapp_kit.errors import SandboxError
from taskapp_kit.sandbox.folder import Folder, remove_tree
from tests.sandbox.boxes import box, folders

pytestmark = pytest.mark.process

OUTSIDE = ["../x", "/etc/passwd", "a/../../x", "", ".", "..", "a//b", "a/", "./a", "a\0b", "x/" * 100 + "x"]


def test_files_go_in_and_come_out(level: int) -> None:
    data = bytes(range(256)) * 100
    with box(level, files={"data.bin": data, "deep/er/text.txt": "grüß"}) as opened:
        ran = opened.run_sync(
            "data = open('data.bin', 'rb').read()\n"
            "open('out.bin', 'wb').write(data[::-1])\n"
            "print(open('deep/er/text.txt').read())\n"
            "open('deep/er/text.txt', 'a').write('!')\n"
        )
        assert (ran.stdout, ran.stderr, ran.ok) == ("grüß\n", "", True)
        assert opened.list_sync() == ["data.bin", "deep/er/text.txt", "out.bin"]
        assert opened.read_sync("out.bin") == data[::-1]
        assert opened.read_sync("deep/er/text.txt").decode() == "grüß!"
        opened.write_sync("out.bin", b"new")
        assert opened.run_sync("print(open('out.bin').read())").stdout == "new\n"
        with pytest.raises(FileNotFoundError, match=r"'none\.txt'"):
            opened.read_sync("none.txt")
        with pytest.raises(FileNotFoundError):
            opened.read_sync("no/folder.txt")


def test_files_stay_between_runs_and_nothing_else_does(level: int) -> None:
    with box(level) as opened:
        first = opened.run_sync(
            "import os, tempfile\nopen('kept', 'w').write('x')\nopen(tempfile.gettempdir() + '/lost', 'w').write('x')\n"
            "os.environ['A'] = '1'\nprint(tempfile.gettempdir())"
        )
        assert first.ok, first.stderr
        second = opened.run_sync(
            "import os, tempfile\nprint(os.listdir('.'), os.listdir(tempfile.gettempdir()), 'A' in os.environ)"
        )
        assert second.stdout == "['kept'] [] False\n"


def test_boxes_share_nothing(level: int) -> None:
    with box(level, files={"secret.txt": "mine"}) as one, box(level) as two:
        assert one.run_sync("import os; print(os.listdir('.'))").stdout == "['secret.txt']\n"
        assert two.run_sync("import os; print(os.listdir('.'))").stdout == "[]\n"
        if two.root != "/box":
            ran = two.run_sync(f"print(open({one.root + '/secret.txt'!r}).read())")
            assert not ran.ok and "Permission denied" in ran.stderr
            with pytest.raises(SandboxError):
                one.read_sync(two.root + "/x")


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_path_outside_is_refused(level: int, name: str) -> None:
    with box(level) as opened:
        for attempt in (lambda: opened.read_sync(name), lambda: opened.write_sync(name, b"x")):
            with pytest.raises(SandboxError, match="not a valid path"):
                attempt()


def test_links_made_by_the_box_lead_nowhere(level: int, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the host")
    tmp_path.chmod(0o777)
    made = f"""
import os
host = {str(tmp_path)!r}
os.symlink(host + "/secret", "link")
os.symlink("/etc/shadow", "shadow")
os.symlink("plain", "own")
os.symlink(host, "folder")
os.symlink("..", "up")
os.symlink("/proc/self/environ", "environ")
os.symlink("/proc/self/root", "root")
os.mkfifo("pipe")
os.mkdir("directory")
open("plain", "w").write("fine")
os.link("plain", "hard")
os.chmod("plain", 0)
import socket
"""
    with box(level) as opened:
        ran = opened.run_sync(made)
        assert ran.ok, ran.stderr
        for name in (
            "link",
            "own",
            "shadow",
            "folder/secret",
            "up/code/main.py",
            "environ",
            "root/etc/shadow",
            "pipe",
            "directory",
        ):
            with pytest.raises(SandboxError):
                opened.read_sync(name)
        assert opened.list_sync() == ["hard", "plain"]
        if os.geteuid() == 0:
            assert opened.read_sync("hard") == b"fine"
        with pytest.raises(SandboxError):
            opened.write_sync("folder/planted", b"x")
        with pytest.raises(SandboxError):
            opened.write_sync("root/planted", b"x")
        opened.write_sync("link", b"a file now")
        assert opened.read_sync("link") == b"a file now"
    assert (tmp_path / "secret").read_text() == "of the host"
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_file_of_somebody_else_is_not_read(tmp_path: Path) -> None:
    """A hard link that a weak level lets a box make to a file of the host."""
    folder = Folder(60_599)
    try:
        secret = folder.path / "secret"
        secret.write_text("of the host")
        os.link(secret, folder.files / "hard")
        with pytest.raises(SandboxError, match="'hard'.*regular"):
            folder.read("hard", most_bytes=100)
    finally:
        folder.remove()


def test_sizes_are_limited(level: int) -> None:
    with box(level) as opened:
        opened.write_sync("a", b"x" * 1000)
        assert len(opened.read_sync("a", max_bytes=1000)) == 1000
        with pytest.raises(SandboxError, match="'a' .*999 bytes"):
            opened.read_sync("a", max_bytes=999)
        with pytest.raises(SandboxError, match="file_bytes"):
            opened.write_sync("b", b"x" * (opened.limits.file_bytes + 1))
        assert opened.run_sync("for i in range(190): open(str(i), 'w')").ok
        assert len(opened.list_sync()) == 191
        opened.run_sync("for i in range(190, 300): open(str(i), 'w')")
        with pytest.raises(SandboxError, match="200 files"):
            opened.list_sync()


@pytest.mark.ci(keep=1)
def test_any_tree_is_removed(level: int) -> None:
    deep = """
import os
os.mkdir("locked"); open("locked/file", "w").close(); os.mkdir("locked/inner"); os.chmod("locked/inner", 0); os.chmod("locked", 0)
open(b"name\\xff\\xfe", "w").close()
for _ in range(1500):
    os.mkdir("d"); os.chdir("d")
open("end", "w").close()
"""
    before = folders()
    with box(level) as opened:
        ran = opened.run_sync(deep)
        assert ran.killed_for in (None, "disk"), ran
        with pytest.raises(SandboxError, match="deep"):
            opened.list_sync()
    assert folders() == before


TREE = st.recursive(st.none(), lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=3), max_leaves=12)


@given(TREE)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_removing_leaves_nothing_and_follows_no_link(tmp_path: Path, tree: object) -> None:
    kept = tmp_path / "kept"
    kept.write_text("x")
    top = tmp_path / "top"

    def make(path: Path, node: object) -> None:
        if isinstance(node, dict):
            path.mkdir()
            (path / "link").symlink_to(tmp_path)
            for name, inner in node.items():
                make(path / name, inner)
        else:
            path.write_text("leaf")

    make(top, tree if isinstance(tree, dict) else {})
    remove_tree(top)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept"]
