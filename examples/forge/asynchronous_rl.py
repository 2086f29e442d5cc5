# Has a block of TorchForge's guide. (c) Meta Platforms, Inc. and affiliates, BSD 3-Clause: see THIRD_PARTY.md.
"""Asynchronous RL: episodes are generated while the weights are updated.

python examples/forge/asynchronous_rl.py
"""

import asyncio

from configuration import arguments, dataloader, learned, policy, replay_buffer, reward, trainer
from episode_generation import generate_episode

ROLLOUT_LOOPS = 16


async def async_rl_loop(num_rollout_loops: int):
    # Multiple concurrent rollout generators
    rollout_tasks = [
        asyncio.create_task(continuous_rollouts())
        for _ in range(num_rollout_loops)
    ]

    # Continuous training
    training_task = asyncio.create_task(continuous_training())

    await asyncio.gather(*rollout_tasks, training_task)

async def continuous_rollouts():
    """Generate rollouts continuously using latest policy."""
    while True:
        await generate_episode(dataloader, policy, reward, replay_buffer)

async def continuous_training():
    """Train continuously on available experience."""
    training_step = 0
    while True:
        batch = await replay_buffer.sample.route(
            curr_policy_version=training_step
        )

        if batch is None:
            await asyncio.sleep(0.1)  # Wait for more experience
        else:
            loss = await trainer.train_step.route(batch)
            training_step += 1

            # Push updated weights (TorchStore handles this)
            await trainer.push_weights.route(training_step)
            # Broadcast to all policy replicas
            await policy.update_weights.fanout(training_step)


if __name__ == "__main__":
    asyncio.run(learned(async_rl_loop(ROLLOUT_LOOPS), arguments(updates=60).updates))
