# Has a block of TorchForge's guide. (c) Meta Platforms, Inc. and affiliates, BSD 3-Clause: see THIRD_PARTY.md.
"""Add logging: what each part of an episode takes.

python examples/forge/logging_added.py
"""

import asyncio
import time

from configuration import dataloader, policy, replay_buffer, reward

from taskapp_kit.train.workflow import Episode


async def generate_episode(dataloader, policy, reward, replay_buffer):
    start = time.time()

    prompt, target = await dataloader.sample.route()
    print(f"Sampled prompt in {time.time() - start:.2f}s")

    gen_start = time.time()
    response = await policy.generate.route(prompt)
    print(f"Generated response in {time.time() - gen_start:.2f}s")

    reward_start = time.time()
    reward_value = await reward.evaluate_response.route(prompt, response.text, target)
    print(f"Computed reward in {time.time() - reward_start:.2f}s")

    await replay_buffer.add.route(Episode(response.prompt_ids, response.token_ids, reward_value))
    print(f"Total episode time: {time.time() - start:.2f}s")


async def main() -> None:
    for _ in range(3):
        await generate_episode(dataloader, policy, reward, replay_buffer)


if __name__ == "__main__":
    asyncio.run(main())
