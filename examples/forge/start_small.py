# Has a block of TorchForge's guide. (c) Meta Platforms, Inc. and affiliates, BSD 3-Clause: see THIRD_PARTY.md.
"""Start small: one replica of each part, and ten episodes.

python examples/forge/start_small.py
"""

import asyncio

from configuration import MODEL, dataloader, replay_buffer, right_key
from episode_generation import generate_episode

from taskapp_kit.train.workflow import PolicyActor, RewardActor


async def run() -> None:
    # Single GPU, single replica, synchronous
    policy = PolicyActor.options(procs=1, with_gpus=True).as_service("tiny", **MODEL)
    reward = RewardActor.options(procs=1, with_gpus=True).as_service(right_key)

    # Run a few episodes
    for _ in range(10):
        await generate_episode(dataloader, policy, reward, replay_buffer)

    print(f"{await replay_buffer.size.route()} episodes")


if __name__ == "__main__":
    asyncio.run(run())
