"""Rows from files of other programs; nothing is fetched unless the Hub is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit import DeclarationError, TaskApp
from taskapp_kit.errors import ConfigError
from taskapp_kit.interop.dataset_rows import from_dataset
from taskapp_kit.testing import play

ROWS = [{"question": "one?\u2028", "answer": "1"}, {"question": 'two, "2"\n?', "answer": "2"}]


def write(folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow", reason="needs the parquet extra")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(ROWS), path)
    elif path.suffix == ".csv":
        quoted = ['"' + row[name].replace('"', '""') + '"' for row in ROWS for name in ("question", "answer")]
        path.write_text(f"question,answer\n{quoted[0]},{quoted[1]}\n{quoted[2]},{quoted[3]}\n")
    else:
        lines = [json.dumps(row, ensure_ascii=False) for row in ROWS]
        path.write_text("\n".join(lines) + "\n" if path.suffix == ".jsonl" else f"[{', '.join(lines)}]")
    return path


@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.csv", "x.parquet"])
def test_every_file_format_is_read(tmp_path: Path, name: str) -> None:
    assert from_dataset(write(tmp_path, name))() == ROWS


@pytest.mark.parametrize("name", ["x.jsonl", "x.json"])
def test_numbers_keep_their_digits_or_are_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(f'{{"answer": {3**99}}}')
    assert from_dataset(tmp_path / name)() == [{"answer": 3**99}]
    (tmp_path / name).write_text('{"answer": 3.14159265358979323846}')
    with pytest.raises(ConfigError, match="line 1" if name == "x.jsonl" else None):
        from_dataset(tmp_path / name)()


@pytest.mark.parametrize("name", ["test.jsonl", "test.csv", "data/test-00000-of-00001.parquet"])
def test_directory_has_splits(tmp_path: Path, name: str) -> None:
    write(tmp_path, name)
    assert from_dataset(tmp_path, split="test", limit=1)() == ROWS[:1]
    with pytest.raises(ConfigError, match="no split 'train'"):
        from_dataset(tmp_path)()


def test_columns_are_selected_and_renamed(tmp_path: Path) -> None:
    path = write(tmp_path, "x.jsonl")
    assert from_dataset(path, columns={"q": "question"})() == [{"q": row["question"]} for row in ROWS]
    with pytest.raises(ConfigError, match="no column 'prompt'. Its columns are question, answer"):
        from_dataset(path, columns={"q": "prompt"})()


def test_app_is_declared_with_rows(tmp_path: Path) -> None:
    app = TaskApp("from-data")
    app.tasks("from-data", prompt="{question}", train=from_dataset(write(tmp_path, "x.jsonl")))

    @app.rubric
    def correct(answer_text: str, task: dict[str, Any]) -> float:
        """Right."""
        return float(task["answer"] == answer_text)

    assert play(app, seed=1, policy="constant", action="2").reward == 1.0


def test_invalid_path_is_a_declaration_problem_with_its_location(tmp_path: Path) -> None:
    app = TaskApp("from-nothing")
    app.tasks("from-nothing", prompt="{question}", train=from_dataset("no/such.jsonl"))
    with pytest.raises(DeclarationError, match=r"test_dataset_rows\.py:\d+.*The file .*no/such\.jsonl does not exist"):
        app.freeze()


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("x.jsonl", "{", "cannot be read"),
        ("x.json", "[" * 100_000, "cannot be read"),
        ("x.jsonl", "3\n", "not JSON objects"),
        ("x.txt", "a", "format of x.txt"),
    ],
)
def test_unreadable_file_is_named(tmp_path: Path, name: str, text: str, found: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=found):
        from_dataset(tmp_path / name)()


@pytest.mark.parametrize("name", ["train.json", "train.csv", "data/train-0.parquet"])
def test_directory_with_links_to_the_outside_is_rejected(name: str, tmp_path: Path) -> None:
    outside = write(tmp_path, f"outside{Path(name).suffix}")
    (tmp_path / "set" / "data").mkdir(parents=True)
    (tmp_path / "set" / name).symlink_to(outside)
    with pytest.raises(ConfigError, match="leads out"):
        from_dataset(tmp_path / "set")()
