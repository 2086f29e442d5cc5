# Has a block of TorchForge's guide. (c) Meta Platforms, Inc. and affiliates, BSD 3-Clause: see THIRD_PARTY.md.
"""Several tasks: one policy learns all of them, from batches that mix them.

python examples/forge/several_tasks.py
"""

import asyncio
import random
from typing import List

from configuration import TRAIN, arguments, learned, policy, replay_buffer, reward, trainer
from episode_generation import generate_episode

from taskapp_kit.train.workflow import DataLoader

TASKS = ["lamp", "door", "bell", "coin", "rope", "book", "drum", "fish"]


def create_dataloader(task: str):
    return DataLoader.as_service([row for row in TRAIN if f" {task} " in row[0]])


async def multi_task_training(tasks: List[str]):
    # Create separate dataloaders for each task
    dataloaders = {task: create_dataloader(task) for task in tasks}
    training_step = 0

    while True:
        # Sample task uniformly (or with custom distribution)
        task = random.choice(tasks)
        dataloader = dataloaders[task]

        # Generate episode for this task
        await generate_episode(dataloader, policy, reward, replay_buffer)

        # Train uses mixed experience from all tasks
        batch = await replay_buffer.sample.route()
        if batch is None:
            continue
        await trainer.train_step.route(batch)
        training_step += 1
        await trainer.push_weights.route(training_step)
        await policy.update_weights.fanout(training_step)


if __name__ == "__main__":
    asyncio.run(learned(multi_task_training(TASKS), arguments(updates=60).updates))
