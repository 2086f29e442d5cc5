"""Serves an environment with an ORS server of others, for `from_ors`; prints the port, then runs until stdin closes.

python ors_served.py openreward|ors-sdk
"""

import os
import random
import sys
from importlib.metadata import version

from pydantic import BaseModel
from stdin_server import serve

DISTRIBUTION = sys.argv[1]
os.environ["OPENREWARD_DISABLE_UPDATE_CHECK"] = "1"
if DISTRIBUTION == "openreward":
    from openreward.environments import Environment, Server, Split, TextBlock, ToolOutput, tool
else:
    from ors import Environment, Server, Split, TextBlock, ToolOutput, tool


class Amount(BaseModel):
    """How much."""

    amount: int
    how: str = "pay"


class Counting(Environment):
    """Counts up to a target of the task's seed."""

    @classmethod
    def list_splits(cls):
        return [Split(name="train", type="train"), Split(name="test", type="test")]

    @classmethod
    def list_tasks(cls, split):
        begin = 0 if split == "train" else 100
        return [{"seed": seed} for seed in range(begin, begin + (20 if split == "train" else 5))]

    def setup(self):
        self.target = random.Random(self.task_spec["seed"]).randint(3, 9)
        self.count = 0

    def get_prompt(self):
        return [TextBlock(text=f"Count to {self.target}.")]

    @tool
    def add(self, given: Amount) -> ToolOutput:
        """Add an amount."""
        if given.how == "raise":
            raise OSError("sentinel-detail")
        self.count += given.amount
        over = self.count >= self.target
        reward = None if given.how == "null" else 0.125 + over * (self.count == self.target)
        text = f"at {self.count} of {self.target}" + "  ." * (3000 if given.how == "long" else 0)
        return ToolOutput(blocks=[TextBlock(text=text)], reward=reward, finished=over, metadata={"count": self.count})


serve(Server([Counting]).app, f"{DISTRIBUTION} {version(DISTRIBUTION)}")
