# Has a block of TorchForge's guide. (c) Meta Platforms, Inc. and affiliates, BSD 3-Clause: see THIRD_PARTY.md.
"""Episode generation: a prompt, an answer, its reward, and what is stored for training.

python examples/forge/episode_generation.py
"""

import asyncio

from configuration import dataloader, policy, replay_buffer, reward

from taskapp_kit.train.workflow import Episode


async def generate_episode(dataloader, policy, reward, replay_buffer):
    # Sample a prompt
    prompt, target = await dataloader.sample.route()

    # Generate response (vLLM handles this efficiently)
    response = await policy.generate.route(prompt)

    # Score the response
    reward_value = await reward.evaluate_response.route(
        prompt=prompt,
        response=response.text,
        target=target
    )

    # Store for training
    await replay_buffer.add.route(
        Episode(
            prompt_ids=response.prompt_ids,
            response_ids=response.token_ids,
            reward=reward_value
        )
    )


async def main() -> None:
    await asyncio.gather(*(generate_episode(dataloader, policy, reward, replay_buffer) for _ in range(64)))
    batch = await replay_buffer.sample.route()
    print(f"{len(batch)} episodes, mean reward {sum(each.reward for each in batch) / len(batch):.3f}")


if __name__ == "__main__":
    asyncio.run(main())
