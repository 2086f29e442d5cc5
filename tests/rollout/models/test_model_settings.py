"""`models.toml`: names, addresses, keys' names, prices."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskapp_kit.config import Settings
from taskapp_kit.errors import ConfigError
from taskapp_kit.rollout.models.model_settings import ModelNames, NamedModel, Price

FILE = """
[small]
url = "https://api.together.xyz/v1"
model = "Qwen/Qwen3-8B"
key = "TOGETHER_API_KEY"
usd_per_million_input_tokens = 2.0
usd_per_million_cached_tokens = 0.5
usd_per_million_output_tokens = 8

[here]
url = "http://localhost:8000"
"""


def read(tmp_path: Path, text: str) -> ModelNames:
    file = tmp_path / "models.toml"
    file.write_text(text)
    return ModelNames.read(file)


def test_names(tmp_path: Path) -> None:
    names = read(tmp_path, FILE)
    price = Price(2.0, 0.5, 8.0)
    assert names.resolve("small") == NamedModel(
        "small", "https://api.together.xyz/v1", "Qwen/Qwen3-8B", "TOGETHER_API_KEY", price
    )
    assert names.resolve("here") == NamedModel("here", "http://localhost:8000", "here")
    assert names.price("https://api.together.xyz/v1/chat/completions?cid=1", "Qwen/Qwen3-8B") == price
    assert names.price("https://API.together.xyz/v1", "Qwen/Qwen3-8B") == price
    assert names.price("https://api.together.xyz/v1/chat/completions", "other") is None
    assert names.price("https://elsewhere.example/v1/chat/completions", "Qwen/Qwen3-8B") is None
    assert names.price("https://api.together.xyz/v1/chat/completions", None) is None
    assert names.price("http://localhost:8000/v1/chat/completions", "here") is None


def test_cost() -> None:
    price = Price(2.0, 0.5, 8.0)
    assert price.cost({"prompt_tokens": 1e6, "completion_tokens": 1e6}) == 10.0
    assert price.cost({"prompt_tokens": 1e6, "cached_tokens": 4e5, "completion_tokens": 0}) == pytest.approx(1.4)
    assert price.cost({"prompt_tokens": 10, "cached_tokens": 40}) == pytest.approx(5e-6)
    assert price.cost({}) == 0.0


def test_without_a_price_for_cached_input_it_costs_as_the_rest(tmp_path: Path) -> None:
    text = '[a]\nurl = "http://h/v1"\nusd_per_million_input_tokens = 3\nusd_per_million_output_tokens = 0\n'
    assert read(tmp_path, text).resolve("a").price == Price(3.0, 3.0, 0.0)


def test_did_you_mean(tmp_path: Path) -> None:
    names = read(tmp_path, FILE)
    with pytest.raises(ConfigError) as caught:
        names.resolve("smal")
    assert "Did you mean 'small'?" in caught.value.hint
    with pytest.raises(ConfigError) as caught:
        names.resolve("gpt-9")
    assert "here, small" in caught.value.hint
    with pytest.raises(ConfigError) as caught:
        ModelNames().resolve("x")
    assert "--inference-url" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1", "not a table"), ("[a]\n", "no `url`"), ('[a]\nurl = "h/v1"', "is not an address"), ('[a]\nurl = "http://u:p@h/v1"', "contains a user"),
        ('[a]\nurl = "http://h"\nmodle = "x"', "modle"), ('[a]\nurl = "http://h"\nmodel = 3', "not a string"),
        ('[a]\nurl = "http://h"\nkey = "sk-secret-secret"', "invalid `key`"), ('[a]\nurl = "http://h"\nkey = 3', "invalid `key`"),
        ('[a]\nurl = "http://h"\nkey = "ENVIRONMENT_API_KEY"', "ENVIRONMENT_API_KEY"),
        ('[a]\nurl = "http://h"\nusd_per_million_input_tokens = -1', "has an invalid `usd_per_million"),
        ('[a]\nurl = "http://h"\nusd_per_million_input_tokens = true', "has an invalid `usd_per_million"),
        ('[a]\nurl = "http://h"\nusd_per_million_input_tokens = nan', "has an invalid `usd_per_million"),
        ('[a]\nurl = "http://h"\nusd_per_million_input_tokens = 1', "usd_per_million_output_tokens"),
        ("[a", "not a TOML file"),
        (f"a = {'[' * 100_000}", "not a TOML file"),
        (f"a = 1{'0' * 5000}", "not a TOML file"),
    ],
)  # fmt: skip
def test_what_cannot_be_used(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert says in caught.value.message and caught.value.hint and "models.toml" in caught.value.message
    assert "sk-secret" not in str(caught.value) and "u:p" not in str(caught.value)


def test_where_the_file_is_looked_for(tmp_path: Path) -> None:
    assert ModelNames.of(Settings(), tmp_path).models == {}
    (tmp_path / "models.toml").write_text(FILE)
    assert set(ModelNames.of(Settings(), tmp_path).models) == {"small", "here"}
    other = tmp_path / "other.toml"
    other.write_text('[only]\nurl = "http://h/v1"')
    assert set(ModelNames.of(Settings(models_file=other), tmp_path).models) == {"only"}
    with pytest.raises(ConfigError) as caught:
        ModelNames.of(Settings(models_file=tmp_path / "absent.toml"), tmp_path)
    assert "absent.toml" in caught.value.message
