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


def tasks(arguments: str, row: str = "") -> str:
    """A file with one set of tasks, whose line is the place of the mistake."""
    return f'app = TaskApp("a")\n{row}app.tasks("t", {arguments})  # !\n'


ROW = "class Row(BaseModel):\n    q: str\n    a: Private[str]\n"

# name: the file; each line with a mistake ends in "# !"
MISTAKES: dict[str, str] = {
    "no environment": 'app = TaskApp("a")  # !',
    "no reset": env(GO, marked=True),
    "max_steps that names no parameter": env(RESET, GO, options=", max_steps='length'", marked=True),
    "reset with unknown parameter": env("def reset(self, sede: int) -> str: return 'x'  # !", GO),
    "reset takes task without rows": env("def reset(self, task: Any) -> str: return 'x'  # !", GO),
    "no action": env(RESET, marked=True),
    "action without docstring": env(RESET, "@action  # !\n    def go(self) -> Step: return Step()"),
    "missing annotation": env(RESET, go("n")),
    "annotation that JSON cannot carry": env(RESET, go("n: random.Random")),
    "annotation that cannot be resolved": env(RESET, go('n: "Nowhere"')),
    "annotation that does not parse": env(RESET, go('n: "int |"')),
    "star arguments": env(RESET, go("**rest: int")),
    "positional only": env(RESET, go("n: int, /")),
    "one tool name twice in a class": env(
        RESET, GO, '@action(name="go")  # !\n    def other(self) -> Step:\n        """G."""'
    ),
    "a tool name that models refuse": env(RESET, go("", '(name="go on!")')),
    "an action on a method that the kit calls": env(
        RESET, '@action  # !\n    def close(self) -> Step:\n        """Shut the door."""'
    ),
    "two text actions": env(
        RESET,
        '@action(text=True)\n    def a(self, t: str) -> Step:\n        """G."""',
        '@action(text=True)\n    def b(self, t: str) -> Step:\n        """G."""',
        marked=True,
    ),
    "text action without its str": env(
        RESET, '@action(text=True)  # !\n    def a(self, n: int) -> Step:\n        """G."""'
    ),
    "noop that does not fit": env(RESET, go("n: Literal[1, 2]", '(noop={"n": 9})')),
    "noop that is no object": env(RESET, go("n: Literal[1, 2]", "(noop=7)")),
    "keys that do not fit": env(RESET, go("n: Literal[1, 2]", '(keys={"a": {"n": 9}})')),
    "a key without a name": env(RESET, go("n: Literal[1, 2]", '(keys={"": {"n": 1}})')),
    "keys that are no dict": env(RESET, go("n: Literal[1, 2]", "(keys=7)")),
    "sample that is no function": env(RESET, go("n: int", "(sample=3)")),
    "__init__ without annotation": env("def __init__(self, low=1): pass  # !", RESET, GO),
    "__init__ without default": env("def __init__(self, low: int): pass  # !", RESET, GO),
    "__init__ takes split": env("def __init__(self, split: str = 'x'): pass  # !", RESET, GO),
    "close with a parameter": env(RESET, GO, "def close(self, why: str) -> None: ...  # !"),
    "setup_worker that is no classmethod": env(RESET, GO, "def setup_worker(self) -> None: ...  # !"),
    "environment on a function": 'app = TaskApp("a")\n@app.environment("one")\ndef one() -> None: ...  # ?',
    "overlapping splits": env(RESET, GO, options=', splits={"a": range(0, 10), "b": range(9, 12)}', marked=True),
    "negative seeds": env(RESET, GO, options=', splits={"a": range(-1, 3)}', marked=True),
    "an empty split": env(RESET, GO, options=', splits={"a": range(3, 3)}', marked=True),
    "splits that are no mapping": env(RESET, GO, options=", splits=[range(3)]", marked=True),
    "splits that are empty": env(RESET, GO, options=", splits={}", marked=True),
    "splits and tasks": env(
        "def reset(self, task: Any) -> str: return 'x'",
        GO,
        options=', splits={"a": range(3)}, tasks={"t": [1]}',
        marked=True,
    ),
    "max_steps of zero": env(RESET, GO, options=", max_steps=0", marked=True),
    "max_turns that is a bool": env(RESET, GO, options=", max_turns=True", marked=True),
    "max_refusals of zero": env(RESET, GO, options=", max_refusals=0", marked=True),
    "max_turns of tasks": tasks('prompt="{q}", train=[{"q": 1}], max_turns=0'),
    "a metric named as one of the kit's": GOOD + "@app.metric  # !\ndef steps(trajectory): return 1.0",
    "step timeout that is NaN": env(RESET, GO, options=", step_timeout_seconds=math.nan", marked=True),
    "unknown isolation": env(RESET, GO, options=', isolation="proces"', marked=True),
    "reward range upside down": env(RESET, GO, options=", reward_range=(1, 0)", marked=True),
    "baselines that are no numbers": env(RESET, GO, options=', baselines={"random": "low"}', marked=True),
    "duplicate environment": GOOD + '@app.environment("one")  # ?\nclass Two(One):\n    """Two."""\n',
    "environment without a name": env(RESET, GO).replace('"one"', '""').replace(")\nclass", ")  # !\nclass"),
    "unknown environment in a rubric": GOOD + '@app.rubric(environment="onne")  # !\ndef r(trajectory): return 1.0',
    "rubric parameter that nothing gives": GOOD + "@app.rubric  # !\ndef r(trajectroy): return 1.0",
    "outcome rubric that takes a step": GOOD + "@app.rubric  # !\ndef r(step): return 1.0",
    "weight below zero": GOOD + "@app.rubric(weight=-1)  # !\ndef r(trajectory): return 1.0",
    "weight NaN": GOOD + "@app.rubric(weight=math.nan)  # !\ndef r(trajectory): return 1.0",
    "weight infinite": GOOD + "@app.rubric(weight=math.inf)  # !\ndef r(trajectory): return 1.0",
    "weight that is words": GOOD + "@app.rubric(weight='1')  # !\ndef r(trajectory): return 1.0",
    "required without weight": GOOD + "@app.rubric(weight=0, required=True)  # !\ndef r(trajectory): return 1.0",
    "unknown kind of rubric": GOOD + "@app.rubric(of='event')  # !\ndef r(trajectory): return 1.0",
    "scale upside down": GOOD + "@app.rubric(scale=(1, 0))  # !\ndef r(trajectory): return 1.0",
    "duplicate rubric": (
        GOOD + "@app.rubric\ndef r(trajectory): return 1.0\n@app.rubric(name='r')  # !\ndef s(trajectory): return 1.0"
    ),
    "rubric and judge of one name": (
        GOOD
        + "@app.rubric\ndef r(trajectory): return 1.0\n@app.judge(name='r', weight=0)  # !\ndef s(trajectory):\n    'Good?'"
    ),
    "judge without a question": GOOD + "@app.judge(weight=0)  # !\ndef j(trajectory): return ''",
    "a model's role that is not one": env(RESET, GO, options=", models=('user', 'A user')", marked=True),
    "judge with no samples": GOOD + "@app.judge(weight=0, samples=0)  # !\ndef j(trajectory):\n    'Good?'",
    "gold that takes the seed": GOOD + "@app.policy('gold')  # !\ndef p(observation, seed): return {}",
    "policy that takes what it must not": GOOD + "@app.policy('mine')  # !\ndef p(observation, rng, task): return {}",
    "metric that takes what nothing gives": GOOD + "@app.metric  # !\ndef m(trajektory): return 1",
    "published is no number": (
        GOOD + '@app.aggregate(published={"a paper": {"score": float("nan")}})  # !\ndef g(rollouts): return 1'
    ),
    "aggregate of two": GOOD + "@app.aggregate  # !\ndef g(rollouts, more): return 1",
    "rollout that does not await": GOOD + "@app.rollout  # !\ndef play(env, model, task): ...",
    "a constructor that awaits": GOOD.replace(
        "    def reset(self", "    async def __init__(self): ...  # !\n    def reset(self", 1
    ),
    "two rollout functions": (
        GOOD
        + "@app.rollout\nasync def play(env, model, task): ...\n@app.rollout()  # !\nasync def other(env, model, task): ..."
    ),
    "blend of nothing": GOOD.replace('TaskApp("a")', 'TaskApp("a", reward=Blend())  # !'),
    "blend with NaN": GOOD.replace('TaskApp("a")', 'TaskApp("a", reward=Blend(env=math.nan))  # !'),
    "private field in a prompt": tasks('row=Row, prompt="{q} {a}", train=[Row(q="1", a="2")]', ROW),
    "optional private field in a prompt": tasks(
        'row=Row, prompt="{q} {a}", train=[Row(q="1", a="2")]', ROW.replace("[str]", "[str] | None = None")
    ),
    "prompt with a field that rows do not have": tasks('row=Row, prompt="{qq}", train=[Row(q="1", a="2")]', ROW),
    "prompt with single braces": tasks('prompt="Say } now", train=[{"q": 1}]'),
    "prompt that does not fit the rows": tasks('prompt="{q.text}", train=[{"q": 1}]'),
    "prompt that is no prompt": tasks('prompt=3, train=[{"q": 1}]'),
    "prompt that is misspelt": tasks('promt="{n}", train=[{"n": 1}]'),
    "a type of rows that is misspelt": tasks('rwo=Row, prompt="{q}", train=[{"q": 1}]', ROW),
    "a type of rows that is none": tasks('row=type("Odd", (), {}), prompt="x", train=[1]'),
    "a split that is given twice": tasks('prompt="{n}", train=[{"n": 1}], splits={"train": [{"n": 2}]}'),
    "splits of tasks that are no mapping": tasks('prompt="{n}", splits=[{"n": 1}]'),
    "rows of an environment that are no mapping": env(RESET, GO, options=", tasks=[1]", marked=True),
    "tasks without a split": tasks('prompt="x"'),
    "a rubric file that is not there": GOOD + 'app.load_rubric("no.toml")',
}

FIXES = {
    "reset with unknown parameter": "did you mean 'seed'?",
    "unknown isolation": "did you mean 'process'?",
    "unknown environment in a rubric": "did you mean 'one'?",
    "rubric parameter that nothing gives": "did you mean 'trajectory'?",
    "unknown kind of rubric": "did you mean 'events'?",
    "metric that takes what nothing gives": "did you mean 'trajectory'?",
    "prompt with a field that rows do not have": "did you mean 'q'?",
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported_with_its_place_and_what_to_do(name: str, tmp_path: Path) -> None:
    with pytest.raises(DeclarationError) as caught:
        app_from(tmp_path, MISTAKES[name]).freeze()
    file = tmp_path / "app.py"
    marked = {f"{file}:{number}" for number, line in enumerate(file.read_text().splitlines(), 1) if "# !" in line}
    problems = caught.value.problems
    assert all(problem.found and problem.expected and problem.fix for problem in problems)
    assert FIXES.get(name) in (None, problems[0].fix)
    if marked:
        assert {re.sub(r" \(row \d+\)$", "", problem.place) for problem in problems} == marked
    else:
        assert str(tmp_path) in problems[0].place


def test_all_problems_are_reported_together_in_line_order(tmp_path: Path) -> None:
    source = "app = TaskApp('a')\n@app.policy('p')\ndef p(obs): return {}\n"
    source += "\n".join(f"app.tasks('t{i}', prompt='x', train=[])" for i in range(9))
    with pytest.raises(DeclarationError) as caught:
        app_from(tmp_path, source, header="from taskapp_kit import TaskApp\n").freeze()
    lines = [int(problem.place.rsplit(":", 1)[1]) for problem in caught.value.problems]
    assert lines == list(range(3, 4)) + list(range(5, 14)), "by number: 9 comes before 10"
    assert "10 problems" in str(caught.value)


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
    fixes = [re.findall(r"mean '(\w+)'", problem.fix) for problem in caught.value.problems]
    names = ["max_steps", "noop", "weight", "samples", "environment", "name", "published"]
    assert fixes == [[name] for name in names] + [[]]


def test_valid_file_freezes_once_and_late_registration_raises(tmp_path: Path) -> None:
    app = app_from(tmp_path, GOOD)
    spec = app.freeze()
    assert app.freeze() is spec
    assert app.frozen
    with pytest.raises(LateRegistration, match=r"test_freeze\.py:\d+"):
        app.rubric(lambda trajectory: 1.0)
    assert not spec.criteria


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
    with pytest.raises(DeclarationError, match="'gold' .*twice"):
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
