# Has a block of TorchForge's guide. (c) Meta Platforms, Inc. and affiliates, BSD 3-Clause: see THIRD_PARTY.md.
"""Evaluation between: the policy is evaluated at regular intervals on prompts that it is not trained on.

python examples/forge/evaluation_between.py
"""

import asyncio

import numpy as np
from configuration import arguments, dataloader, eval_dataloader, learned, policy, replay_buffer, reward, trainer

from taskapp_kit.train.workflow import Episode

EVERY = 640


async def generate_episode(dataloader, policy, reward, replay_buffer):
    prompt, target = await dataloader.sample.route()
    response = await policy.generate.route(prompt)
    reward_value = await reward.evaluate_response.route(prompt=prompt, response=response.text, target=target)
    episode = Episode(prompt_ids=response.prompt_ids, response_ids=response.token_ids, reward=reward_value)
    if replay_buffer is not None:
        await replay_buffer.add.route(episode)
    return episode


async def train_with_eval(eval_interval: int):
    training_step = 0

    while True:
        # Training phase
        for _ in range(eval_interval):
            await generate_episode(dataloader, policy, reward, replay_buffer)
            batch = await replay_buffer.sample.route()
            if batch is None:
                continue
            await trainer.train_step.route(batch)
            training_step += 1
            await trainer.push_weights.route(training_step)
            await policy.update_weights.fanout(training_step)

        # Evaluation phase
        eval_rewards = []
        for _ in range(100):
            episode = await generate_episode(
                eval_dataloader, policy, reward, None  # Don't store in buffer
            )
            eval_rewards.append(episode.reward)

        print(f"Step {training_step}: Eval reward = {np.mean(eval_rewards)}")


if __name__ == "__main__":
    asyncio.run(learned(train_with_eval(EVERY), arguments(updates=60).updates))
