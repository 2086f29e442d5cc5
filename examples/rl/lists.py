"""Read a list aloud, one word per turn. The words, wordings and seeds in the test split are never trained on.

taskapp serve examples/rl/lists.py
taskapp eval examples/rl/lists.py --model smollm2-135m-q4
"""

import random

from words import TEST_WORDS, TRAIN_WORDS

from taskapp_kit import Step, TaskApp, action
from taskapp_kit.grading import equal_text

app = TaskApp("lists", version="1.0.0", description="Read a list aloud, one word each turn.")

LENGTH = 3
EXAMPLE = ("table", "wheel", "zebra")
"""The worked example at the start of each conversation. Its words do not appear in any list."""

WORDINGS = {"train": ("{}", "Words: {}", "The list is {}."), "test": ("Three words: {}", "List: {}", "Look at {}")}


@app.environment("lists", splits={"train": range(100_000), "test": range(100_000, 110_000)}, max_steps=LENGTH)
class Lists:
    """Say the first word of the list, then the second, then the third."""

    def reset(self, seed: int, split: str) -> dict:
        rng = random.Random(seed)
        self.words = rng.sample(TRAIN_WORDS if split == "train" else TEST_WORDS, LENGTH)
        self.said = 0
        return {"wording": rng.choice(WORDINGS[split]), "words": self.words}

    @action(text=True, noop={"text": "nothing"})
    def say(self, text: str) -> Step:
        """Say one word."""
        right = equal_text(text, self.words[self.said])
        self.said += 1
        return Step("Next.", reward=right.score / LENGTH, terminated=self.said == LENGTH)


@app.rollout
async def read_aloud(env, model, task):
    """Show a worked example as turns of the conversation, then ask for each word in turn."""
    wording = env.observation["wording"]
    messages = [{"role": "system", "content": "Read the list aloud, one word at a time."}]
    request = wording.format(", ".join(EXAMPLE))
    for word in EXAMPLE:
        messages += [{"role": "user", "content": request}, {"role": "assistant", "content": word}]
        request = "Next."
    request = wording.format(", ".join(env.observation["words"]))
    while not env.done:
        reply = await model.chat([*messages, {"role": "user", "content": request}])
        messages += [{"role": "user", "content": request}, reply.message]
        step = await env.step("say", {"text": reply.message["content"] or ""})
        request = step.observation
