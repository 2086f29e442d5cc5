from __future__ import annotations

import hashlib
import json
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from taskapp_kit.config import Settings
from taskapp_kit.serve import key_file
from taskapp_kit.serve.auth import Keys
from taskapp_kit.serve.key_file import KeyHolder
from tests.cli.conftest import ADDER, Run, assert_no_key, clean_environ, serving
from tests.waiting import until

PLAIN = "Pl4in-text-in-the-file-0192"


def test_mint_prints_the_key_once_and_keeps_only_its_digest(run: Run, tmp_path: Path) -> None:
    done = run("keys", "mint", "ci", "--max-in-flight", "8", status=0)
    key = done.stdout.removesuffix("\n")
    assert len(key) == 43 and key.split() == [key]
    file = tmp_path / ".taskapp" / "keys"
    assert file.read_text() == f"ci sha256:{hashlib.sha256(key.encode()).hexdigest()} max_in_flight=8\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert_no_key(file.read_text() + done.stderr, key)
    assert "Stored the SHA-256 of the key in .taskapp/keys under the label ci" in done.stderr
    assert "--keys-file .taskapp/keys" in done.stderr and "Warning" not in done.stderr
    assert Keys(file=file).match([key.encode()]) == KeyHolder("ci", 8)


@pytest.mark.process
def test_a_shell_takes_the_key_as_it_is(tmp_path: Path) -> None:
    script = f"KEY=$({shlex.quote(sys.executable)} -m taskapp_kit keys mint ci 2> told.txt); printf '<%s>' \"$KEY\""
    done = subprocess.run(
        ["bash", "-ec", script], cwd=tmp_path, env=clean_environ(), capture_output=True, text=True, check=True
    )
    key = done.stdout[1:-1]
    assert done.stderr == "" and done.stdout == f"<{key}>"
    assert Keys(file=tmp_path / ".taskapp" / "keys").match([key.encode()]) == KeyHolder("ci")
    assert_no_key((tmp_path / "told.txt").read_text(), key)


def test_mint_as_json(run: Run, tmp_path: Path) -> None:
    told = json.loads(run("keys", "mint", "ci", "--json", "--keys-file", "k").stdout)
    assert told == {"label": "ci", "key": told["key"], "max_in_flight": None, "admin": False, "keys_file": "k"}
    assert Keys(file=tmp_path / "k").match([told["key"].encode()]) == KeyHolder("ci")


def test_a_label_that_is_there_needs_another(run: Run, tmp_path: Path) -> None:
    first = run("keys", "mint", "ci", "--max-in-flight", "2").stdout.strip()
    refused = run("keys", "mint", "ci", status=1)
    assert refused.stdout == ""
    assert ".taskapp/keys already has a key with the label ci" in refused.stderr and "--another" in refused.stderr
    second = run("keys", "mint", "ci", "--another").stdout.strip()
    keys = Keys(file=tmp_path / ".taskapp" / "keys")
    assert keys.match([first.encode()]) == keys.match([second.encode()]) == KeyHolder("ci", 2)
    other = run("keys", "mint", "ci", "--another", "--max-in-flight", "3", status=1)
    assert "quota (2)" in other.stderr


@pytest.mark.parametrize(
    "label", ["", "a b", "-x", ".x", "é", "x" * 65, "a/b", "environment", "file1", "a,b", PLAIN + "!"]
)
def test_what_is_no_label_is_a_mistake_of_the_command_line(run: Run, tmp_path: Path, label: str) -> None:
    told = run("keys", "mint", "--", label, status=2)
    assert told.stdout == ""
    assert "1 to 64" in told.stderr.replace("\n", " ")
    assert_no_key(told.stderr, PLAIN)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", ["0", "-1", "1.5", "many", "1000001"])
def test_what_is_no_quota_is_a_mistake_too(run: Run, tmp_path: Path, number: str) -> None:
    assert run("keys", "mint", "ci", "--max-in-flight", number).exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_list_tells_labels_and_never_a_key(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# who\nold {PLAIN}\nBare-key-of-nobody-77\nmixed {PLAIN}2 max_in_flight=3\n")
    file.chmod(0o600)
    key = run("keys", "mint", "mixed", "--another", "--keys-file", "keys").stdout.strip()
    run("keys", "mint", "clean", "--admin", "--keys-file", "keys")
    shown = run("keys", "list", "--keys-file", "keys", status=0)
    assert shown.stdout.splitlines()[0] == "Keys in keys:"
    assert [line.split() for line in shown.stdout.splitlines()[2:]] == [
        ["old", "plain", "text", "(!)", "any", "no", "1"],
        ["file3", "plain", "text", "(!)", "any", "no", "1"],
        ["mixed", "mixed", "(!)", "3", "no", "2"],
        ["clean", "hashed", "any", "yes", "1"],
    ]
    as_json = run("keys", "list", "--keys-file", "keys", "--json")
    told = json.loads(as_json.stdout)
    assert told["keys_file"] == "keys"
    assert told["keys"][2] == {"label": "mixed", "kind": "mixed", "max_in_flight": 3, "admin": False, "keys": 2}
    everything = shown.output + as_json.output
    assert_no_key(everything, PLAIN, "Bare-key-of-nobody-77", key, hashlib.sha256(key.encode()).hexdigest())
    digest = "sha256:" + hashlib.sha256(PLAIN.encode()).hexdigest()
    file.write_text(file.read_text().replace(f"old {PLAIN}\n", f"old {digest}\n"))  # as it says
    assert Keys(file=file).match([PLAIN.encode()]) == KeyHolder("old")


def test_an_empty_file_says_what_to_do(run: Run, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# nobody yet\n")
    shown = run("keys", "list", "--keys-file", "keys", status=0)
    assert "keys contains no keys. `taskapp keys mint LABEL` creates a key" in shown.stdout


def test_revoke_removes_a_label_and_nothing_else(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# who\nci {PLAIN}\n\n  # why\nother another-key-0\nci {PLAIN}2\n")
    done = run("keys", "revoke", "ci", "--keys-file", "keys", status=0)
    assert done.stdout == "Revoked 2 keys of ci in keys; 1 key left.\n"
    assert file.read_text() == "# who\n\n  # why\nother another-key-0\n"
    last = run("keys", "revoke", "other", "--keys-file", "keys", "--json")
    assert json.loads(last.stdout) == {"label": "other", "revoked": 1, "left": 0, "keys_file": "keys"}
    assert "503" in last.stderr
    assert_no_key(done.output + last.output, PLAIN)


def test_a_key_is_rotated(run: Run, tmp_path: Path) -> None:
    old, new = run("keys", "mint", "ci").stdout.strip(), run("keys", "mint", "ci", "--another").stdout.strip()
    done = run("keys", "revoke", "ci", "--keep-newest")
    assert done.stdout == "Revoked 1 key of ci in .taskapp/keys; 1 key left.\n"
    keys = Keys(file=tmp_path / ".taskapp" / "keys")
    assert keys.match([new.encode()]) == KeyHolder("ci") and keys.match([old.encode()]) is None
    again = run("keys", "revoke", "ci", "--keep-newest", status=1)
    assert "no older key can be revoked" in again.stderr


def test_a_label_that_is_not_there(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"trainer {PLAIN}\n")
    near = run("keys", "revoke", "trianer", "--keys-file", "keys", status=1)
    assert "Did you mean trainer?" in near.stderr and near.stdout == ""
    pasted = run("keys", "revoke", PLAIN, "--keys-file", "keys", status=1)
    assert_no_key(pasted.output, PLAIN)
    assert file.read_text() == f"trainer {PLAIN}\n"


@pytest.mark.parametrize("args", [["list"], ["revoke", "ci"]])
def test_a_file_that_is_missing_is_told(run: Run, tmp_path: Path, args: list[str]) -> None:
    told = run("keys", *args, status=1)
    assert told.stdout == ""
    assert "taskapp keys mint LABEL" in told.stderr and told.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("args", [["list"], ["revoke", "ci"], ["mint", "ci"]])
def test_a_broken_line_is_told_with_its_place(run: Run, tmp_path: Path, args: list[str]) -> None:
    (tmp_path / "keys").write_text(f"fine {PLAIN}\none two {PLAIN}\n")
    told = run("keys", *args, "--keys-file", "keys", status=2)
    assert told.stdout == ""
    assert "keys:2 " in told.stderr and "KEY, LABEL KEY" in told.stderr
    assert_no_key(told.stderr, PLAIN)
    assert (tmp_path / "keys").read_text() == f"fine {PLAIN}\none two {PLAIN}\n"


def test_others_who_can_read_the_file_are_told_of(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("")
    file.chmod(0o644)
    for args in (["mint", "ci"], ["list"], ["revoke", "ci"]):
        told = run("keys", *args, "--keys-file", "keys", status=0)
        assert "Warning: other users" in told.stderr and "chmod 600 keys" in told.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_the_file_is_found_as_every_setting_is(run: Run, tmp_path: Path) -> None:
    (tmp_path / "taskapp.toml").write_text('keys_file = "from-toml"\n')
    run("keys", "mint", "a")
    (tmp_path / ".env").write_text("TASKAPP_KEYS_FILE=from-env-file\n")
    run("keys", "mint", "b")
    run("keys", "mint", "c", TASKAPP_KEYS_FILE="from-environment")
    run("keys", "mint", "d", "--keys-file", "from-flag", TASKAPP_KEYS_FILE="from-environment")
    found = {path.name: [line.holder.label for line in key_file.read(path)] for path in tmp_path.glob("from-*")}
    assert found == {"from-toml": ["a"], "from-env-file": ["b"], "from-environment": ["c"], "from-flag": ["d"]}


@pytest.mark.ci
@pytest.mark.process
def test_a_running_server_notices_mint_and_revoke(run: Run, tmp_path: Path) -> None:
    first = run("keys", "mint", "first").stdout.strip()
    file = str(tmp_path / ".taskapp" / "keys")
    with serving(tmp_path, ADDER, "--store", "none", "--keys-file", file) as served:

        def status(key: str) -> int:
            return httpx.get(f"{served.url}/health", headers={"X-API-Key": key}).status_code

        assert status(first) == 200
        second = run("keys", "mint", "second").stdout.strip()
        until(lambda: status(second) == 200)
        run("keys", "revoke", "first")
        until(lambda: status(first) == 401)
        assert status(second) == 200
    assert "key file read again labels=2" in served.err
    assert_no_key(served.out + served.err, first, second)
    assert Keys.of(Settings(keys_file=Path(file))).configured()
