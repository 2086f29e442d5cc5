# Has a block of TorchForge's guide. (c) Meta Platforms, Inc. and affiliates, BSD 3-Clause: see THIRD_PARTY.md.
"""Warm-up: episodes are collected before the training begins.

python examples/forge/warm_up.py

The guide's training loop generates no episodes, so here rollouts continue concurrently.
"""

import asyncio

from asynchronous_rl import ROLLOUT_LOOPS, continuous_rollouts, continuous_training
from configuration import BATCH, arguments, dataloader, learned, policy, replay_buffer, reward
from episode_generation import generate_episode


async def warmup_then_train(warmup_episodes: int):
    # Collect initial experience
    for _ in range(warmup_episodes):
        await generate_episode(dataloader, policy, reward, replay_buffer)

    # Now start training
    await continuous_training()


async def with_rollouts() -> None:
    """Return the guide's function; after its warm-up has filled the buffer, rollouts continue as in asynchronous_rl.py."""

    async def rollouts() -> None:
        while (await replay_buffer.counts.route()).added < BATCH:
            await asyncio.sleep(0.1)
        await asyncio.gather(*(continuous_rollouts() for _ in range(ROLLOUT_LOOPS)))

    await asyncio.gather(warmup_then_train(BATCH), rollouts())


if __name__ == "__main__":
    asyncio.run(learned(with_rollouts(), arguments(updates=60).updates))
