# Has a block of TorchForge's guide. (c) Meta Platforms, Inc. and affiliates, BSD 3-Clause: see THIRD_PARTY.md.
"""Code execution: what a policy writes runs in a sandbox.

python examples/forge/code_execution.py

The guide pays any program that writes nothing to standard error, so that an empty program is paid 1.0: a policy that learns
from this reward learns to write nothing. code_with_tests.py pays for what a program does.
"""

import asyncio

from configuration import MODEL, TRAIN, replay_buffer

from taskapp_kit.services import SandboxedPythonCoder
from taskapp_kit.train.workflow import DataLoader, Episode, Policy

dataloader = DataLoader.as_service([prompt for prompt, _ in TRAIN])
policy = Policy.as_service("tiny", **MODEL)

# Lightweight CPU-only service for parallel execution
coder = SandboxedPythonCoder.options(
    procs=1,
    with_gpus=False,
    num_replicas=16
).as_service()

# In your RL code
async def generate_episode():
    prompt = await dataloader.sample.route()
    code = await policy.generate.route(prompt)

    # Execute safely in sandbox
    stdout, stderr = await coder.execute.route(code)
    reward = 1.0 if stderr == "" else 0.0  # Reward based on execution

    await replay_buffer.add.route(Episode(code.prompt_ids, code.token_ids, reward))


async def main() -> None:
    async with coder:
        await asyncio.gather(*(generate_episode() for _ in range(64)))
        batch = await replay_buffer.sample.route()
        print(f"{len(batch)} programs, mean reward {sum(each.reward for each in batch) / len(batch):.2f}")
        stdout, stderr = await coder.execute.route("")
        print(f"an empty program is paid {1.0 if stderr == '' else 0.0}")


if __name__ == "__main__":
    asyncio.run(main())
