"""The key file's format, and changes to it: what is there stays, nothing is lost, no key is told."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.errors import ConfigError
from taskapp_kit.serve import key_file
from taskapp_kit.serve.key_file import KeyFileError, KeyHolder
from tests.serve.running_server import KEY, fragments
from tests.store.opened_stores import child

HERE = Path("keys")
HEX = hashlib.sha256(KEY.encode()).hexdigest()

LABELS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True).filter(
    lambda label: not key_file.is_own_label(label)
)
QUOTAS = st.none() | st.integers(1, key_file.MAX_QUOTA)
SECRETS = st.text(
    st.characters(codec="utf-8", exclude_categories=("Z", "C"), exclude_characters=",#"), min_size=1, max_size=40
).filter(lambda text: not re.match(r"(?i)max_in_flight=|(sha-?[0-9]+|md5)[:=]", text) and not text.split()[1:])
SPACE = st.sampled_from([" ", "\t", "   "])
END = st.sampled_from(["\n", "\r\n"])


@st.composite
def lines(draw: st.DrawFn) -> str:
    """A line that a person may have written: nothing, a comment, a key in any of its forms."""
    kind = draw(st.sampled_from(["empty", "comment", "bare", "plain", "hashed"]))
    if kind == "empty":
        return draw(st.sampled_from(["", "  ", "\t"])) + draw(END)
    if kind == "comment":
        words = draw(st.text(st.characters(codec="utf-8", exclude_categories=("Z", "C")), max_size=30))
        return f"# {words}" + draw(END)
    secret = draw(SECRETS) if kind in ("bare", "plain") else "sha256:" + secrets.token_hex(32)
    if kind == "bare":
        return secret + draw(END)
    quota = draw(QUOTAS)
    more = "" if quota is None else f"{draw(SPACE)}max_in_flight={quota}"
    # a label of its own: the law of labels that share one is tested apart
    return f"{draw(SPACE)}{secrets.token_hex(6)}{draw(SPACE)}{secret}{more}{draw(SPACE)}" + draw(END)


FILES = st.builds(
    lambda mark, parts: mark + "".join(parts), st.sampled_from(["", "\ufeff"]), st.lists(lines(), max_size=8)
)


def parses(text: str) -> bool:
    try:
        key_file.parse(text, HERE)
    except ConfigError:
        return False
    return True


@given(LABELS, SECRETS, QUOTAS, st.booleans())
def test_written_key_line_is_read_back(label: str, secret: str, quota: int | None, admin: bool) -> None:
    [line] = key_file.parse(key_file.key_line(KeyHolder(label, quota, admin), secret), HERE)
    assert line.holder == KeyHolder(label, quota, admin) and line.hashed and line.labelled and line.number == 1
    assert line.digests == (hashlib.sha256(secret.encode()).digest(),)


@given(FILES.filter(parses), LABELS, QUOTAS, st.booleans())
def test_adding_and_removing_a_key_leaves_other_lines_unchanged(
    tmp_path_factory: pytest.TempPathFactory, text: str, label: str, quota: int | None, cut: bool
) -> None:
    file = tmp_path_factory.getbasetemp() / f"{secrets.token_hex(8)}.keys"
    text = text.rstrip("\r\n") if cut else text
    before = text.encode()
    file.write_bytes(before)
    known = key_file.read(file)
    if any(line.holder.label == label for line in known):
        return
    assert key_file.add(file, label, "a-new-key", max_in_flight=quota) == KeyHolder(label, quota)
    assert file.read_bytes().startswith(before)
    assert key_file.read(file)[:-1] == known and key_file.read(file)[-1].holder == KeyHolder(label, quota)
    assert key_file.remove(file, label) == (1, len(known))
    assert file.read_bytes() in (before, before + b"\n")


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=9), st.sampled_from(["a", "b", "c"]))
def test_revoking_removes_exactly_the_keys_of_a_label(
    tmp_path_factory: pytest.TempPathFactory, labels: list[str], gone: str
) -> None:
    file = tmp_path_factory.getbasetemp() / f"{secrets.token_hex(8)}.keys"
    written = [f"# before {n}\n{label} key-{n}\n" for n, label in enumerate(labels)]
    file.write_text("".join(written))
    if gone not in labels:
        with pytest.raises(KeyFileError, match=f"{file.name} .*label"):
            key_file.remove(file, gone)
        return
    assert key_file.remove(file, gone) == (labels.count(gone), len(labels) - labels.count(gone))
    kept = [line.split("\n")[0] + "\n" if label == gone else line for label, line in zip(labels, written, strict=True)]
    assert file.read_text() == "".join(kept)


def test_keep_newest_keeps_only_the_last_key_of_a_label(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("ci oldest\n# why\nother other-key\nci older\n")
    key_file.add(file, "ci", "newest", another=True)
    assert key_file.remove(file, "ci", keep_newest=True) == (2, 2)
    assert file.read_text() == f"# why\nother other-key\n{key_file.key_line(KeyHolder('ci'), 'newest')}\n"
    for label in ("ci", "other"):
        with pytest.raises(KeyFileError, match=f"{label} .*--keep-newest"):
            key_file.remove(file, label, keep_newest=True)
    assert len(key_file.read(file)) == 2


QUOTAS_THAT_ARE_NONE = ("0", "-1", "1.5", "1e3", "1000001", "٣", "", KEY, " = 8", "8 max_in_flight=8")
BROKEN = [
    *(f"label {KEY} max_in_flight={quota}" for quota in QUOTAS_THAT_ARE_NONE),
    *(f"label {KEY} {words}" for words in ("quota=8", "max-in-flight=8", "admin admin", "administrator", "# why")),
    *(f"{label} {KEY}" for label in ("a b", "label admin", "la,bel", "-label", "label:", "l" * 65, "läbel")),
    *(f"{words} {KEY}" for words in ("max_in_flight=8", "max_in_flight=8 label", "label max_in_flight=8")),
    *(f"{KEY}{rest}" for rest in (" ,", ",x", " admin", " max_in_flight=8", " " + KEY * 20)),
    *(f"label sha256:{digest}" for digest in (HEX[:-1], f"{HEX}0", f"{HEX[:-1]}g", f" {HEX}")),
    *(f"label {name}{HEX}" for name in ("SHA256:", "sha-256:", "sha256=")),
    *(
        f"label {KEY},",
        "label admin max_in_flight=8",
        f"sha256:{HEX} label",
        f"label sha512:{HEX * 2}",
        f"label md5:{HEX[:32]}",
    ),
]


@pytest.mark.parametrize("line", BROKEN)
def test_invalid_line_error_names_the_line_without_showing_it(line: str) -> None:
    with pytest.raises(ConfigError, match=r"^keys:3 ") as caught:
        key_file.parse(f"# first\nfine-key-000\n{line}\n", HERE)
    assert not fragments(str(caught.value), KEY, HEX)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        *((f"ci {KEY} {words}", "ci another-key-11") for words in ("max_in_flight=8", "admin")),
        ("ci another-key-11", f"ci {KEY} max_in_flight=8"),
        (f"ci {KEY} max_in_flight=8", f"ci sha256:{HEX} max_in_flight=9"),
        *((f"{line}", f"trainer {KEY}") for line in (f"ci {KEY}", f"ci sha256:{HEX}", KEY)),
    ],
)
def test_conflicting_lines_are_both_named(first: str, second: str) -> None:
    with pytest.raises(ConfigError, match="keys:1 and keys:3 ") as caught:
        key_file.parse(f"{first}\n\n{second}\n", HERE)
    assert not fragments(str(caught.value), KEY, "another-key-11", HEX)


def test_several_keys_may_share_a_label_and_its_quota() -> None:
    found = key_file.parse(f"ci one-key max_in_flight=8\nci sha256:{HEX} max_in_flight=8\nbare\nbare\n", HERE)
    assert [line.holder for line in found] == [
        KeyHolder("ci", 8), KeyHolder("ci", 8), KeyHolder("file3"), KeyHolder("file4"),
    ]  # fmt: skip
    assert [line.hashed for line in found] == [False, True, False, False]
    assert HEX not in repr(found) and not fragments(repr(found), "one-key")


def test_another_key_of_a_label_takes_its_quota(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    key_file.add(file, "ci", "first", max_in_flight=4)
    with pytest.raises(KeyFileError, match="--another"):
        key_file.add(file, "ci", "second")
    with pytest.raises(KeyFileError, match="--max-in-flight"):
        key_file.add(file, "ci", "second", max_in_flight=5, another=True)
    assert len(key_file.read(file)) == 1
    assert key_file.add(file, "ci", "second", another=True) == KeyHolder("ci", 4)
    assert key_file.add(file, "ci", "third", max_in_flight=4, another=True) == KeyHolder("ci", 4)
    assert key_file.add(file, "new", "fourth", another=True) == KeyHolder("new")
    assert [line.holder.max_in_flight for line in key_file.read(file)] == [4, 4, 4, None]


@pytest.mark.parametrize(
    "label", ["", " ", "a b", ".a", "-a", "_a", "a" * 65, "é", "a/b", "a\n", "environment", "alias3", "file12"]
)
def test_invalid_label_is_not_written(tmp_path: Path, label: str) -> None:
    with pytest.raises(ConfigError):
        key_file.add(tmp_path / "keys", label, "key")
    assert list(tmp_path.iterdir()) == []


def test_new_key_file_is_private_and_an_existing_one_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "down" / "keys"
    umask = os.umask(0)
    try:
        key_file.add(file, "ci", KEY)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert not key_file.open_to_others(file)
    file.chmod(0o640)
    key_file.add(file, "trainer", "other-key")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640 and key_file.open_to_others(file)
    key_file.remove(file, "ci")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert [path.name for path in file.parent.iterdir()] == ["keys"], "nothing is left lying about"
    assert not fragments(file.read_text(), KEY, "other-key")


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("# kept\n")
    link.symlink_to(real)
    key_file.add(link, "ci", KEY)
    assert link.is_symlink() and key_file.read(real)[0].holder.label == "ci"


def test_a_broken_file_is_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    for content in (f"fine-key-000\na b {KEY}\n".encode(), b"\xff\xfe"):
        file.write_bytes(content)
        for change in (lambda: key_file.add(file, "ci", "key"), lambda: key_file.remove(file, "file1")):
            with pytest.raises(ConfigError) as caught:
                change()
            assert not fragments(str(caught.value), KEY, "fine-key-000")
        assert file.read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["keys"]


def test_unwritable_key_file_raises_key_file_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KeyFileError, match="file/keys .*Not a directory"):
        key_file.add(tmp_path / "file" / "keys", "ci", KEY)
    (tmp_path / "folder").mkdir()
    with pytest.raises(KeyFileError, match="folder .*Is a directory"):
        key_file.add(tmp_path / "folder", "ci", KEY)
    with pytest.raises(KeyFileError, match="absent.*--keys-file"):
        key_file.remove(tmp_path / "absent", "ci")


@pytest.mark.parametrize(
    ("label", "hint"), [("cii", "Did you mean ci?"), ("zzzz", "are ci, trainer."), (KEY, "labels in this file are")]
)
def test_unknown_label_error_does_not_repeat_the_label(tmp_path: Path, label: str, hint: str) -> None:
    file = tmp_path / "keys"
    file.write_text("ci a-key-000\ntrainer a-key-111\n")
    with pytest.raises(KeyFileError) as caught:
        key_file.remove(file, label)
    assert hint in str(caught.value) and label not in str(caught.value)


@pytest.mark.process
def test_two_processes_minting_at_the_same_time_lose_no_key(tmp_path: Path) -> None:
    file = tmp_path / "made" / "keys"
    program = (
        "import sys\nfrom pathlib import Path\nfrom taskapp_kit.serve import key_file\n"
        "print('ready', flush=True)\nsys.stdin.readline()\n"
        "for n in range(20):\n"
        "    key_file.add(Path(sys.argv[1]), f'{sys.argv[2]}-{n}', f'key-{sys.argv[2]}-{n}')\n"
    )
    both = [child(program, str(file), name) for name in ("a", "b")]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in both:
        _, told = process.communicate(timeout=60)
        assert process.returncode == 0, told
    labels = [line.holder.label for line in key_file.read(file)]
    assert sorted(labels) == sorted(f"{name}-{n}" for name in "ab" for n in range(20))
    assert [path.name for path in file.parent.iterdir()] == ["keys"]
