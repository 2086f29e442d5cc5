from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit import Step, TaskApp, action
from taskapp_kit.asgi import build
from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import ConfigError, RequestError, TaskAppError
from taskapp_kit.evaluate.plan import EvalPlan
from taskapp_kit.evaluate.progress import Progress
from taskapp_kit.evaluate.results import line_of, row_of_line
from taskapp_kit.evaluate.runners import EvaluatedApp, LocalRunner, RemoteRunner, Runner, idempotency_key
from taskapp_kit.records.protocols import RolloutRow
from taskapp_kit.records.seeds import Seeds
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.testing import MockModel

from .conftest import FLAKY

pytestmark = pytest.mark.server

KEY = "k" * 40


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    settings = Settings(environment_api_key=KEY, max_concurrent=3)
    with BackgroundServer(build(find_app(FLAKY), settings, exposure="local")) as server:
        yield server.url


def plan(seeds: str = "0-19", **options: Any) -> EvalPlan:
    return EvalPlan(Seeds.read(seeds), [{"policy": "presser"}], **options)


def about(player: Runner, environment: str | None = None) -> EvaluatedApp:
    async def go() -> EvaluatedApp:
        try:
            return await player.about(environment)
        finally:
            await player.close()

    return asyncio.run(go())


def checked(player: Runner, asked: EvalPlan) -> None:
    async def go() -> None:
        try:
            await player.check(asked)
        finally:
            await player.close()

    asyncio.run(go())


def test_both_say_the_same_about_themselves(url: str) -> None:
    here, there = about(LocalRunner(find_app(FLAKY), Settings())), about(RemoteRunner(url, KEY))
    assert (here.app, here.version, here.environment, here.formula, here.ranges, here.kit_version) == (
        there.app, there.version, there.environment, there.formula, there.ranges, there.kit_version,
    )  # fmt: skip
    assert here.splits == there.splits == {"train": range(60), "test": range(60, 80)}
    assert len(there.spec_hash) == 64
    assert about(RemoteRunner(url, KEY)).spec_hash == there.spec_hash


def test_a_server_plays_what_this_process_plays(url: str, evaluations: Any, tmp_path: Path) -> None:
    here = evaluations.run(tmp_path / "here", plan())
    spec = find_app(FLAKY).freeze()
    there = evaluations.run(
        tmp_path / "there", plan(), RemoteRunner(url, KEY, spec=spec), concurrency=8
    )  # it has 3 places
    for summary in (here, there):
        del summary["timing"], summary["spec_hash"]
    assert there == here


def test_without_the_app_there_are_no_aggregates(url: str, evaluations: Any, tmp_path: Path) -> None:
    assert evaluations.run(tmp_path, plan("0-2"), RemoteRunner(url, KEY))["aggregates"] is None


def test_an_address_never_plays_one_rollout_twice(url: str) -> None:
    async def go() -> list[str]:
        player = RemoteRunner(url, KEY)
        try:
            keys = [idempotency_key("e", 0, 0), idempotency_key("e", 0, 0), idempotency_key("e", 0, 1)]
            request = plan().request(0, "r")
            return [(await player.play(request, key=key, progress=Progress())).rollout_id for key in keys]
        finally:
            await player.close()

    first, second, other = asyncio.run(go())
    assert first == second != other


@pytest.mark.parametrize("there", [False, True])
def test_wrong_seeds_and_policies_are_told_before_anything_is_played(url: str, there: bool) -> None:
    def player() -> Runner:
        return RemoteRunner(url, KEY) if there else LocalRunner(find_app(FLAKY), Settings())

    with pytest.raises((RequestError, TaskAppError), match=r"\b90\b.*\b59\b"):
        checked(player(), plan("0-90"))
    with pytest.raises((RequestError, TaskAppError), match=r"\b60\b.*'train'"):
        checked(player(), plan("60-70", split="train"))
    with pytest.raises((RequestError, TaskAppError), match="environment"):
        about(player(), "nowhere")
    checked(player(), plan("0,30,59", split="train"))


def test_a_wrong_key_and_another_app_are_refused(url: str) -> None:
    with pytest.raises(TaskAppError) as refused:
        about(RemoteRunner(url, "w" * 40))
    assert refused.value.code == "unauthorised"
    assert "w" * 6 not in str(refused.value)
    adder = find_app(str(Path(__file__).parents[2] / "examples" / "adder.py")).freeze()
    with pytest.raises(ConfigError, match=r"flaky 1\.0\.0.* --app-id .*adder 1\.0\.0"):
        about(RemoteRunner(url, KEY, spec=adder))


def test_the_key_is_written_nowhere(url: str, evaluations: Any, tmp_path: Path) -> None:
    evaluations.run(tmp_path, plan(), RemoteRunner(url, KEY))
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert KEY.encode() not in written
    assert json.loads((tmp_path / "config.json").read_text())["asked"]["app"] == "flaky"


class Peer:
    """A server that answers each request with the next of these, the last for ever; `/info` and `/task_info` with theirs."""

    def __init__(self, *answers: tuple[int, Any]) -> None:
        self.answers = list(answers)

    def other(self) -> Any:
        return {"task": {"id": "peer", "version": "2"}}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        status, body = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        if scope["path"] != "/rollout":
            status, body = 200, self.other()
        content = json.dumps(body).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})


def test_a_foreign_servers_answers(evaluations: Any, tmp_path: Path) -> None:
    with BackgroundServer(Peer((500, {"detail": "boom"}))) as server:
        summary = evaluations.run(tmp_path / "a", plan("0-2"), RemoteRunner(server.url, None))
    assert summary["failures"] == {"untold": {"status_500": 3}}
    with BackgroundServer(Peer((200, {"run_id": "r"}))) as server, pytest.raises(TaskAppError, match="not a rollout"):
        evaluations.run(tmp_path / "b", plan("0-2"), RemoteRunner(server.url, None))
    with BackgroundServer(Peer((404, {"detail": "x"}))) as server, pytest.raises(TaskAppError):
        evaluations.run(tmp_path / "c", plan("0-2"), RemoteRunner(server.url, None))
    assert (tmp_path / "c" / "results.jsonl").read_bytes() == b""


@pytest.mark.parametrize(
    "bounds", [[0, 10, 0], [-5, 5], [0, 2**63 + 1], [0, 1e9], ["0", "9"], [0], [0, 1, 2, 3], [True, 5], {}], ids=str
)
def test_splits_that_are_none_are_left_out(bounds: Any) -> None:
    told = {"task": {"id": "peer"}, "dataset": {"seeds": {"odd": bounds, "train": [0, 10]}, "default_split": "odd"}}
    with BackgroundServer(Told(told)) as server:
        assert about(RemoteRunner(server.url, None)).splits == {"train": range(10)}


@pytest.mark.parametrize(
    "told",
    [
        [],
        {"task": []},
        {"task": {"id": [1], "version": {}}, "dataset": 7, "reward": 9, "environment": 3},
        {"task": {"id": "a"}, "dataset": {"seeds": []}},
        {"task": {"id": "a"}, "config_schema": json.loads("[" * 200 + "]" * 200)},
    ],
    ids=str,
)
def test_a_server_that_tells_odd_things_of_itself(told: Any) -> None:
    with BackgroundServer(Told(told)) as server:
        try:
            assert about(RemoteRunner(server.url, None)).splits == {}
        except TaskAppError as error:
            assert "does not describe a task app" in error.message or "not an object" in error.message


class Told(Peer):
    """A server that answers everything with this."""

    def __init__(self, told: Any) -> None:
        super().__init__((200, told))
        self.told = told

    def other(self) -> Any:
        return self.told


PRICES = "usd_per_million_input_tokens = 1000.0\nusd_per_million_output_tokens = 1000.0\n"


async def failed(player: LocalRunner | RemoteRunner, url: str) -> RolloutRow:
    """Seed 4, which breaks in its action, after the model at `url` has answered."""
    plan, progress = EvalPlan(Seeds.read("4"), [{"model": "m", "inference_url": url}]), Progress()
    try:
        await player.open()
        result = await player.play(plan.request(0, "r"), key="k", progress=progress)
    finally:
        await player.close()
    assert (result.status, result.code) == ("failed", "environment_raised")
    assert progress.cost == result.policy_cost
    return result


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=[pytest.mark.process, pytest.mark.exhaustive])])
def test_a_failed_rollout_says_what_its_model_used(tmp_path: Path, workers: int) -> None:
    with MockModel([{"press": {}}]) as model:
        (tmp_path / "models.toml").write_text(f'[m]\nurl = "{model.url}"\n{PRICES}')
        settings = Settings(models_file=tmp_path / "models.toml")
        result = asyncio.run(failed(LocalRunner(find_app(FLAKY), settings, workers=workers), model.url))
    assert result.usage["prompt_tokens"] > 0
    assert result.cost == pytest.approx((result.usage["prompt_tokens"] + result.usage["completion_tokens"]) / 1000)
    assert result.other_cost is None
    assert row_of_line(json.loads(line_of(result, {"seed": 4}))) == result


def test_a_servers_failed_rollout_has_them_where_the_server_has_a_store(tmp_path: Path) -> None:
    with MockModel([{"press": {}}]) as model:
        (tmp_path / "models.toml").write_text(f'[m]\nurl = "{model.url}"\n{PRICES}')
        for store in (str(tmp_path / "rollouts.db"), None):
            settings = Settings(environment_api_key=KEY, models_file=tmp_path / "models.toml", store=store)
            with BackgroundServer(build(find_app(FLAKY), settings, exposure="local")) as server:
                result = asyncio.run(failed(RemoteRunner(server.url, KEY), model.url))
            if store is None:
                assert (result.usage, result.cost) == ({}, None)
            else:
                assert result.usage["total_tokens"] > 0
                assert result.cost == pytest.approx(result.usage["total_tokens"] / 1000)


def test_rows_have_their_short_public_fields_here_and_at_a_server() -> None:
    quiz = TaskApp("quiz", version="1")
    rows = [
        {"question": "q" * 200, "difficulty": "easy", "tags": ["a", "b"], "level": n, "nested": {}} for n in range(3)
    ]

    @quiz.environment("quiz", tasks={"train": rows, "test": [{**rows[0], "level": 9, "bad": "a\nb"}]})
    class Quiz:
        """Say it."""

        def reset(self, task: dict[str, Any]) -> str:
            return str(task["question"])

        @action(text=True)
        def say(self, text: str) -> Step:
            """Say it."""
            return Step("", terminated=True)

    async def here() -> list[Any]:
        player = LocalRunner(quiz, Settings())
        return [await player.rows(None, "train", [2, 0]), await player.rows("quiz", "test", [0, 7])]

    async def there(url: str) -> list[Any]:
        player = RemoteRunner(url, "k" * 40)
        try:
            return [await player.rows(None, "train", [2, 0]), await player.rows("quiz", "test", [0])]
        finally:
            await player.close()

    local = asyncio.run(here())
    easy = {"difficulty": "easy", "tags": ["a", "b"]}
    assert local == [[{**easy, "level": 2}, {**easy, "level": 0}], [{**easy, "level": 9}, {}]]
    with BackgroundServer(build(quiz, Settings(environment_api_key="k" * 40), exposure="local")) as server:
        assert asyncio.run(there(server.url)) == [local[0], local[1][:1]]
