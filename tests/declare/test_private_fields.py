"""Rows without their private fields: what prompts, descriptions and author loops are given."""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from pathlib import Path
from typing import Annotated, Any, Generic, NamedTuple, NewType, NotRequired, TypeVar

import pydantic.dataclasses
import pytest
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, computed_field
from typing_extensions import TypeAliasType, TypedDict

from taskapp_kit import DeclarationError, Private, TaskApp
from taskapp_kit.declare.tasks import TaskSource
from tests.rollouts import app_from, play

SECRET = "sentinel-secret"
T = TypeVar("T")


class Inner(BaseModel):
    shown: str = "s"
    hidden: Private[str] = SECRET


class Other(BaseModel):
    code: Private[str] = SECRET


class Model(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True, frozen=True, extra="allow")
    question: str = Field("q", serialization_alias="Q")
    answer: Private[str] = Field(SECRET, serialization_alias="written", validation_alias="given")
    maybe: Private[str] | None = SECRET
    inner: Inner | Other = Inner()
    several: list[Inner | None] = [Inner(), None]
    named: dict[str, Inner] = {"a": Inner()}
    pair: tuple[int, Inner] = (1, Inner())
    _computed: str = PrivateAttr("")

    def model_post_init(self, context: Any, /) -> None:
        self._computed = self.answer

    def asked(self) -> str:
        return f"{self.question}?"

    def leak(self) -> str:
        return self.answer


@dataclasses.dataclass(frozen=True, slots=True)
class Plain:
    question: str = "q"
    answer: Private[str] = SECRET
    inner: Inner = dataclasses.field(default_factory=Inner)


@dataclasses.dataclass
class Written:
    question: str = "q"
    answer: Private[str] = SECRET

    def __repr__(self) -> str:
        return f"<{self.question}>"


@pydantic.dataclasses.dataclass
class Checked:
    question: str = "q"
    answer: Private[str] = SECRET


class Keyed(TypedDict):
    question: str
    answer: NotRequired[Private[str]]


class Holder(BaseModel):
    one: Keyed = {"question": "q", "answer": SECRET}
    many: list[Keyed | None] = [{"question": "q", "answer": SECRET}]


class Box(BaseModel, Generic[T]):
    value: T


class Boxes(BaseModel):
    closed: Box[Private[str]] = Box[Private[str]](value=SECRET)
    open: Box[Inner] = Box[Inner](value=Inner())


class Base(BaseModel):
    question: str = "q"


class Derived(Base):
    answer: Private[str] = SECRET


class Pair(NamedTuple):
    question: str
    answer: Private[str]


Answer = TypeAliasType("Answer", Private[str])
Answers = TypeAliasType("Answers", list[Answer])
Filled = TypeAliasType("Filled", dict[str, T], type_params=(T,))
Key = NewType("Key", Private[str])  # type: ignore[valid-newtype]  # a NewType of what Annotated makes is one to pydantic


class Aliased(BaseModel):
    question: str = "q"
    one: Answer = SECRET
    several: Answers = [SECRET]
    filled: Filled[Private[str]] = {"k": SECRET}
    key: Key = SECRET
    queue: deque[Inner] = deque([Inner()])


class AliasedKeys(TypedDict):
    question: str
    answer: Answer


AliasedRow = TypeAliasType("AliasedRow", AliasedKeys)


@dataclasses.dataclass
class OpenPlain(Generic[T]):
    value: T
    question: str = "q"


@dataclasses.dataclass
class ClosedPlain(OpenPlain[Private[str]]):
    pass


@dataclasses.dataclass
class HoldsPlain:
    open: OpenPlain[str]
    closed: OpenPlain[Private[str]]


class OpenKeys(TypedDict, Generic[T]):
    question: str
    value: T


class ClosedKeys(OpenKeys[Private[str]]):
    pass


INNER = {"shown": "s"}
OPEN = {"value": SECRET, "question": "q"}
SHOWN: list[tuple[Any, Any, Any]] = [
    (Model, Model(), {"Q": "q", "inner": INNER, "several": [INNER, None], "named": {"a": INNER}, "pair": [1, INNER]}),
    (Model | Base, Model(several=[], note="n"), {"Q": "q", "inner": INNER, "several": [], "named": {"a": INNER},
                                                 "pair": [1, INNER], "note": "n"}),
    (Plain, Plain(), {"question": "q", "inner": INNER}),
    (Written, Written(), {"question": "q"}),
    (Checked, Checked(), {"question": "q"}),
    (Keyed, {"question": "q", "answer": SECRET}, {"question": "q"}),
    (Holder, Holder(), {"one": {"question": "q"}, "many": [{"question": "q"}]}),
    (Boxes, Boxes(), {"closed": {}, "open": {"value": INNER}}),
    (Base, Derived(), {"question": "q"}),
    (Aliased, Aliased(), {"question": "q", "queue": [INNER]}),
    (AliasedRow, {"question": "q", "answer": SECRET}, {"question": "q"}),
    (OpenPlain[Private[str]], OPEN, {"question": "q"}),
    (OpenPlain[Private[str] | None], OPEN, {"question": "q"}),
    (ClosedPlain, OPEN, {"question": "q"}),
    (HoldsPlain, {"open": {"value": "o"}, "closed": OPEN}, {"open": {"value": "o", "question": "q"}}),
    (OpenKeys[Private[str]], OPEN, {"question": "q"}),
    (ClosedKeys, OPEN, {"question": "q"}),
    (None, Derived(), {"question": "q"}),
    (None, {"rows": [Inner()]}, {"rows": [INNER]}),
]  # fmt: skip


def source(kind: Any, row: Any) -> TaskSource:
    return TaskSource("app", "app.py:3", kind, {"train": [row]}, Path.cwd())


@pytest.mark.filterwarnings("ignore::UserWarning")  # of pydantic, when a model in a union lacks a field
@pytest.mark.parametrize(("kind", "row", "shown"), SHOWN)
def test_row_without_private_fields_prints_remaining_fields(kind: Any, row: Any, shown: Any) -> None:
    rows = source(kind, row)
    assert rows.check() == []
    (row,) = rows.rows("train")
    view = rows.without_private(row)
    assert rows.public(row) == shown
    assert isinstance(view, type(row))
    said = [repr(view), str(view), json.dumps(rows.public(row)), repr(getattr(view, "__dict__", ""))]
    if isinstance(view, BaseModel):
        said += [repr(view.model_dump()), view.model_dump_json(), repr(dict(view)), repr(view.model_copy())]
    if dataclasses.is_dataclass(view) and not isinstance(view, type):
        said += [repr(dataclasses.asdict(view)), repr(dataclasses.astuple(view))]
    assert all(SECRET not in text for text in said)


READS: list[tuple[Any, Any, str]] = [
    (Model(), lambda row: row.answer, "answer"),
    (Model(), lambda row: row.leak(), "answer"),
    (Model(), lambda row: row._computed, "_computed"),
    (Model(), lambda row: getattr(row, "maybe", None), "maybe"),
    (Model(), lambda row: row.several[0].hidden, "hidden"),
    (Model(), lambda row: row.pair[1].hidden, "hidden"),
    (Plain(), lambda row: row.answer, "answer"),
    (Plain(), lambda row: hasattr(row.inner, "hidden"), "hidden"),
    (Checked(), lambda row: row.answer, "answer"),
    (Holder(), lambda row: row.one["answer"], "answer"),
    (Holder(), lambda row: row.many[0].get("answer"), "answer"),
]


@pytest.mark.parametrize(("row", "read", "field"), READS)
def test_reading_a_private_field_raises_with_field_and_line(row: Any, read: Any, field: str) -> None:
    view = source(type(row), row).without_private(row)
    with pytest.raises(DeclarationError) as caught:
        read(view)
    (problem,) = caught.value.problems
    assert repr(field) in problem.found
    assert Path(__file__).name in problem.place
    assert SECRET not in str(caught.value)
    assert not {"answer", "maybe", "hidden"} & set(problem.expected.removeprefix("one of ").split(", "))


def test_a_row_without_private_fields_is_the_row_itself() -> None:
    row = Base()
    assert source(Base, row).without_private(row) is row
    assert Model().asked() == source(Model, Model()).without_private(Model()).asked()


class Computes(BaseModel):
    answer: Private[str] = SECRET

    @computed_field  # type: ignore[prop-decorator]
    @property
    def letters(self) -> int:
        return len(self.answer)


@pytest.mark.parametrize(("kind", "row"), [(Computes, Computes()), (Annotated[Pair, 0], Pair("q", SECRET))])
def test_a_row_that_cannot_be_shown_is_reported_at_freeze(kind: Any, row: Any) -> None:
    (problem,) = source(kind, row).check()
    assert "private" in problem.found
    assert SECRET not in str(problem)


APP = f"""
app = TaskApp("a")
class Row(BaseModel):
    question: str
    answer: Private[str] = "{SECRET}"
    def shown(self):
        return self.question + self.answer[:0]
rows = [Row(question="a"), Row(question="b")]
app.tasks("t", row=Row, train=rows, prompt=PROMPT)
"""


@pytest.mark.parametrize(
    ("prompt", "line"),
    [
        ("lambda row: row.answer if row.question == 'b' else row.question", 14),
        ("lambda row: row.shown()", 12),
        ("lambda row: '{0.answer}'.format(row)", 14),
    ],
)
def test_a_prompt_that_reads_a_private_field_is_reported_at_freeze(tmp_path: Path, prompt: str, line: int) -> None:
    app = app_from(tmp_path, APP.replace("PROMPT", prompt))
    with pytest.raises(DeclarationError) as caught:
        app.freeze()
    (problem,) = caught.value.problems
    assert problem.place == f"{tmp_path}/app.py:{line}"
    assert "'answer'" in problem.found
    assert ("row 1" if "'b'" in prompt else "row 0") in problem.found


@pytest.mark.parametrize("prompt", ["str", "repr", "lambda row: row.model_dump_json()", "lambda row: f'{row!r}'"])
def test_a_prompt_made_of_the_whole_row_has_nothing_private(tmp_path: Path, prompt: str) -> None:
    initial = play(app_from(tmp_path, APP.replace("PROMPT", prompt)), "constant", action="x", seed=1).trajectory.initial
    assert "b" in str(initial)
    assert SECRET not in str(initial)
    assert "answer" not in str(initial)


def test_a_prompt_that_fits_only_some_rows_is_reported_at_freeze() -> None:
    app = TaskApp("a")
    app.tasks("t", prompt=lambda row: row["text"], train=[{"text": "a"}], test=[{"text": "b"}, {"words": "c"}])
    with pytest.raises(DeclarationError) as caught:
        app.freeze()
    (problem,) = caught.value.problems
    assert "row 1 of split 'test'" in problem.found


def test_the_fields_that_a_prompt_may_name_are_the_public_ones(tmp_path: Path) -> None:
    app = app_from(tmp_path, APP.replace("PROMPT", '"{answr}"'))
    with pytest.raises(DeclarationError) as caught:
        app.freeze()
    (problem,) = caught.value.problems
    assert problem.expected == "one of question"
    assert "answer" not in str(problem)
