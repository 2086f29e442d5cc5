# Has a block of TorchForge's guide. (c) Meta Platforms, Inc. and affiliates, BSD 3-Clause: see THIRD_PARTY.md.
"""Synchronous RL: a batch of episodes, an update, and again.

python examples/forge/synchronous_rl.py
"""

import asyncio

from configuration import BATCH, arguments, dataloader, learned, policy, replay_buffer, reward, trainer
from episode_generation import generate_episode


async def synchronous_rl(batch_size: int):
    """Synchronous on-policy RL: collect batch, then train."""
    version = 0

    while True:
        # Collect a full batch with current policy version
        for _ in range(batch_size):
            await generate_episode(dataloader, policy, reward, replay_buffer)

        # Sample the batch we just collected
        batch = await replay_buffer.sample.route(
            curr_policy_version=version,
            batch_size=batch_size
        )

        # Train on the complete batch
        loss = await trainer.train_step.route(batch)

        # Update weights in lockstep
        await trainer.push_weights.route(version + 1)
        await policy.update_weights.fanout(version + 1)
        version += 1


if __name__ == "__main__":
    asyncio.run(learned(synchronous_rl(BATCH), arguments(updates=60).updates))
