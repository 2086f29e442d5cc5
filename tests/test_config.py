"""Settings: precedence, sources, what is refused, and that no secret shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from taskapp_kit.config import MASK, SETTINGS, Settings, child_environment, export, from_environment, load
from taskapp_kit.errors import ConfigError

SECRET = "sentinel-Key-41d9aa"


def sources(settings: Settings) -> dict[str, str]:
    return {name: source for name, _, source in settings.shown()}


def test_the_nearest_layer_wins_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "taskapp.toml").write_text("port = 1001\nmax_concurrent = 11\n")
    (tmp_path / ".env").write_text("TASKAPP_PORT=1002\nTASKAPP_MAX_CONCURRENT=12\n")
    one, two = tmp_path / "one.env", tmp_path / "two.env"
    one.write_text("TASKAPP_PORT=1003\n")
    two.write_text("TASKAPP_PORT=1004\n")
    layers: list[tuple[dict[str, object], dict[str, str], list[Path], int, str]] = [
        ({}, {}, [], 1002, ".env, TASKAPP_PORT"),
        ({}, {}, [one], 1003, f"--env-file {one}, TASKAPP_PORT"),
        ({}, {}, [one, two], 1004, f"--env-file {two}, TASKAPP_PORT"),
        ({}, {}, [two, one], 1003, f"--env-file {one}, TASKAPP_PORT"),
        ({}, {"TASKAPP_PORT": "1005"}, [one, two], 1005, "process environment, TASKAPP_PORT"),
        ({"port": 1006}, {"TASKAPP_PORT": "1005"}, [one], 1006, "flag --port"),
    ]
    for flags, environ, files, port, source in layers:
        settings = load(flags, env_files=files, folder=tmp_path, environ=environ)
        assert (settings.port, sources(settings)["port"]) == (port, source)
    (tmp_path / ".env").unlink()
    settings = load(folder=tmp_path, environ={})
    assert (settings.port, sources(settings)["port"]) == (1001, "taskapp.toml, port")
    assert sources(settings)["host"] == "default"


def test_without_anything_the_defaults_hold(tmp_path: Path) -> None:
    settings = load(folder=tmp_path, environ={})
    assert settings == Settings() == from_environment({})
    assert (settings.max_concurrent, settings.max_time_seconds, settings.max_body_bytes) == (1024, 3600.0, 4 * 2**20)
    assert not settings.debug_env and settings.cors_origins == () and settings.store is None


def test_from_environment_reads_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("TASKAPP_PORT=1002\n")
    (tmp_path / "taskapp.toml").write_text("port = 1001\n")
    monkeypatch.chdir(tmp_path)
    assert from_environment({}).port == 8001
    assert load(environ={}).port == 1002


def test_aliases_of_models_are_pairs(tmp_path: Path) -> None:
    settings = load(folder=tmp_path, environ={"TASKAPP_MODEL_ALIASES": "Qwen/Qwen3-0.6B=tiny, a=./b=c"})
    assert settings.aliases == {"Qwen/Qwen3-0.6B": "tiny", "a": "./b=c"}


def test_keys_are_read_and_never_shown(tmp_path: Path) -> None:
    environ = {
        "ENVIRONMENT_API_KEY": f" {SECRET} ",
        "ENVIRONMENT_API_KEY_ALIASES": f"{SECRET}-b, {SECRET}-c,,",
        "DEV_ENVIRONMENT_API_KEY": f"{SECRET}-d",
        "TASKAPP_STORE": f"postgresql://user:{SECRET}@db.example/runs?sslpassword={SECRET}",
        "OPENAI_API_KEY": f"{SECRET}-e",
    }
    settings = load(folder=tmp_path, environ=environ)
    assert settings.environment_api_key == SECRET
    assert settings.environment_api_key_aliases == (f"{SECRET}-b", f"{SECRET}-c")
    assert settings.dev_environment_api_key == f"{SECRET}-d"
    assert settings.variable("OPENAI_API_KEY") == f"{SECRET}-e"
    assert settings.variable("ABSENT") is None
    told = repr(settings) + str(settings.shown())
    assert not [SECRET[i : i + 4] for i in range(len(SECRET) - 3) if SECRET[i : i + 4] in told]
    assert {text for name, text, _ in settings.shown() if name.endswith(("_key", "_key_aliases"))} == {MASK}
    longer = Settings(environment_api_key=SECRET * 3).shown()
    assert longer[0][1] == MASK, "the length does not show either"
    assert (
        "store",
        "postgresql://db.example/runs (rest hidden)",
        "process environment, TASKAPP_STORE",
    ) in settings.shown()


@pytest.mark.parametrize(
    ("variable", "values"),
    [
        ("TASKAPP_PORT", ("http", "70000", "-1", "٣")),
        ("TASKAPP_MAX_CONCURRENT", ("0", "1.5")),
        ("TASKAPP_MAX_TIME_SECONDS", ("nan", "inf", "0", "long")),
        ("TASKAPP_DEBUG_ENV", ("maybe",)),
        ("TASKAPP_MAX_BODY_BYTES", ("10",)),
        ("TASKAPP_CORS_ORIGINS", ("example.org", "https://user@example.org", "https://example.org/path")),
        ("ENVIRONMENT_API_KEY", (f"{SECRET},other", SECRET * 40, f"{SECRET}\nother")),
        ("ENVIRONMENT_API_KEY_ALIASES", (f"fine,{SECRET * 40}",)),
        ("TASKAPP_MODEL_ALIASES", ("tiny", "=tiny", "a=")),
        ("TASKAPP_STORE_KEEP", ("0", "0d", "d", "-3", "3h", "1.5d", "many", "٣")),
    ],
)
def test_an_unusable_value_names_setting_and_source(tmp_path: Path, variable: str, values: tuple[str, ...]) -> None:
    for value in values:
        with pytest.raises(ConfigError) as caught:
            load(folder=tmp_path, environ={variable: value})
        sentence = str(caught.value)
        assert variable in sentence and "process environment" in sentence and SECRET not in sentence


def test_the_hint_names_a_flag_where_there_is_one_and_for_a_key_the_variable_only(tmp_path: Path) -> None:
    for setting in SETTINGS:
        wrong = "\x01," if setting.secret else "no such value"
        try:
            load(folder=tmp_path, environ={setting.variable: wrong})
        except ConfigError as error:
            flag = "--" + setting.name.replace("_", "-")
            assert setting.variable in error.hint
            assert (flag in str(error)) is not setting.secret, setting.name
        else:
            assert not setting.secret, setting.name


@pytest.mark.parametrize(("text", "value"), [("1", True), ("TRUE", True), ("on", True), ("0", False), ("No", False)])
def test_switches(text: str, value: bool) -> None:
    assert from_environment({"TASKAPP_DEBUG_ENV": text}).debug_env is value


def test_lists_of_origins() -> None:
    settings = from_environment({"TASKAPP_CORS_ORIGINS": "https://a.example/, http://localhost:3000"})
    assert settings.cors_origins == ("https://a.example", "http://localhost:3000")


def test_dot_env_can_be_left_out_and_models_too(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TASKAPP_PORT=1002\nTASKAPP_JUDGE_URL=http://127.0.0.1:1/v1\n")
    environ = {"TASKAPP_BIG_JUDGE_URL": "http://127.0.0.1:2/v1", "OPENAI_API_KEY": "x", "TASK_APP_URL": "y"}
    settings = load(folder=tmp_path, environ=environ, dot_env=False)
    assert (settings.port, settings.variables) == (8001, environ)
    every = load(folder=tmp_path, environ=environ)
    assert every.without_models().variables.keys() == {"TASKAPP_PORT", "OPENAI_API_KEY", "TASK_APP_URL"}
    assert every.variable("TASKAPP_JUDGE_URL") and every.without_models().port == every.port == 1002


def test_env_files_are_read_without_interpolation(tmp_path: Path) -> None:
    file = tmp_path / "x.env"
    file.write_bytes(
        b"\xef\xbb\xbf# comment\nexport A=plain\nB='single $A'\nC=\"double ${A}\"\nD=$A\nE=\nF = spaced # note\nG\n"
    )
    settings = load(env_files=[file], folder=tmp_path, environ={"HOME": "/h"})
    found = {name: settings.variables.get(name) for name in "ABCDEFG"}
    assert found == {
        "A": "plain", "B": "single $A", "C": "double ${A}", "D": "$A", "E": "", "F": "spaced", "G": None,
    }  # fmt: skip
    assert settings.variables["HOME"] == "/h"


@pytest.mark.parametrize(("content", "line"), [(b"A=1\nthis is no setting\n", ":2"), (b"A='open\nB=2\n", ":1"), (b"A=\xff\n", "")])  # fmt: skip
def test_a_broken_env_file_names_its_line(tmp_path: Path, content: bytes, line: str) -> None:
    file = tmp_path / "x.env"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{file.name}{line}"):
        load(env_files=[file], folder=tmp_path, environ={})


def test_a_missing_env_file_is_an_error_but_a_missing_dot_env_is_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        load(env_files=[tmp_path / "absent.env"], folder=tmp_path, environ={})
    assert load(folder=tmp_path, environ={}).port == 8001


def test_a_broken_config_file_is_refused_and_shows_no_key(tmp_path: Path) -> None:
    wrong = (
        "prot = 1",
        "port = ",
        f'environment_api_key = "{SECRET}"',
        'port = "many"',
        "port = true",
        "debug_env = 3",
        "store = 3",
    )
    for content in wrong:
        (tmp_path / "taskapp.toml").write_text(content)
        with pytest.raises(ConfigError, match=r"taskapp\.toml") as caught:
            load(folder=tmp_path, environ={})
        assert SECRET not in str(caught.value)


def test_a_config_file_speaks_toml(tmp_path: Path) -> None:
    (tmp_path / "taskapp.toml").write_text(
        'port = 9000\ndebug_env = true\ncors_origins = ["https://a.example"]\nmax_time_seconds = 5\nkeys_file = "k"\n'
    )
    settings = load(folder=tmp_path, environ={})
    assert (settings.port, settings.debug_env, settings.cors_origins) == (9000, True, ("https://a.example",))
    assert (settings.max_time_seconds, settings.keys_file) == (5.0, Path("k"))


def test_unknown_flag_suggests_the_nearest_setting() -> None:
    with pytest.raises(ConfigError, match="max_concurent.*max_concurrent"):
        load({"max_concurent": 3}, environ={})


def test_export_adds_only_missing_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.env"
    file.write_text("TASKAPP_TEST_NEW=new\nTASKAPP_TEST_OLD=other\n")
    monkeypatch.setenv("TASKAPP_TEST_OLD", "old")
    monkeypatch.delenv("TASKAPP_TEST_NEW", raising=False)
    settings = load(env_files=[file], folder=tmp_path)
    try:
        assert export(settings) == ["TASKAPP_TEST_NEW"]
        assert (os.environ["TASKAPP_TEST_NEW"], os.environ["TASKAPP_TEST_OLD"]) == ("new", "old")
    finally:
        os.environ.pop("TASKAPP_TEST_NEW", None)


def test_every_setting_has_its_own_field_and_variable() -> None:
    assert len({setting.variable for setting in SETTINGS}) == len(SETTINGS)
    assert [name for name, _, _ in Settings().shown()] == [setting.name for setting in SETTINGS]


@pytest.mark.process
def test_importing_config_loads_no_heavy_module() -> None:
    code = "import sys, taskapp_kit.config\nprint(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pydantic", "dotenv", "fastapi", "tomllib", "difflib", "httpx"} & set(loaded)


def test_a_child_gets_the_environment_without_keys_and_store() -> None:
    environ = {
        "PATH": "/bin",
        "ENVIRONMENT_API_KEY": "k",
        "ENVIRONMENT_API_KEY_ALIASES": "k",
        "DEV_ENVIRONMENT_API_KEY": "k",
        "TASKAPP_KEYS_FILE": "f",
        "TASKAPP_STORE": "postgresql://u:p@h/d",
        "OPENAI_API_KEY": "the author's own",
    }
    assert child_environment(environ) == {"PATH": "/bin", "OPENAI_API_KEY": "the author's own"}


def test_an_empty_variable_of_the_process_hides_no_env_file(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("SYNTH_API_KEY=from-the-file\nOTHER=kept\n")
    settings = load({}, folder=tmp_path, environ={"SYNTH_API_KEY": "", "OTHER": "from-the-process"})
    assert settings.variable("SYNTH_API_KEY") == "from-the-file"
    assert settings.variable("OTHER") == "from-the-process"
