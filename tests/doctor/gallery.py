"""Unsound environments: what is changed in one of three sound ones to make each fault.

`same_seed__clock` is another case of the check `same-seed`.
"""

from __future__ import annotations

HUNT = '''
import contextlib
import os
import random
import struct
import tempfile
import time
import zlib
from typing import Annotated, Any

from pydantic import Field

from taskapp_kit import Image, InvalidAction, Step, TaskApp, Text, Trajectory, Unavailable, action

app = TaskApp("gallery")
SHARED: list[Any] = []


@app.environment("hunt", splits={"train": range(1000), "test": range(1000, 2000)}, max_steps=12)
class Hunt:
    """Find the number from 0 to 999. Each guess is answered with higher or lower."""

    def reset(self, seed: int) -> str:
        rng = random.Random(seed)
        self.target = rng.randrange(1000)
        return f"It is not {(self.target + rng.randrange(1, 999)) % 1000}."

    @action
    def guess(self, number: Annotated[int, Field(ge=0, le=999)]) -> Step:
        """Guess the number."""
        right = number == self.target
        words = "right" if right else "higher" if number < self.target else "lower"
        return Step(words, reward=float(right), terminated=right)
'''

RIDDLES = '''
import re

from pydantic import BaseModel

from taskapp_kit import Private, Step, TaskApp, action

app = TaskApp("gallery")


class Row(BaseModel):
    """One riddle."""

    riddle: str
    answer: Private[str]


RIDDLES = [
    ("It has keys and opens nothing.", "a piano"),
    ("It has teeth and cannot eat.", "the comb"),
    ("The more it dries, the wetter it is.", "a towel"),
    ("It has an eye and cannot see.", "the needle"),
    ("It runs and has no legs.", "a river"),
    ("It has a neck and no head.", "the bottle"),
]
ROWS = [Row(riddle=riddle, answer=answer) for riddle, answer in RIDDLES]


@app.environment("riddles", tasks={"train": ROWS}, row=Row, max_steps=4)
class Riddles:
    """Solve the riddle."""

    def reset(self, task: Row) -> str:
        self.task = task
        return task.riddle

    @action(text=True)
    def say(self, text: str) -> Step:
        """Say the answer."""
        right = re.sub(r"\\W", "", text.lower()) == self.task.answer.replace(" ", "")
        return Step("right" if right else "no", reward=float(right), terminated=right)


@app.policy("gold")
def gold(task: Row) -> str:
    """Says it."""
    return task.answer
'''

CAPITALS = '''
from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("gallery")


class Row(BaseModel):
    """One question."""

    question: str
    answer: Private[str]


CAPITALS = [
    ("France", "Paris"),
    ("Japan", "Tokyo"),
    ("Peru", "Lima"),
    ("Kenya", "Nairobi"),
    ("Norway", "Oslo"),
    ("Cuba", "Havana"),
]
ROWS = [Row(question=f"What is the capital of {country}?", answer=city) for country, city in CAPITALS]
app.tasks("ask", row=Row, prompt="{question} Answer with one word.", train=ROWS)


@app.rubric
def correct(answer_text: str, task: Row) -> float:
    """The capital is named."""
    return float(answer_text.strip().lower() == task.answer.lower())


@app.policy("gold")
def gold(task: Row) -> str:
    """Names it."""
    return task.answer
'''

COIN = '''
from taskapp_kit import Step, TaskApp, action

app = TaskApp("gallery")


@app.environment("coin", splits={"train": range(1000), "test": range(1000, 2000)}, max_steps=1)
class Coin:
    """Say whether the number is even."""

    def reset(self, seed: int) -> str:
        self.seed = seed
        return f"The number is {seed}."

    @action
    def even(self, answer: bool) -> Step:
        """Answer."""
        return Step("", reward=float(answer == (self.seed % 2 == 0)), terminated=True)
'''

CHEST = '''
import random

from taskapp_kit import Step, TaskApp, action

app = TaskApp("gallery")


@app.environment("chest", splits={"train": range(1000), "test": range(1000, 2000)}, max_steps=30)
class Chest:
    """Find the key in one of a million rooms, open the chest, then leave."""

    def reset(self, seed: int) -> str:
        self.room, self.key = random.Random(seed).randrange(10**6), False
        return f"A voice from room {self.room} calls: the key is here."

    @action
    def search(self, room: int) -> Step:
        """Search a room, from 0 to 999999."""
        self.key = self.key or room == self.room
        return Step("a key" if room == self.room else "nothing")

    @action
    def open(self) -> Step:
        """Open the chest with the key."""
        return Step("gold" if self.key else "locked", reward=float(self.key))

    @action
    def leave(self) -> Step:
        """Leave. This ends the episode."""
        return Step("outside", terminated=True)


@app.policy("gold")
def gold(observation: str, rng) -> dict[str, dict[str, int]]:
    """Searches the room that the voice names, opens the chest, and leaves."""
    if observation.startswith("A voice"):
        return {"search": {"room": int(observation.split("room ")[1].split()[0])}}
    return {"open": {}} if observation == "a key" else {"leave": {}}
'''

VAULT = '''
import random

from taskapp_kit import Step, TaskApp, action

app = TaskApp("gallery")


@app.environment("vault", splits={"train": range(1000), "test": range(1000, 2000)}, max_steps=4)
class Vault:
    """The key with the highest number fits."""

    def reset(self, seed: int) -> str:
        self.keys = random.Random(seed).sample(range(1000, 10000), 5)
        return f"keys: {', '.join(map(str, self.keys))}"

    @action(sample=lambda rng: {"key": str(rng.randrange(1000, 10000))})
    def unlock(self, key: str) -> Step:
        """Try a key. This ends the episode."""
        return Step("tried", reward=float(str(max(self.keys)) in key), terminated=True)


@app.policy("gold")
def gold(observation: str) -> dict[str, dict[str, str]]:
    """Tries the key with the highest number."""
    return {"unlock": {"key": max(observation.removeprefix("keys: ").split(", "))}}
'''

SOUND = {"hunt": HUNT, "riddles": RIDDLES, "capitals": CAPITALS, "coin": COIN}

RESET = "    def reset(self, seed: int) -> str:\n"
"""The lines of HUNT that faults replace or add to."""
RNG = "rng = random.Random(seed)"
SEEN = 'return f"It is not {(self.target + rng.randrange(1, 999)) % 1000}."'
ACTION = "    @action\n    def guess(self, number: Annotated[int, Field(ge=0, le=999)]) -> Step:\n"
RIGHT = "right = number == self.target"
STEP = "return Step(words, reward=float(right), terminated=right)"
LIMIT = ", max_steps=12)"


def fault(sound: str, changes: dict[str, str] | None = None, more: str = "") -> str:
    """A module that is unsound. changes: text that occurs once to what replaces it. more: what is added at the end."""
    for before, after in (changes or {}).items():
        assert sound.count(before) == 1, before
        sound = sound.replace(before, after)
    return sound + more


def first(line: str, before: str) -> str:
    """A line of a method, and then the line that was there."""
    return f"{line}\n        {before}"


UNSOUND = {
    # A file is closed in the last step alone.
    "abort_frees": fault(
        HUNT,
        {
            RNG: first("self.file, self.left = os.open(os.devnull, os.O_RDONLY), 12", RNG),
            RIGHT: f"""self.left -= 1
        if self.left == 0 or number == self.target:
            os.close(self.file)
        {RIGHT}""",
        },
    ),
    # An answer that contains the capital is right, whatever else it says.
    "attack": fault(
        CAPITALS,
        {
            "float(answer_text.strip().lower() == task.answer.lower())": "float(task.answer.lower() in answer_text.lower())",
            """

@app.policy("gold")
def gold(task: Row) -> str:
    \"\"\"Names it.\"\"\"
    return task.answer
""": "",
        },
    ),
    # Three letters are enough.
    "attack__prefix": fault(
        CAPITALS,
        {
            "answer_text.strip().lower() == task.answer.lower()": "answer_text.strip().lower()[:3] == task.answer.lower()[:3]"
        },
    ),
    # A line break after the answer makes it wrong.
    "right_refused": fault(
        CAPITALS, {"answer_text.strip().lower() == task.answer.lower()": "answer_text == task.answer"}
    ),
    # A key that contains all numbers fits, too.
    "blind_actions": VAULT,
    # Opening the chest pays each time.
    "repeat_pays": CHEST,
    # The schema allows what the environment refuses: any number but one with four digits.
    "actions_accepted": fault(
        HUNT,
        {
            "le=999": "le=899",
            RIGHT: f"""if number < 1000:
            raise InvalidAction("Give a number of four digits.")
        {RIGHT}""",
        },
    ),
    # Above four episodes at once there is no room, and the words change.
    "at_once": fault(
        HUNT,
        {
            SEEN: first("SHARED.append(self)", SEEN),
            ACTION: f"    def close(self) -> None:\n        SHARED.remove(self)\n\n{ACTION}",
            RIGHT: f"{RIGHT} and len(SHARED) <= 4",
            STEP: """time.sleep(0.001)
        return Step(words if len(SHARED) <= 4 else "busy", reward=float(right), terminated=right)""",
        },
    ),
    # Each guess is paid, so chance earns more than the baseline.
    "baselines": fault(
        HUNT,
        {
            LIMIT: ', max_steps=12, baselines={"random": 0.1})',
            STEP: "return Step(words, reward=1.0 if right else 0.02 * (number % 10), terminated=right)",
        },
    ),
    # close reads a member that reset does not set.
    "close": fault(HUNT, {ACTION: f"    def close(self) -> None:\n        self.file.close()\n\n{ACTION}"}),
    # All instances stay in a list.
    "close_frees": fault(HUNT, {RNG: first("SHARED.append(self)", RNG)}),
    # Each episode makes a temporary folder, and leaves it.
    "close_frees__files": fault(HUNT, {RNG: first("self.folder = tempfile.mkdtemp()", RNG)}),
    # A step takes over half a second.
    "cost": fault(HUNT, {LIMIT: ", max_steps=1)", RIGHT: first("time.sleep(0.55)", RIGHT)}),
    # A criterion with a weight is met by every rollout.
    "criteria_move": fault(
        HUNT,
        more='''
@app.rubric(weight=3)
def found(trajectory: Trajectory) -> float:
    """The number was found."""
    return trajectory.total_reward

@app.rubric
def polite(trajectory: Trajectory) -> float:
    """Nothing rude was said."""
    return 1.0
''',
    ),
    # A criterion of events gives every step the same.
    "criteria_move__events": fault(
        COIN,
        more='''
@app.rubric(of="events")
def polite(step: Step) -> float:
    """Nothing rude was said."""
    return 1.0
''',
    ),
    # An action's argument has no annotation.
    "declarations": fault(HUNT, {"number: Annotated[int, Field(ge=0, le=999)]": "number"}),
    # The rubric reads the first word of an answer that may have none.
    "empty_text": fault(
        CAPITALS, {"answer_text.strip().lower()": "answer_text.strip()[0].lower() + answer_text.strip()[1:].lower()"}
    ),
    # A text's first letter is read, and there may be none.
    "empty_text__argument": fault(
        HUNT,
        {
            ACTION: f'''    @action(sample=lambda rng: {{"letter": rng.choice("ab")}})
    def peek(self, letter: str) -> str:
        """See how often a letter is in the number's name."""
        return f"{{letter[0]}} is {{'even' if self.target % 2 == 0 else 'odd'}}"

{ACTION}''',
        },
    ),
    # Nothing ends an episode but the right number, and no limit is declared.
    "ends": fault(HUNT, {LIMIT: ")", "terminated=right": "terminated=False"}),
    # No limit is declared on purpose, and nothing ends an episode.
    "ends__none": fault(HUNT, {LIMIT: ", max_turns=None)", "terminated=right": "terminated=False"}),
    # reset seeds the generator that all episodes share.
    "global_random": fault(HUNT, {RNG: first("random.seed(seed)", RNG)}),
    # Gold stops at a guess that earns nothing, and chance goes on.
    "gold_better": fault(
        HUNT,
        {
            LIMIT: ', max_steps=12, baselines={"random": 12.0, "constant": 12.0})',
            "reward=float(right)": "reward=float(abs(number - self.target) < 200)",
        },
        '''
@app.policy("gold")
def gold(observation: str, rng: random.Random) -> dict:
    """Guesses well."""
    return {"guess": {"number": 0}}
''',
    ),
    # A rubric is nearly met by whatever is done.
    "idle_scores": fault(
        HUNT,
        more='''
@app.rubric
def tried(trajectory: Trajectory) -> float:
    """Something was tried, and more for the number itself."""
    if not trajectory.length or trajectory.steps[-1].refused:
        return 0.0
    return 0.9 if trajectory.total_reward == 0 else 1.0
''',
    ),
    # Drawing a picture draws from the world's random numbers.
    "images": fault(
        HUNT,
        {
            RESET: "    def reset(self, seed: int, context: Any) -> str:\n",
            RNG: f"{RNG}\n        if context.wants_images:\n            self.noise = rng.random()",
        },
    ),
    # With pictures another world is drawn.
    "images__config": fault(
        HUNT,
        {
            RESET: f"    def __init__(self, image: bool = False) -> None:\n        self.image = image\n\n{RESET}",
            RNG: f"{RNG}\n        if self.image:\n            self.noise = rng.random()",
        },
    ),
    # A step waits for something that never comes.
    "in_time": fault(HUNT, {RIGHT: first("time.sleep(3600)", RIGHT)}),
    # The target lies in the class, which all episodes share.
    "interleaved": fault(
        HUNT, {RESET: f"    target = 0\n\n{RESET}", "self.target = rng.randrange": "Hunt.target = rng.randrange"}
    ),
    # The guesses lie in a list that all episodes share.
    "interleaved__module": fault(
        HUNT,
        {
            RNG: first("SHARED.clear()", RNG),
            STEP: """SHARED.append(number)
        return Step(f"{words}, {len(SHARED)} guesses", reward=float(right), terminated=right)""",
        },
    ),
    # The judge's question has one answer, whatever is read.
    "judge_moves": fault(
        CAPITALS,
        more='''
@app.judge(weight=0)
def polite(answer_text: str) -> str:
    """Is this a text?"""
    return answer_text
''',
    ),
    # The judge reads the question, and not the answer.
    "judge_reads": fault(
        CAPITALS,
        more='''
@app.judge(weight=0)
def polite(task: Row) -> str:
    """Is the answer polite?"""
    return task.question
''',
    ),
    # Each reset adds to a list of the module.
    "memory": fault(HUNT, {RNG: first("SHARED.append(bytes([seed % 256]) * 1_000_000)", RNG)}),
    # Each reset adds a little to a list of the module.
    "memory__little": fault(HUNT, {RNG: first("SHARED.append(bytes([seed % 256]) * 20_000)", RNG)}),
    # A model may give a hint, and its role is not declared.
    "models": fault(
        HUNT,
        {
            RESET: "    def reset(self, seed: int, context: Any) -> str:\n",
            SEEN: f"""with contextlib.suppress(Unavailable):  # plays without a hint
            context.model("guide").ask([{{"role": "user", "content": f"Give a hint about {{self.target}}."}}])
        {SEEN}""",
        },
    ),
    # No limit ends an episode, and refused answers may go on for ever.
    "nonsense_ends": fault(
        HUNT,
        {
            LIMIT: ", max_turns=None, max_refusals=None)",
            RIGHT: first('self.tried = getattr(self, "tried", 0) + 1', RIGHT),
            "terminated=right": "terminated=right or self.tried > 20",
        },
    ),
    # A rubric pays for few mistakes, and who does nothing makes none.
    "nonsense_pays": fault(
        HUNT,
        {"reward=float(right)": "reward=-0.1 + right"},
        '''
@app.rubric
def careful(trajectory: Trajectory) -> float:
    """Few guesses were wrong."""
    return max(0.0, 1 + min(0.0, trajectory.total_reward))
''',
    ),
    # reset returns nothing to read.
    "observation": fault(HUNT, {SEEN: 'return ""'}),
    # The gold policy reads a word that is not there.
    "policies": fault(
        HUNT,
        more='''
@app.policy("gold")
def gold(observation: str) -> dict:
    """Reads the number."""
    return {"guess": {"number": int(observation.split()[7])}}
''',
    ),
    # The gold policy calls a tool that is not there.
    "policies__refused": fault(
        HUNT,
        more='''
@app.policy("gold")
def gold() -> dict:
    """Guesses."""
    return {"gess": {"number": 500}}
''',
    ),
    # The first observation shows the answer; in capitals, with hyphens.
    "private": fault(RIDDLES, {"return task.riddle": 'return f"{task.riddle} (A hint: {task.answer}.)"'}),
    "private__folded": fault(
        RIDDLES,
        {"return task.riddle": """return f"{task.riddle} {task.answer.upper().replace(' ', '-')}\""""},
    ),
    # The info of a step, which is in the answer of the server, has the answer.
    "private__info": fault(RIDDLES, {"terminated=right": 'terminated=right, info={"expected": self.task.answer}'}),
    # The first observation shows the answer, a number.
    "private__number": fault(
        RIDDLES,
        {
            "answer: Private[str]": "answer: Private[int]",
            "ROWS = [Row(riddle=riddle, answer=answer) for riddle, answer in RIDDLES]": """
ROWS = [Row(riddle=f"What is {n} times {n + 7}?", answer=n * (n + 7)) for n in range(12, 22)]""",
            "return task.riddle": 'return f"{task.riddle} (Its checksum is {task.answer}.)"',
            're.sub(r"\\W", "", text.lower()) == self.task.answer.replace(" ", "")': "text.strip() == str(self.task.answer)",
            "return task.answer": "return str(task.answer)",
        },
    ),
    # The description says another limit than the one that holds.
    "prompt_limits": fault(HUNT, {"Each guess is answered with higher or lower.": "You have at most five guesses."}),
    # reward_range promises what no step pays.
    "reward_attainable": fault(
        HUNT,
        {
            LIMIT: ", max_steps=12, reward_range=(0.0, 10.0))",
            STEP: f'words = f"it ={{self.target}}" if number == 499 else words\n        {STEP}',
        },
        '''
@app.policy("gold")
def gold(observation: str, rng: random.Random) -> dict:
    """Guesses well."""
    return {"guess": {"number": int(observation.split("=")[1]) if "=" in observation else 499}}
''',
    ),
    # No step has a reward, and there is no rubric.
    "reward_defined": fault(HUNT, {"reward=float(right), ": ""}),
    # The reward divides by the distance, which may be NaN.
    "reward_finite": fault(HUNT, {"reward=float(right)": 'reward=float("nan") if number > 500 else 0.0'}),
    # A step pays more than the declared range.
    "reward_range": fault(
        HUNT,
        {LIMIT: ", max_steps=12, reward_range=(0.0, 1.0))", "reward=float(right)": "reward=2.0 * (number > 500)"},
    ),
    # A guess of an even number raises.
    "rollout": fault(HUNT, {RIGHT: f"if number % 2 == 0:\n            raise KeyError(number)\n        {RIGHT}"}),
    # One question is there with two answers.
    "rows": fault(
        CAPITALS, {"ROWS = [Row(": 'ROWS = [Row(question="what is the capital of  Peru", answer="Cusco")] + [Row('}
    ),
    # A row of test is one of train, with other spaces.
    "rows__splits": fault(
        CAPITALS,
        {
            "train=ROWS)": """train=ROWS[:4],
    test=[*ROWS[4:], Row(question="what is the capital of  France?", answer="Paris")])""",
        },
    ),
    # The noise of the picture is drawn without a seed.
    "same_picture": fault(
        HUNT,
        {
            RESET: """    def reset(self, seed: int) -> list[Text | Image]:
""",
            SEEN: """words = f"It is not {(self.target + rng.randrange(1, 999)) % 1000}."
        return [Text(words), Image(png(os.urandom(3)))]""",
        },
        '''
def png(pixel: bytes) -> bytes:
    """A picture of one pixel."""
    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\\0" + pixel)), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    ]
    return b"\\x89PNG\\r\\n\\x1a\\n" + b"".join(chunks)
''',
    ),
    # The target is drawn from a generator without a seed.
    "same_seed": fault(HUNT, {RNG: "rng = random.Random()"}),
    # The observation tells the time.
    "same_seed__clock": fault(HUNT, {"Step(words, ": 'Step(f"{words} at {time.perf_counter()}", '}),
    # An observation holds a set, which is not JSON.
    "schema": fault(HUNT, {"Step(words, ": 'Step({"words": {words}}, '}),
    # Each step returns the same list, changed.
    "schema__shared": fault(
        HUNT,
        {
            RNG: first('self.guesses: dict[str, list[int]] = {"guesses": []}', RNG),
            STEP: """self.guesses["guesses"].append(number)
        self.guesses[words] = []
        return Step(self.guesses, reward=float(right), terminated=right)""",
        },
    ),
    # The schema allows any text, and one that is no number raises.
    "schema_accepted": fault(
        HUNT,
        {
            ACTION: """    @action(sample=lambda rng: {"number": str(rng.randrange(1000))})
    def guess(self, number: str) -> Step:
""",
            RIGHT: "right = (number := int(number or 0)) == self.target",
        },
    ),
    # A rubric divides by the steps that had no reward.
    "scoring": fault(
        HUNT,
        more='''
@app.rubric
def quick(trajectory: Trajectory) -> float:
    """Few guesses were needed."""
    return 1 / sum(step.reward for step in trajectory.steps if step.reward)
''',
    ),
    # The target depends on the hash of a text, which each process draws anew.
    "second_process": fault(HUNT, {RNG: 'rng = random.Random(hash(f"seed {seed}"))'}),
    # The seed is not used.
    "seeds_differ": fault(HUNT, {RNG: "rng = random.Random(7)"}),
    # A thousand seeds are five episodes.
    "seeds_differ__few": fault(HUNT, {', "test": range(1000, 2000)': "", RNG: "rng = random.Random(seed % 5)"}),
    # What episodes share cannot be loaded.
    "setup": fault(
        HUNT,
        {
            RESET: f"""    @classmethod
    def setup_worker(cls) -> None:
        raise OSError("no such file")

{RESET}"""
        },
    ),
    # The episodes of test are those of train again.
    "splits": fault(HUNT, {RNG: "rng = random.Random(seed % 1000)"}),
    # The environment has no description.
    "task_info": fault(
        HUNT, {'    """Find the number from 0 to 999. Each guess is answered with higher or lower."""\n\n': ""}
    ),
    # A criterion has no description.
    "task_info__criterion": fault(
        HUNT,
        more="""
@app.rubric
def found(trajectory: Trajectory) -> float:
    return trajectory.total_reward
""",
    ),
}
"""The name of a case to its module."""
