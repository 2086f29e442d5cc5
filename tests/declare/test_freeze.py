"""Every author's mistake gives one report with file:line and what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from taskapp_kit import DeclarationError, LateRegistration
from taskapp_kit.declare.freeze import freeze
from tests.rollouts import HEADER, app_from, play

GOOD = """
app = TaskApp("a")
@app.environment("one")
class One:
    \"\"\"One.\"\"\"
    def reset(self, seed: int) -> str:
        return "x"
    @action
    def go(self, n: Literal[1, 2]) -> Step:
        \"\"\"Goes.\"\"\"
        return Step("y", 1.0, True)
"""

ENV = '''
app = TaskApp("a")
@app.environment("one"{options})
class One:
    """One."""
    {members}
'''
RESET = "def reset(self, seed: int) -> str: return 'x'"
GO = '''@action
    def go(self, n: Literal[1, 2]) -> Step:
        """Goes."""
        return Step("y", 1.0, True)'''


def go(parameters: str, options: str = "") -> str:
    """An action with these parameters, whose decorator is the place of the mistake."""
    return f'@action{options}  # !\n    def go(self, {parameters}) -> Step:\n        """G."""'


def env(*members: str, options: str = "", marked: bool = False) -> str:
    """A file with one environment of these members; `marked`: the decorator's line is the place of the mistake."""
    text = ENV.replace("{members}", "\n    ".join(members)).replace("{options}", options)
    return text.replace(")\nclass", ")  # !\nclass", 1) if marked else text


# name: (text; each line with a mistake ends in "# !"), a piece of what was found, what to write instead if that is known
MISTAKES: dict[str, tuple[str, ...]] = {
    "no environment": ('app = TaskApp("a")  # !', "declares no environment"),
    "no reset": (env(GO, marked=True), "One has no reset"),
    "max_steps that names no parameter": (
        env(RESET, GO, options=", max_steps='length'", marked=True),
        "max_steps='length'",
    ),
    "reset with unknown parameter": (
        env("def reset(self, sede: int) -> str: return 'x'  # !", GO),
        "takes 'sede'",
        "did you mean 'seed'?",
    ),
    "reset takes task without rows": (
        env("def reset(self, task: Any) -> str: return 'x'  # !", GO),
        "takes 'task' but the environment has no rows",
    ),
    "no action": (env(RESET, marked=True), "One has no action"),
    "action without docstring": (
        env(RESET, "@action  # !\n    def go(self) -> Step: return Step()"),
        "action 'go' has no docstring",
    ),
    "missing annotation": (env(RESET, go("n")), "no annotation for 'n'"),
    "annotation that JSON cannot carry": (env(RESET, go("n: random.Random")), "a parameter that JSON cannot carry"),
    "annotation that cannot be resolved": (env(RESET, go('n: "Nowhere"')), "cannot be resolved"),
    "annotation that does not parse": (env(RESET, go('n: "int |"')), "cannot be resolved"),
    "star arguments": (env(RESET, go("**rest: int")), "takes **rest"),
    "positional only": (env(RESET, go("n: int, /")), "by position only"),
    "one tool name twice in a class": (
        env(RESET, GO, '@action(name="go")  # !\n    def other(self) -> Step:\n        """G."""'),
        "action 'go' is declared a second time; the first is at",
    ),
    "a tool name that models refuse": (env(RESET, go("", '(name="go on!")')), "refuse"),
    "an action on a method that the kit calls": (
        env(RESET, '@action  # !\n    def close(self) -> Step:\n        """Shut the door."""'),
        "which the kit calls by itself",
    ),
    "two text actions": (
        env(
            RESET,
            '@action(text=True)\n    def a(self, t: str) -> Step:\n        """G."""',
            '@action(text=True)\n    def b(self, t: str) -> Step:\n        """G."""',
            marked=True,
        ),
        "2 actions with text=True (a, b)",
    ),
    "text action without its str": (
        env(RESET, '@action(text=True)  # !\n    def a(self, n: int) -> Step:\n        """G."""'),
        "has text=True",
    ),
    "noop that does not fit": (env(RESET, go("n: Literal[1, 2]", '(noop={"n": 9})')), "does not fit it"),
    "noop that is no object": (env(RESET, go("n: Literal[1, 2]", "(noop=7)")), "does not fit it"),
    "keys that do not fit": (env(RESET, go("n: Literal[1, 2]", '(keys={"a": {"n": 9}})')), "does not fit it"),
    "a key without a name": (env(RESET, go("n: Literal[1, 2]", '(keys={"": {"n": 1}})')), "is the name of no key"),
    "keys that are no dict": (env(RESET, go("n: Literal[1, 2]", "(keys=7)")), "is not a dict"),
    "sample that is no function": (env(RESET, go("n: int", "(sample=3)")), "is not callable"),
    "__init__ without annotation": (env("def __init__(self, low=1): pass  # !", RESET, GO), "no annotation for 'low'"),
    "__init__ without default": (env("def __init__(self, low: int): pass  # !", RESET, GO), "no default for 'low'"),
    "__init__ takes split": (
        env("def __init__(self, split: str = 'x'): pass  # !", RESET, GO),
        "__init__ takes 'split'",
    ),
    "close with a parameter": (env(RESET, GO, "def close(self, why: str) -> None: ...  # !"), "One.close takes 'why'"),
    "setup_worker that is no classmethod": (
        env(RESET, GO, "def setup_worker(self) -> None: ...  # !"),
        "is not a classmethod",
    ),
    "environment on a function": (
        'app = TaskApp("a")\n@app.environment("one")\ndef one() -> None: ...  # ?',
        "is declared on",
    ),
    "overlapping splits": (
        env(RESET, GO, options=', splits={"a": range(0, 10), "b": range(9, 12)}', marked=True),
        "splits 'a' and 'b' overlap: both hold seed 9",
    ),
    "negative seeds": (
        env(RESET, GO, options=', splits={"a": range(-1, 3)}', marked=True),
        "split 'a' is range(-1, 3)",
    ),
    "an empty split": (env(RESET, GO, options=', splits={"a": range(3, 3)}', marked=True), "split 'a' is range(3, 3)"),
    "splits that are no mapping": (env(RESET, GO, options=", splits=[range(3)]", marked=True), "splits=[range(0, 3)]"),
    "splits that are empty": (env(RESET, GO, options=", splits={}", marked=True), "splits={} is empty"),
    "splits and tasks": (
        env(
            "def reset(self, task: Any) -> str: return 'x'",
            GO,
            options=', splits={"a": range(3)}, tasks={"t": [1]}',
            marked=True,
        ),
        "has both splits= and tasks=",
    ),
    "max_steps of zero": (env(RESET, GO, options=", max_steps=0", marked=True), "max_steps=0"),
    "max_turns that is a bool": (env(RESET, GO, options=", max_turns=True", marked=True), "max_turns=True"),
    "max_refusals of zero": (env(RESET, GO, options=", max_refusals=0", marked=True), "max_refusals=0"),
    "max_turns of tasks": (
        'app = TaskApp("a")\napp.tasks("q", prompt="{q}", train=[{"q": 1}], max_turns=0)  # !',
        "max_turns=0",
    ),
    "a metric named as one of the kit's": (
        GOOD + "@app.metric  # !\ndef steps(trajectory): return 1.0",
        "metric 'steps'",
    ),
    "step timeout that is NaN": (
        env(RESET, GO, options=", step_timeout_seconds=math.nan", marked=True),
        "step_timeout_seconds=nan",
    ),
    "unknown isolation": (
        env(RESET, GO, options=', isolation="proces"', marked=True),
        "isolation='proces'",
        "did you mean 'process'?",
    ),
    "reward range upside down": (env(RESET, GO, options=", reward_range=(1, 0)", marked=True), "reward_range=(1, 0)"),
    "baselines that are no numbers": (
        env(RESET, GO, options=', baselines={"random": "low"}', marked=True),
        "baselines=",
    ),
    "duplicate environment": (
        GOOD + '@app.environment("one")  # ?\nclass Two(One):\n    """Two."""\n',
        "'one' is declared a second time; the first is at",
    ),
    "environment without a name": (
        env(RESET, GO).replace('"one"', '""').replace(")\nclass", ")  # !\nclass"),
        "has the name ''",
    ),
    "unknown environment in a rubric": (
        GOOD + '@app.rubric(environment="onne")  # !\ndef r(trajectory): return 1.0',
        "for environment 'onne', which is not declared",
        "did you mean 'one'?",
    ),
    "rubric parameter that nothing gives": (
        GOOD + "@app.rubric  # !\ndef r(trajectroy): return 1.0",
        "takes 'trajectroy', which nothing gives",
        "did you mean 'trajectory'?",
    ),
    "outcome rubric that takes a step": (
        GOOD + "@app.rubric  # !\ndef r(step): return 1.0",
        "takes 'step', which nothing gives",
    ),
    "weight below zero": (GOOD + "@app.rubric(weight=-1)  # !\ndef r(trajectory): return 1.0", "weight=-1"),
    "weight NaN": (GOOD + "@app.rubric(weight=math.nan)  # !\ndef r(trajectory): return 1.0", "weight=nan"),
    "weight infinite": (GOOD + "@app.rubric(weight=math.inf)  # !\ndef r(trajectory): return 1.0", "weight=inf"),
    "weight that is words": (GOOD + "@app.rubric(weight='1')  # !\ndef r(trajectory): return 1.0", "weight='1'"),
    "required without weight": (
        GOOD + "@app.rubric(weight=0, required=True)  # !\ndef r(trajectory): return 1.0",
        "required and has weight 0",
    ),
    "unknown kind of rubric": (
        GOOD + "@app.rubric(of='event')  # !\ndef r(trajectory): return 1.0",
        "of='event'",
        "did you mean 'events'?",
    ),
    "scale upside down": (GOOD + "@app.rubric(scale=(1, 0))  # !\ndef r(trajectory): return 1.0", "scale=(1, 0)"),
    "duplicate rubric": (
        GOOD + "@app.rubric\ndef r(trajectory): return 1.0\n@app.rubric(name='r')  # !\ndef s(trajectory): return 1.0",
        "'r' is declared a second time; the first is at",
    ),
    "rubric and judge of one name": (
        GOOD
        + "@app.rubric\ndef r(trajectory): return 1.0\n@app.judge(name='r', weight=0)  # !\ndef s(trajectory):\n    'Good?'",
        "judge 'r' is declared a second time",
    ),
    "judge without a question": (GOOD + "@app.judge(weight=0)  # !\ndef j(trajectory): return ''", "has no docstring"),
    "a model's role that is not one": (
        env(RESET, GO, options=", models=('user', 'A user')", marked=True),
        "models=('user', 'A user')",
    ),
    "judge with no samples": (
        GOOD + "@app.judge(weight=0, samples=0)  # !\ndef j(trajectory):\n    'Good?'",
        "samples=0",
    ),
    "gold that takes the seed": (
        GOOD + "@app.policy('gold')  # !\ndef p(observation, seed): return {}",
        "takes 'seed', which nothing gives",
    ),
    "policy that takes what it must not": (
        GOOD + "@app.policy('mine')  # !\ndef p(observation, rng, task): return {}",
        "takes 'task', which nothing gives",
    ),
    "metric that takes what nothing gives": (
        GOOD + "@app.metric  # !\ndef m(trajektory): return 1",
        "takes 'trajektory'",
        "did you mean 'trajectory'?",
    ),
    "published is no number": (
        GOOD + '@app.aggregate(published={"a paper": {"score": float("nan")}})  # !\ndef g(rollouts): return 1',
        "has published=",
    ),
    "aggregate of two": (GOOD + "@app.aggregate  # !\ndef g(rollouts, more): return 1", "takes rollouts, more"),
    "rollout that does not await": (
        GOOD + "@app.rollout  # !\ndef play(env, model, task): ...",
        "needs an async function",
    ),
    "a constructor that awaits": (
        GOOD.replace("    def reset(self", "    async def __init__(self): ...  # !\n    def reset(self", 1),
        "__init__ is async",
    ),
    "two rollout functions": (
        GOOD
        + "@app.rollout\nasync def play(env, model, task): ...\n@app.rollout()  # !\nasync def other(env, model, task): ...",
        "is declared a second time",
    ),
    "blend of nothing": (GOOD.replace('TaskApp("a")', 'TaskApp("a", reward=Blend())  # !'), "reward=Blend("),
    "blend with NaN": (GOOD.replace('TaskApp("a")', 'TaskApp("a", reward=Blend(env=math.nan))  # !'), "reward=Blend("),
    "private field in a prompt": (
        'app = TaskApp("a")\nclass Row(BaseModel):\n    q: str\n    a: Private[str]\n'
        'app.tasks("t", row=Row, prompt="{q} {a}", train=[Row(q="1", a="2")])  # !',
        "shows private field 'a'",
    ),
    "optional private field in a prompt": (
        'app = TaskApp("a")\nclass Row(BaseModel):\n    q: str\n    a: Private[str] | None = None\n'
        'app.tasks("t", row=Row, prompt="{q} {a}", train=[Row(q="1", a="2")])  # !',
        "shows private field 'a'",
    ),
    "prompt with a field that rows do not have": (
        'app = TaskApp("a")\nclass Row(BaseModel):\n    question: str\n'
        'app.tasks("t", row=Row, prompt="{questoin}", train=[Row(question="1")])  # !',
        "names 'questoin', which rows do not have",
        "did you mean 'question'?",
    ),
    "prompt with single braces": (
        'app = TaskApp("a")\napp.tasks("t", prompt="Say } now", train=[{"q": 1}])  # !',
        "is not a format string",
    ),
    "prompt that does not fit the rows": (
        'app = TaskApp("a")\napp.tasks("t", prompt="{q.text}", train=[{"q": 1}])  # !',
        "does not fit row 0 of split 'train'",
    ),
    "prompt that is no prompt": (
        'app = TaskApp("a")\napp.tasks("t", prompt=3, train=[{"q": 1}])  # !',
        "have prompt=3",
    ),
    "tasks without a split": ('app = TaskApp("a")\napp.tasks("t", prompt="x")  # !', "has no split"),
    "a rubric file that is not there": (GOOD + 'app.load_rubric("no.toml")', "cannot be read"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported_with_its_place_and_what_to_do(name: str, tmp_path: Path) -> None:
    source, found, *fix = MISTAKES[name]
    app = app_from(tmp_path, source)
    with pytest.raises(DeclarationError) as caught:
        app.freeze()
    file = tmp_path / "app.py"
    marked = [f"{file}:{number}" for number, line in enumerate(file.read_text().splitlines(), 1) if "# !" in line]
    told = [problem for problem in caught.value.problems if found in problem.found]
    assert told, [problem.found for problem in caught.value.problems]
    assert told[0].fix in fix if fix else told[0].fix
    assert all(problem.expected for problem in caught.value.problems)
    if marked:
        assert {re.sub(r" \(row \d+\)$", "", problem.place) for problem in caught.value.problems} == set(marked)
        assert marked[0] in str(caught.value)
    else:
        assert str(tmp_path) in told[0].place


def test_many_mistakes_are_told_at_once_in_the_order_of_their_lines(tmp_path: Path) -> None:
    source = GOOD + "\n".join(f"@app.rubric(weight=-{i})  # {i}\ndef r{i}(trajectory): return 1.0" for i in range(1, 6))
    source += "\n@app.policy('p')\ndef p(obs): return {}\n"
    with pytest.raises(DeclarationError) as caught:
        app_from(tmp_path, source).freeze()
    problems = caught.value.problems
    lines = [int(problem.place.rsplit(":", 1)[1]) for problem in problems]
    assert len(problems) == 6
    assert lines == sorted(lines)
    assert lines[0] < 100 and "6 problems" in str(caught.value)
    assert str(caught.value).count("\n    do: ") + str(caught.value).count("\n      do: ") == 6


MISSPELT = """
app = TaskApp("a")
@app.environment("one", max_step=3)
class One:
    \"\"\"One.\"\"\"
    def reset(self, seed: int) -> str:
        return "x"
    @action(nop={"n": 1})
    def go(self, n: Literal[1, 2]) -> Step:
        \"\"\"Goes.\"\"\"
        return Step("y", 1.0, True)
@app.rubric(wieght=2)
def won(trajectory): return 1.0
@app.judge(sample=2, weight=0)
def polite(answer_text):
    \"\"\"Is it polite?\"\"\"
    return answer_text
@app.policy("gold", enviroment="one")
def gold(observation): return {"go": {"n": 1}}
@app.metric(nam="m")
def m(trajectory): return 1.0
@app.aggregate(publish={})
def n(rollouts): return 1.0
@app.rollout(anything=1)
async def loop(env, model): ...
"""


def test_misspelt_keywords_are_problems_of_the_one_report(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError) as caught:
        app_from(tmp_path, MISSPELT).freeze()
    found = {
        problem.found.split("'")[1]: problem.fix.rpartition("'")[0].rpartition("'")[2]
        for problem in caught.value.problems
    }
    assert found == {
        "max_step": "max_steps", "nop": "noop", "wieght": "weight", "sample": "samples", "enviroment": "environment",
        "nam": "name", "publish": "published", "anything": "",
    }  # fmt: skip


def test_the_order_is_by_number_not_by_letter(tmp_path: Path) -> None:
    source = "app = TaskApp('a')\n" + "\n".join(f"app.tasks('t{i}', prompt='x', train=[])" for i in range(12))
    with pytest.raises(DeclarationError) as caught:
        app_from(tmp_path, source, header="from taskapp_kit import TaskApp\n").freeze()
    lines = [int(problem.place.rsplit(":", 1)[1]) for problem in caught.value.problems]
    assert lines == list(range(3, 15))


def test_a_good_file_freezes_once_and_late_registration_says_why(tmp_path: Path) -> None:
    app = app_from(tmp_path, GOOD)
    spec = app.freeze()
    assert app.freeze() is spec
    assert app.frozen
    with pytest.raises(LateRegistration) as caught:

        @app.rubric
        def late(trajectory: object) -> float:
            return 1.0

    line = late_line()
    assert f"test_freeze.py:{line}" in str(caught.value)
    assert "began to serve" in str(caught.value) and "before asgi()" in caught.value.hint
    assert not spec.criteria


def late_line() -> int:
    text = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(text, 1) if line.strip() == "@app.rubric")


def test_a_failed_freeze_can_be_mended(tmp_path: Path) -> None:
    app = app_from(tmp_path, "app = TaskApp('a')\n")
    with pytest.raises(DeclarationError):
        app.freeze()
    app.tasks("t", prompt="{q}", train=[{"q": "1"}])
    assert freeze(app).environments.keys() == {"t"}


def test_one_name_may_serve_two_environments_apart(tmp_path: Path) -> None:
    source = GOOD + (
        '@app.environment("two")\nclass Two(One):\n    """Two."""\n'
        '@app.policy("gold", environment="one")\ndef g1(observation): return {"go": {"n": 1}}\n'
        '@app.policy("gold", environment="two")\ndef g2(observation): return {"go": {"n": 2}}\n'
        '@app.rubric(name="won", environment="one")\ndef w1(trajectory): return 1.0\n'
        '@app.rubric(name="won", environment="two")\ndef w2(trajectory): return 0.5\n'
    )
    app = app_from(tmp_path, source)
    one, two = play(app, "gold", env_name="one"), play(app, "gold", env_name="two")
    assert [step.args for step in one.trajectory.steps + two.trajectory.steps] == [{"n": 1}, {"n": 2}]
    assert (one.scorecard.reward, two.scorecard.reward) == (1.0, 0.5)
    app = app_from(tmp_path, source + '@app.policy("gold")\ndef g3(observation): return {}\n', name="again.py")
    with pytest.raises(DeclarationError, match="'gold' .*second"):
        app.freeze()


def test_a_rubrics_own_defaults_stay_its_own(tmp_path: Path) -> None:
    source = GOOD + (
        "for name in ('a', 'b'):\n    @app.rubric(name=name)\n"
        "    def r(trajectory, name=name): return 1.0 if name == 'a' else 0.0\n"
    )
    card = play(app_from(tmp_path, source)).scorecard
    assert {item.name: item.score for item in card.criteria} == {"a": 1.0, "b": 0.0}


def test_an_unbounded_field_makes_random_unavailable_and_names_the_line(tmp_path: Path) -> None:
    from taskapp_kit import RequestError

    source = env(
        RESET, '@action  # !\n    def go(self, word: str) -> Step:\n        """G."""\n        return Step("", 0, True)'
    )
    app = app_from(tmp_path, source)
    with pytest.raises(RequestError) as caught:
        play(app, "random")
    line = next(n for n, text in enumerate((tmp_path / "app.py").read_text().splitlines(), 1) if "# !" in text)
    assert f"action 'go' at app.py:{line}: " in caught.value.message and "go.word (string)" in caught.value.message
    assert str(tmp_path) not in str(caught.value), "the caller of a server is not told where it keeps the file"
    assert "@action(sample=fn)" in caught.value.hint


def test_the_description_is_the_apps_or_the_files_docstring(tmp_path: Path) -> None:
    tasks = "app = TaskApp('a'{})\napp.tasks('t', prompt='x', train=[{{}}])\n"
    one = app_from(tmp_path, tasks.format(""), header='"""Of the file."""\n' + HEADER, name="one.py")
    two = app_from(tmp_path, tasks.format(", description='Of the app.'"), name="two.py")
    three = app_from(tmp_path, tasks.format(""), name="three.py")
    assert [app.freeze().description for app in (one, two, three)] == ["Of the file.", "Of the app.", "a"]


def test_process_isolation_needs_no_warning(tmp_path: Path) -> None:
    spec = app_from(tmp_path, env(RESET, GO, options=', isolation="process", step_timeout_seconds=2')).freeze()
    assert (spec.default_environment.isolation, spec.default_environment.step_timeout_seconds) == ("process", 2)
    assert not spec.warnings


def test_the_spec_hash_follows_the_rules_and_not_the_place(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    one = app_from(tmp_path, GOOD).freeze().hash
    assert one == app_from(tmp_path / "b", "\n\n" + GOOD).freeze().hash
    changed = {
        GOOD.replace("Goes.", "Runs."),
        GOOD.replace("[1, 2]", "[1, 2, 3]"),
        GOOD.replace('"one"', '"one", max_steps=3'),
    }
    hashes = {app_from(tmp_path, text, name=f"c{i}.py").freeze().hash for i, text in enumerate(sorted(changed))}
    assert len(hashes | {one}) == 4
