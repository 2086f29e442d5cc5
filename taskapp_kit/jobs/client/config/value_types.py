"""The types of config values. Each has a check for pydantic, and a description for messages and documentation pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

MAX_INTEGER = 2**63 - 1
"""The largest integer in a config."""
AGENT_WORDS = ("agent", "policy", "model")
ENV_WORDS = ("env", "environment", "step")


@dataclass(frozen=True, slots=True)
class Expected:
    """A description of valid values.

    Attributes:
        words: The description.
        element: The description of each element of a list.
        suggested: Values that every trainer accepts. Other values cause a warning.
    """

    words: str
    element: str = "a string in quotes"
    suggested: tuple[str, ...] = ()


def is_address(text: str, *, bare: bool = True) -> bool:
    """Return whether a string is an http or https address without a user name.

    If `bare` is true, an address with a query or a fragment is invalid, and a blank string is valid.
    """
    if bare and not text.strip():
        return True
    if text != text.strip() or not text.isprintable() or " " in text:
        return False
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        return False
    return not bare or not (parts.query or parts.fragment)


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("blank")
    return text


def _base_address(text: str) -> str:
    if not is_address(text):
        raise ValueError("no address")
    return text


def _full_address(text: str) -> str:
    if not is_address(text, bare=False):
        raise ValueError("no address")
    return text


def _op(item: Any) -> Any:
    word = item.get("type") if isinstance(item, dict) else item
    if not isinstance(word, str) or word not in AGENT_WORDS + ENV_WORDS:
        raise ValueError("no op")
    return item


def _in_a_list(value: Any) -> Any:
    return [value] if isinstance(value, str) and value.strip() else value


Real = int | float
"""A number that stays as it was written: 1 does not become 1.0 in requests or stored rows."""
_ADDRESS = Expected('an address such as "http://127.0.0.1:8001"')
Text = Annotated[str, AfterValidator(_not_blank), Expected("a string in quotes")]
BaseAddress = Annotated[str, AfterValidator(_base_address), _ADDRESS]
FullAddress = Annotated[str, AfterValidator(_full_address), _ADDRESS]
Texts = Annotated[list[Text], Expected('a list of strings such as ["policy"]')]
TextOrTexts = Annotated[
    list[Text], BeforeValidator(_in_a_list), Expected("a string in quotes, or a list of strings", "a string in quotes")
]
Ops = Annotated[
    list[Annotated[Any, AfterValidator(_op)]],
    Expected('a list of "agent", "env" or tables', '"agent", "env", or a table with the type "agent" or "env"'),
]
Seeds = Annotated[
    list[Annotated[int, Field(ge=0, le=MAX_INTEGER)]],
    Expected("a list of integers of at least 0", "an integer of at least 0"),
]
Table = Annotated[dict[str, Any], Expected("a table")]
Switch = Annotated[bool, Expected("true or false")]
Whole = Annotated[int, Field(ge=0, le=MAX_INTEGER), Expected("an integer of at least 0")]
Count = Annotated[int, Field(ge=1, le=MAX_INTEGER), Expected("an integer of at least 1")]
CountOrAll = Annotated[int, Field(ge=-1, le=MAX_INTEGER), Expected("an integer of at least -1")]
Number = Annotated[Real, Expected("a number")]
Weight = Annotated[Real, Field(ge=0), Expected("a number of at least 0")]
Positive = Annotated[Real, Field(gt=0), Expected("a number above 0")]
Share = Annotated[Real, Field(ge=0, le=1), Expected("a number from 0 to 1")]
PositiveShare = Annotated[Real, Field(gt=0, le=1), Expected("a number above 0 and at most 1")]
Temperature = Annotated[Real, Field(ge=0, le=10), Expected("a number from 0 to 10")]
ClipRange = Annotated[
    list[Annotated[Real, Field(gt=0, le=1)]],
    Field(min_length=2, max_length=2),
    Expected("a list of two numbers above 0 and at most 1", "a number above 0 and at most 1"),
]
Levels = Annotated[
    list[Text | Annotated[int, Field(ge=0, le=MAX_INTEGER)]],
    Field(min_length=2),
    Expected("a list of at least two strings or integers", "a string in quotes, or an integer of at least 0"),
]
Names = Annotated[dict[str, Text], Expected('a table of strings such as { "Qwen/Qwen3-0.6B" = "tiny" }')]
TrainerMode = Literal["full", "lora", "qlora"]
JudgeProvider = Annotated[
    str, AfterValidator(_not_blank), Expected("a string in quotes", suggested=("openai", "groq", "gemini"))
]


class MixedEnvironment(BaseModel):
    """One of several environments of a job."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)
    weight: Annotated[int, Field(ge=1, le=1000)]
    env_name: Text | None = None
    task_url: BaseAddress | None = None
    task_app: Text | None = None
    env_config: dict[str, Any] | None = None
    seeds: Seeds | None = None
    eval_seeds: Seeds | None = None


Environments = Annotated[
    list[MixedEnvironment],
    Field(min_length=2, max_length=100),
    Expected(
        "a list of at least two tables with a weight",
        "a table with weight (an integer from 1 to 1000), and env_name, env_config, task_url, task_app, seeds, eval_seeds",
    ),
]
