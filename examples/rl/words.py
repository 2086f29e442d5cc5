"""Reply with the first of four words. The words, wordings and seeds in the test split are never trained on.

taskapp serve examples/rl/words.py
taskapp eval examples/rl/words.py --policy constant
"""

import random

from taskapp_kit import Step, TaskApp, action
from taskapp_kit.grading import equal_text

app = TaskApp("words", version="1.0.0", description="Reply with the first of four words.")

TRAIN = """
apple arm army art baby back bag ball band bank barn base basket bath beach bear bed bell belt bench bird board boat body
bone book boot bottle bowl box boy brain branch bread brick bridge brother brush bucket bus butter button cake camera camp
candle captain car card castle cat cave chain chair chalk cheese cherry chest chicken child church circle city clay clock
cloth cloud club coach coal coast coat coffee coin collar cook copper corn cotton cow cream crown cup curtain dance desk
dinner doctor dog doll door dragon dream dress drum duck dust eagle ear earth egg engine eye face farm father feather fence
field finger fire fish flag floor flower foot forest fork fox frame friend frog fruit garden gate ghost giant gift girl
glass glove goat gold grass group guard guitar hair hammer hand harbor hat hawk heart hill honey hook horse hospital hotel
house ice ink iron island jacket jail jar jewel judge juice jungle kettle key king kitchen kite knee knife lake lamp land
leaf leather leg lemon letter library light lion lip lock log machine magnet map market mask
"""

TEST = """
meal meat medal metal milk mirror money monkey moon mother mountain mouse mouth mud museum music nail neck needle nest
night nose nurse oak ocean office oil onion orange oven owl page paint palace paper park party path pen pencil pepper piano
pilot pipe plane planet plate pocket poem pond potato prince prison puppet queen rabbit radio rail rain ring river road
robot rock roof room root rope rose salad salt sand school sea seed sheep shelf shell ship shirt shoe shop silk silver
sister skin sky snake snow soap soldier song soup spider spoon spring square stage stair star station steam steel stick
stone storm stove street sugar suit summer sun
"""

TRAIN_WORDS, TEST_WORDS = TRAIN.split(), TEST.split()
EXAMPLE = ("table", "wheel", "tea", "zebra")
"""The worked example at the start of each conversation. Its words do not appear in any question."""

TEMPLATES = {"train": ("{}", "Words: {}", "The list is {}."), "test": ("Four words: {}", "List: {}", "Look at {}")}


@app.environment("words", splits={"train": range(100_000), "test": range(100_000, 110_000)}, max_steps=1)
class Words:
    """Say the first of four words."""

    def reset(self, seed: int, split: str) -> dict:
        rng = random.Random(seed)
        self.words = rng.sample(TRAIN_WORDS if split == "train" else TEST_WORDS, 4)
        return {"template": rng.choice(TEMPLATES[split]), "words": self.words}

    @action(text=True, noop={"text": "nothing"})
    def reply(self, text: str) -> Step:
        """Say one word."""
        return Step(f"It was {self.words[0]}.", reward=equal_text(text, self.words[0]).score, terminated=True)


@app.rollout
async def play(env, model, task):
    """Show a worked example as turns of the conversation, then ask."""
    template = env.observation["template"]
    messages = [
        {"role": "system", "content": "Reply with the first word."},
        {"role": "user", "content": template.format(", ".join(EXAMPLE))},
        {"role": "assistant", "content": EXAMPLE[0]},
        {"role": "user", "content": template.format(", ".join(env.observation["words"]))},
    ]
    reply = await model.chat(messages)
    await env.step("reply", {"text": reply.message["content"] or ""})
