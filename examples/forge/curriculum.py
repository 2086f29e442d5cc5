# Has a block of TorchForge's guide. (c) Meta Platforms, Inc. and affiliates, BSD 3-Clause: see THIRD_PARTY.md.
"""Curriculum: harder prompts once the easier ones are answered.

python examples/forge/curriculum.py

Difficulty 0 has two things, 1 has four, and 2 all eight. Each level includes the things of lower levels.
"""

import asyncio

from configuration import (
    BATCH,
    COMBINATIONS,
    KEYS,
    arguments,
    learned,
    policy,
    replay_buffer,
    reward,
    trainer,
)

from taskapp_kit.train.workflow import DataLoader, Episode, evaluate

THINGS = {0: 2, 1: 4, 2: 8}
"""Number of different things by difficulty."""


def rows(combinations):
    return [
        (f"The {thing} is {state}.", KEYS[thing], difficulty)
        for difficulty, count in THINGS.items()
        for thing, state in combinations
        if thing in list(KEYS)[:count]
    ]


dataloader = DataLoader.as_service(rows(COMBINATIONS[:72]))
HELD_OUT = rows(COMBINATIONS[72:])
max_difficulty = len(THINGS)
episodes_per_difficulty = 4 * BATCH
evaluate_rows = evaluate


async def generate_episode_with_prompt(prompt, policy, reward, replay_buffer):
    """One episode; a full batch is trained on."""
    prompt, target = prompt
    response = await policy.generate.route(prompt)
    value = await reward.evaluate_response.route(prompt=prompt, response=response.text, target=target)
    await replay_buffer.add.route(Episode(response.prompt_ids, response.token_ids, value))
    batch = await replay_buffer.sample.route()
    if batch is not None:
        await trainer.train_step.route(batch)
        version = (await trainer.metrics.route()).version
        await trainer.push_weights.route(version)
        await policy.update_weights.fanout(version)


async def evaluate(policy, difficulty):
    return await evaluate_rows(policy, difficulty, rows=HELD_OUT, reward=reward)


async def curriculum_training():
    difficulty = 0

    while difficulty < max_difficulty:
        # Train on current difficulty
        for _ in range(episodes_per_difficulty):
            prompt = await dataloader.sample.route(difficulty=difficulty)
            await generate_episode_with_prompt(prompt, policy, reward, replay_buffer)

        # Evaluate performance
        success_rate = await evaluate(policy, difficulty)

        # Move to next difficulty if threshold met
        if success_rate > 0.8:
            difficulty += 1
            print(f"Advanced to difficulty {difficulty}")


if __name__ == "__main__":
    asyncio.run(learned(curriculum_training(), arguments(updates=100).updates))
