# Has a block of TorchForge's guide. (c) Meta Platforms, Inc. and affiliates, BSD 3-Clause: see THIRD_PARTY.md.
"""Monitor metrics: rewards and KL divergence of the last hundred.

python examples/forge/metrics.py
"""

import asyncio
from collections import deque

import numpy as np
from configuration import LEARNING, arguments, dataloader, learned, policy, replay_buffer, reward

from taskapp_kit.train.workflow import Episode, Trainer

trainer = Trainer.as_service("tiny", returns="loss_and_kl", **LEARNING)


recent_rewards = deque(maxlen=100)
recent_kls = deque(maxlen=100)

async def continuous_training():
    training_step = 0

    while True:
        batch = await replay_buffer.sample.route()
        if batch:
            loss, kl = await trainer.train_step.route(batch)
            recent_kls.append(kl)

            if training_step % 100 == 0:
                print(f"Step {training_step}")
                print(f"  Avg reward: {np.mean(recent_rewards):.3f}")
                print(f"  Avg KL: {np.mean(recent_kls):.3f}")
                print(f"  Loss: {loss:.3f}")

            training_step += 1
            await trainer.push_weights.route(training_step)
            await policy.update_weights.fanout(training_step)
        else:
            await asyncio.sleep(0.1)


async def continuous_rollouts() -> None:
    """Run concurrent rollouts, whose rewards are counted."""
    while True:
        prompt, target = await dataloader.sample.route()
        response = await policy.generate.route(prompt)
        value = await reward.evaluate_response.route(prompt=prompt, response=response.text, target=target)
        recent_rewards.append(value)
        await replay_buffer.add.route(Episode(response.prompt_ids, response.token_ids, value))


async def with_rollouts() -> None:
    await asyncio.gather(continuous_training(), *(continuous_rollouts() for _ in range(16)))


if __name__ == "__main__":
    asyncio.run(learned(with_rollouts(), arguments(updates=60).updates, trainer=trainer))
