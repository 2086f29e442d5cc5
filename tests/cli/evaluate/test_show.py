"""`taskapp show`: the list, the filters, and one rollout turn by turn, from a directory, a store and a server."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from taskapp_kit.cli.options import shown_source
from taskapp_kit.cli.output.show_output import print_list, print_rollout
from taskapp_kit.records.protocols import RolloutRow, StoredRollout
from taskapp_kit.rollout.details import details_of
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.testing import MockModel, judge
from tests.cli.conftest import Run, serving
from tests.rollout.test_details import stored_show
from tests.store.postgres_server import server

FLAKY = str(Path(__file__).parents[2] / "evaluate" / "flaky.py")
PRESSER = ("eval", FLAKY, "--policy", "presser")
APP = '''
from taskapp_kit import InvalidAction, Private, Step, TaskApp, action
from pydantic import BaseModel

app = TaskApp("guests", version="2")

class Row(BaseModel):
    question: str
    answer: Private[str]

ROWS = [Row(question="Why?", answer="sentinel-answer"), Row(question="When?", answer="sentinel-other")]

@app.environment("guest", tasks={"train": ROWS}, max_turns=4)
class Guest:
    def reset(self, task, context):
        said = context.model("user").ask([{"role": "user", "content": f"Begin with {task.answer}."}])
        return f"{task.question} {said.message['content']}"

    @action
    def add(self, amount: int) -> Step:
        """Add."""
        if amount == 13:
            raise RuntimeError("hidden")
        if amount < 0:
            raise InvalidAction("not below 0")
        return Step(f"total {amount}", reward=0.5, terminated=amount == 9)

@app.judge(weight=1)
def fine(answer_text, task):
    """Is it fine?"""
    return f"{task.answer} and {answer_text}"
'''
HOSTILE = "\x1b[31mred\x1b[0m \u202eevil"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seeds 0 to 9: 3 and 4 failed, 5 has no reward, odd ones have 1, even ones 0."""
    from click.testing import CliRunner

    from taskapp_kit.cli.main import main

    path = tmp_path_factory.mktemp("show") / "e"
    done = CliRunner().invoke(main, [*PRESSER, "--seeds", "0-9", "--out", str(path)], prog_name="taskapp")
    assert done.exit_code == 1, done.output
    return path


def listed(run: Run, *args: str) -> list[dict[str, Any]]:
    done = run("show", *args, "--json", status=0)
    rows: list[dict[str, Any]] = json.loads(done.stdout)["rollouts"]
    return rows


def test_the_list_of_an_evaluation(run: Run, directory: Path) -> None:
    done = run("show", str(directory), status=0)
    heading, first, *rest = done.stdout.splitlines()
    assert heading.split() == ["id", "seed", "reward", "ended", "steps", "seconds"]
    assert first.split()[1:5] == ["0", "0", "environment", "1"]
    failed = next(number for number, line in enumerate(rest) if "environment: environment_raised" in line)
    assert "raised KeyError" in rest[failed + 1]
    assert f"10 rollouts. `taskapp show {directory} ID` shows a rollout turn by turn." in done.stdout


@pytest.mark.parametrize("place", ["", "rollouts.db"])
def test_choices_and_filters(run: Run, directory: Path, place: str) -> None:
    source = str(directory / place)

    def seeds(*args: str) -> list[int]:
        return [row["seed"] for row in listed(run, source, *args)]

    assert seeds("--worst", "3") == [0, 2, 6] and seeds("--best", "2") == [1, 7]
    assert set(seeds("--failed")) == {3, 4} == set(seeds("--boundary", "environment"))
    assert set(seeds("--reward-below", "0.5")) == {0, 2, 6, 8} and seeds("--policy", "other") == []
    assert seeds("--worst", "2", "--reward-above", "0.5") == [1, 7]
    assert len(seeds("--sort", "seconds", "--limit", "4")) == 4


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--worst", "2", "--best", "2"), "one of --worst, --best and --failed"),
        (("--worst", "2", "--sort", "cost"), "Omit --sort"),
        (("--failed", "--status", "truncated"), "--failed contradicts this --status"),
        (("0" * 32, "--failed"), "An ID selects one rollout"),
        (("--private",), "--private needs --app"),
        (("--html", "x.html"), "need exactly one rollout"),
        (("abc",), "too short"),
        (("abcdef012",), "No rollout id in"),
        (("0" * 32,), "no rollout"),
    ],
)
def test_what_does_not_fit(run: Run, directory: Path, args: tuple[str, ...], words: str) -> None:
    done = run("show", str(directory), *args, status=2)
    assert words in done.stderr.replace("\n", " "), done.output


def test_one_rollout_of_a_policy_is_a_table_of_steps(run: Run, directory: Path) -> None:
    row = listed(run, str(directory), "--best", "2")[0]
    for given in (row["rollout_id"], row["rollout_id"][:8]):
        done = run("show", str(directory), given, status=0)
        assert "episode  flaky, split train, seed 1" in done.stdout
        assert "terminated (environment) after 1 step" in done.stdout
    assert run("show", str(directory), "--best", "1").stdout == run("show", str(directory), row["rollout_id"]).stdout


def test_a_failure_says_where_and_how_to_see_more(run: Run, directory: Path) -> None:
    row = listed(run, str(directory), "--failed")[1]
    done = run("show", str(directory), row["rollout_id"])
    assert "Failed at boundary environment (environment_raised)" in done.stdout
    assert "after 0 steps, during the action press" in done.stdout and "hidden" not in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if "taskapp rollout" in line)
    assert f"{quote(f'{FLAKY}:app')} --env flaky --split train --seed 4 --policy presser" in line


@pytest.fixture
def guests(run: Run, tmp_path: Path) -> Path:
    """Two rollouts of a model, with a user and a judge: one scored, one that broke."""
    (tmp_path / "app.py").write_text(APP)

    def says(request: Any) -> Any:
        if "When?" in request.text:
            return {"add": {"amount": 13}}
        return [
            {
                "content": HOSTILE,
                "reasoning_content": "It is odd.",
                "tool_calls": [{"name": "add", "arguments": {"amount": 2}}],
            },
            {"add": {"amount": -1}},
            {"add": {"amount": 9}},
        ][sum(message["role"] == "assistant" for message in request.body["messages"])]

    with (
        MockModel(says) as model,
        MockModel(lambda _: "Hello, sentinel-answer.") as user,
        MockModel(judge(0.5, "So so, sentinel-answer.")) as verdict,
    ):
        run(
            "eval", "app.py", "--model", "m", "--inference-url", model.url, "--seeds", "0-1", "--out", "e",
            TASKAPP_USER_URL=user.url, TASKAPP_USER_MODEL="u", TASKAPP_JUDGE_URL=verdict.url, TASKAPP_JUDGE_MODEL="j", status=1)  # fmt: skip
    return tmp_path / "e"


@pytest.mark.server
def test_a_model_turn_by_turn_with_everything_that_was_said(run: Run, guests: Path) -> None:
    done = run("show", str(guests), "--worst", "1", width=120, status=0)
    text = done.stdout
    order = [
        "policy   model m at http", "--- turn 1", "user     Why? Hello", "thinks   It is odd.",
        "model    \\x1b[31mred\\x1b[0m \\x202eevil", "calls    add amount=2", "result   total 2   reward 0.5",
        "--- turn 2", "refused  ", "not below 0", "--- turn 3", "total 9", "--- auxiliary model user",
        "Begin with [private: answer].", "Hello, [private: answer].", "--- judge fine (j)",
        "verdict  0.5: So so, [private: answer].", "terminated (environment) after 3 steps",
    ]  # fmt: skip
    places = [text.find(words) for words in order]
    assert -1 not in places and places == sorted(places), dict(zip(order, places, strict=True))
    assert "\x1b" not in text and text.count("Why? Hello") == 1 and "You are a judge" not in text
    full = run("show", str(guests), "--worst", "1", "--full", width=120).stdout
    assert "You are a judge" in full and "prompt_tokens" in full
    assert len(full) > len(text)


@pytest.mark.server
def test_the_page_and_the_json_of_a_rollout(run: Run, guests: Path, tmp_path: Path) -> None:
    done = run("show", str(guests), "--worst", "1", "--html", "one.html", status=0)
    assert done.stdout == "", done.output
    page = (tmp_path / "one.html").read_text()
    assert page.startswith("<!") and "It is odd." in page and "\x1b" not in page and "<script" not in page
    done = run("show", str(guests), "--worst", "1", "--json")
    shown = json.loads(done.stdout)
    assert shown["turns"][0]["reasoning"] == "It is odd." and shown["judge_calls"][0]["judges"] == ["fine"]
    assert run("show", str(guests), "--worst", "1", "--html", "no/such/one.html").exit_code == 2


@pytest.mark.server
def test_private_fields_are_shown_in_the_terminal_only(run: Run, guests: Path, tmp_path: Path) -> None:
    seen = run("show", str(guests), "--worst", "1", "--app", "app.py", "--private")
    assert "answer   sentinel-answer   (private)" in seen.stdout, seen.output
    (tmp_path / "other.py").write_text(APP.replace("sentinel-answer", "another"))
    other = run("show", str(guests), "--worst", "1", "--app", "other.py", "--private", status=2)
    assert "has changed since the rollout" in other.stderr
    for more in ("--json", "--html=x.html"):
        assert run("show", str(guests), "--worst", "1", "--app", "app.py", "--private", more).exit_code == 2
    assert "need exactly one rollout" in run("show", str(guests), "--app", "app.py", "--private").stderr


@pytest.mark.server
@pytest.mark.process
def test_rollouts_at_a_server(run: Run, tmp_path: Path) -> None:
    import httpx

    with serving(tmp_path, FLAKY) as served:
        for seed in (1, 2, 3):
            body = {
                "run_id": "r", "mode": "eval", "ops": [], "env": {"seed": seed}, "policy": {"config": {"policy": "presser"}},
            }  # fmt: skip
            httpx.post(f"{served.url}/rollout", json=body, headers={"X-API-Key": served.key or ""})
        refused = run("show", served.url, status=1)
        assert "rejects a request without a key" in refused.stderr
        given = ("--key", served.key or "")
        assert [row["seed"] for row in listed(run, served.url, "--worst", "5", *given)] == [2, 1]
        done = run("show", served.url, "--failed", *given)
        assert "environment: environment_raised" in done.stdout or "environment" in done.stdout
        worst = run("show", served.url, "--worst", "1", *given)
        assert "episode  flaky, split train, seed 2" in worst.stdout and "press" in worst.stdout, worst.output
        failed = run("show", served.url, listed(run, served.url, "--failed", *given)[0]["rollout_id"], *given)
        assert "Failed at boundary environment (environment_raised)" in failed.stdout, failed.output


def test_a_long_conversation_shows_its_ends(capsys: pytest.CaptureFixture[str]) -> None:
    details = details_of(stored_show(steps=1))
    turns = tuple(replace(details.turns[0], index=at, words=f"word {at + 1}.", steps=()) for at in range(60))
    print_rollout(replace(details, policy="model", turns=turns), width=100)
    text = capsys.readouterr().out
    assert "... turns 11 to 30 are not shown. --full shows them ..." in text
    assert "word 10." in text and "word 11." not in text and "word 31." in text and text.count("not shown") == 1
    print_rollout(replace(details, policy="model", turns=turns), width=100, full=True)
    assert "word 11." in capsys.readouterr().out


def test_long_lines_stand_below_their_first_word_and_the_reward_is_never_cut(
    capsys: pytest.CaptureFixture[str],
) -> None:
    details = details_of(stored_show(steps=1))
    (turn,) = details.turns
    seen = ("a row of cells\n" + "word " * 1000,)
    step = replace(turn.steps[0], observation=seen, reward=0.25, refused=None)
    silent = replace(turn, words="", calls=(), steps=(step,))
    print_rollout(replace(details, policy="model", turns=(silent,)), width=60)
    lines = capsys.readouterr().out.splitlines()
    said = lines[lines.index("model    (nothing)") :]
    assert said[1] == "result   a row of cells"
    assert (
        said[2] == f"         {'word ' * 10}".rstrip()
        and max(map(len, said[: said.index("         reward 0.25")])) <= 60
    )
    assert all(
        line == line.rstrip() and line.startswith(" " * 9) for line in said[2 : said.index("         reward 0.25")]
    )


@pytest.mark.parametrize("args", [("absent.db",), ("sqlite:///absent.db",), ("http://127.0.0.1:1",), (".",)])
def test_sources_that_are_not_there(run: Run, args: tuple[str, ...]) -> None:
    done = run("show", *args)
    assert done.exit_code in (1, 2) and done.stderr.startswith("Error: ") and "Traceback" not in done.output


def test_eval_ends_with_the_worst_and_how_to_see_them(run: Run, tmp_path: Path) -> None:
    done = run(*PRESSER, "--seeds", "0-9", "--out", "e")
    tail = done.stdout.partition("The lowest rewards:\n")[2].splitlines()
    assert [line.split()[1] for line in tail[1:4]] == ["0", "2", "6"], done.stdout
    line = tail[4]
    assert line == f"`taskapp show e {tail[1].split()[0]}` shows the first rollout turn by turn."
    assert "taskapp show e --failed" in done.stderr
    shown = run(*line.partition("`taskapp ")[2].partition("`")[0].split(), status=0)
    assert "seed 0" in shown.stdout
    again = run(*PRESSER, "--seeds", "0,1", "--out", "j", "--json")
    assert "lowest" not in again.output and json.loads(again.stdout)["rollouts"]["done"] == 2
    failed = run(*PRESSER, "--seeds", "3,4", "--out", "f")
    assert "lowest" not in failed.stdout and failed.exit_code == 1


def played(path: Path) -> list[tuple[int, int]]:
    lines = [json.loads(line)["key"] for line in (path / "results.jsonl").read_text().splitlines()]
    return sorted((key["seed"], key["sample"]) for key in lines)


def test_seeds_from_plays_what_show_lists(run: Run, tmp_path: Path) -> None:
    asked = ("--seeds", "0-9", "--repeats", "2", "--config", '{"pause": 0.0}', "--out", "e")
    limits = ("--ops", "50", "--max-time-seconds", "60", "--max-refusals", "9", "--judges", "skip")
    run(*PRESSER, *asked, *limits, status=1)
    failed = run("eval", "--seeds-from", "e", "--failed", "--out", "f", status=1)
    assert played(tmp_path / "f") == [(3, 0), (3, 1), (4, 0), (4, 1)], failed.output
    first_asked, asked = (json.loads((tmp_path / name / "config.json").read_text())["asked"] for name in "ef")
    for name in ("ops", "max_time_seconds", "max_refusals", "judges", "output_mode"):
        assert asked[name] == first_asked[name], name
    shown = sorted((row["seed"], row["sample"]) for row in listed(run, "e", "--worst", "3"))
    run("eval", FLAKY, "--policy", "random", "--seeds-from", "e", "--worst", "3", "--ops", "60", "--out", "w", status=0)
    assert played(tmp_path / "w") == shown == [(0, 0), (0, 1), (2, 0)]
    config = json.loads((tmp_path / "w" / "config.json").read_text())["asked"]
    assert config["only"] == [[0, 0], [0, 1], [2, 0]] and config["config"] == {"pause": 0.0}
    assert config["policy"] == {"policy": "random"} and (config["ops"], config["max_refusals"]) == (60, 9)
    goes_on = run("eval", "w", status=0)
    assert "has been played" in goes_on.output
    (tmp_path / "w" / "results.jsonl").write_text("")
    assert run("eval", "w").exit_code == 0 and played(tmp_path / "w") == shown


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--seeds-from", "DIR"), "--seeds-from needs --failed or --worst"),
        (("--worst", "2", FLAKY), "--failed and --worst need --seeds-from"),
        (("--seeds-from", "DIR", "--failed", "--seeds", "1"), "is determined by"),
        (("--seeds-from", "DIR", "--failed", "--worst", "1"), "one of --worst"),
        (("DIR", "--seeds-from", "DIR", "--failed"), "--seeds-from cannot be changed"),
    ],
)
def test_seeds_from_with_what_does_not_fit(
    run: Run, directory: Path, tmp_path: Path, args: tuple[str, ...], words: str
) -> None:
    done = run("eval", *(str(directory) if word == "DIR" else word for word in args), status=2)
    assert words in " ".join(done.stderr.split()), done.output


EVIL = "\x1b[2J\x1b]0;owned\x07\x9b1m\u202e[bold]x[/bold]\r\x08 <script>alert(1)</script>"


def hostile_rollout() -> StoredRollout:
    """A rollout in which everybody who may write a text wrote a hostile one."""
    stored = stored_show(steps=1, image=True)
    call = {"tool": EVIL, "args": {EVIL: EVIL}, "id": EVIL}
    message = {"role": EVIL, "content": EVIL, "reasoning_content": EVIL}
    for event in stored.events:
        if event["kind"] == "answered":
            event["answer"] = {
                "output": EVIL, "tool_calls": [call], "messages": [message, {**message, "role": "assistant"}], "problem": EVIL,
                "usage": {EVIL: 1.0}, "details": {"finish_reason": EVIL, "attempts": 2, "cost": 0.1},
            }  # fmt: skip
        elif event["kind"] == "stepped":
            event["step"] |= {"tool": EVIL, "args": {EVIL: EVIL}, "observation": [EVIL], "refused": EVIL}
        elif event["kind"] == "limited":
            event["limit"] = EVIL
        elif event["kind"] == "ended":
            event["metrics"] = {EVIL: 1.0}
    assert stored.scorecard is not None
    stored.scorecard["criteria"][0] |= {"name": EVIL, "reason": EVIL}
    stored.scorecard["formula"] = EVIL
    verdict = {EVIL: {"reason": EVIL, "score": 0.5}}
    judged = {"judges": [EVIL], "role": EVIL, "sample": 1, "ask": 2, "prompt": "p", "model": EVIL, "verdict": verdict,
              "text": EVIL, "problem": EVIL}  # fmt: skip
    stored.private = {
        "judge_calls": {"prompts": {"p": [message]}, "calls": [judged]},
        "second_calls": [{"role": EVIL, "messages": [message], "reply": message}],
    }
    stored.failure = {"boundary": EVIL, "code": EVIL, "message": EVIL, "error_id": EVIL}
    stored.policy |= {"model": EVIL, "name": EVIL, "inference_url": EVIL}
    stored.environment = stored.split = stored.app = stored.status = stored.stop_reason = EVIL
    stored.config = {EVIL: EVIL}
    stored.timing = {EVIL: 1.0}
    return stored


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("failed", [False, True])
def test_what_others_wrote_is_text(capsys: pytest.CaptureFixture[str], full: bool, failed: bool) -> None:
    stored = hostile_rollout()
    if not failed:
        stored.failure = None
    details = details_of(stored)
    print_rollout(details, private={EVIL: EVIL}, again=EVIL, full=full, width=100)
    row = RolloutRow(
        "failed", EVIL, EVIL, EVIL, 1, sample=0, policy=EVIL, model=EVIL, stop_reason=EVIL, boundary=EVIL, code=EVIL,
        message=EVIL, criteria={EVIL: 1.0}, length=1, turns=2, tokens=3, cost=0.1, seconds=1.0,
    )  # fmt: skip
    print_list(
        [row, replace(row, environment="e", split="s", model="m")], more=True, source=EVIL, order="worst", full=full
    )
    text = capsys.readouterr().out
    assert not {letter for letter in text if letter not in "\n" and unicodedata.category(letter) in ("Cc", "Cf")}, repr(
        text
    )
    assert "[bold]x[/bold]" in text.replace("\n", "") and text.count("alert(1)") > 10


@pytest.mark.server
@pytest.mark.parametrize(
    "page",
    [
        {},
        {"rollouts": 3},
        {"rollouts": [{"id": 1}]},
        {"rollouts": [{"id": "a", "seed": "1"}]},
        {"rollouts": [None]},
        [],
    ],
)
def test_a_server_that_answers_something_else(run: Run, page: Any) -> None:
    async def answer(_: Request) -> JSONResponse:
        return JSONResponse(page)

    app = Starlette(routes=[Route("/{path:path}", answer)])
    with BackgroundServer(app) as server:
        for more in ((), ("0" * 32,)):
            done = run("show", server.url, *more, status=1)
            assert done.stderr.startswith("Error: "), done.output
            assert ("Traceback" not in done.output and done.exception is None) or isinstance(done.exception, SystemExit)


@pytest.mark.server
@pytest.mark.process
def test_a_postgres_store_is_listed_without_its_password(run: Run) -> None:
    address = server().database()
    run(*PRESSER, "--seeds", "0-3", "--out", "e", "--store", address, status=1)
    done = run("show", address, "--worst", "2")
    assert [line.split()[1] for line in done.stdout.splitlines()[1:3]] == ["0", "2"], done.output
    assert address not in done.output and ("@" not in address or "`taskapp show STORE ID`" in done.stdout)
    assert "elsewhere" in run("show", "e", "--worst", "1").stderr
    for args in (("compare", address, "e", "--force"), ("rescore", address, "--app", FLAKY)):
        for more in ((), ("--json",)):
            told = run(*args, *more)
            assert told.stdout and address not in told.output, told.output


@pytest.mark.parametrize("address", ["postgresql://u:sentinel@db/x", "postgresql://db/x?password=sentinel"])
def test_an_address_that_may_have_a_password_is_named_by_its_kind(address: str) -> None:
    assert shown_source(address) == "STORE"
    assert [shown_source(one) for one in ("e", "a@b/c?.db", "sqlite:///a.db")] == ["e", "a@b/c?.db", "sqlite:///a.db"]
