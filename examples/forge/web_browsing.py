# Has a block of TorchForge's guide. (c) Meta Platforms, Inc. and affiliates, BSD 3-Clause: see THIRD_PARTY.md.
"""Tool integration: browsers as a service, in which a policy acts.

python examples/forge/web_browsing.py     (extra `web`, and a Chromium)

The policy clicks at random, because `tiny` cannot read pages. docs/environments/web.md has a job that learns to click.
"""

import asyncio
import random
import re

from configuration import replay_buffer

from taskapp_kit.services import Actor, RewardActor, WebBrowsingEnv, endpoint
from taskapp_kit.train.workflow import Episode

SEEDS = range(4)


class Clicks(Actor):
    """A policy that clicks on any element that has a number."""

    def __init__(self):
        self.rng = random.Random(0)

    @endpoint
    def generate(self, task):
        return {"click": {"bid": int(self.rng.choice(re.findall(r"\[(\d+)\]", task)))}}


class Tasks(Actor):
    """Gives what a window shows at its beginning, one after the other."""

    def __init__(self, pages):
        self.pages = pages

    @endpoint
    def sample(self):
        return self.pages.pop(0)


def reward_of_step(task, result, target):
    return result.reward


# Create a web browsing environment
browser = WebBrowsingEnv.options(
    procs=1,
    with_gpus=False,
    num_replicas=8
).as_service()

# Use it in your RL loop
async def generate_episode():
    task = await dataloader.sample.route()

    # Agent decides on actions
    action = await policy.generate.route(task)

    # Execute action in browser
    result = await browser.execute_action.route(action)

    # Evaluate outcome
    reward = await reward_model.evaluate.route(task, result)

    await replay_buffer.add.route(Episode([*task.encode()], [*str(action).encode()], reward))


async def main() -> None:
    global browser, dataloader, policy, reward_model
    policy, reward_model = Clicks.as_service(), RewardActor.as_service(reward_of_step)
    async with browser as windows:
        for seed in SEEDS:
            async with windows.session() as browser:  # a separate window
                page = await browser.reset.route(seed=seed)
                dataloader = Tasks.as_service([page])
                await generate_episode()
                await dataloader.aclose()
    print(f"{await replay_buffer.size.route()} episodes of one click each")


if __name__ == "__main__":
    asyncio.run(main())
