# Has a block of TorchForge's guide. (c) Meta Platforms, Inc. and affiliates, BSD 3-Clause: see THIRD_PARTY.md.
"""Code execution with hidden tests: what a program does decides its reward.

python examples/forge/code_with_tests.py

The policy writes an expression, which completes a program. The program runs in a sandbox, followed by tests that the policy
never sees. This is not a block of the guide, whose reward in code_execution.py is 1.0 for an empty program.

The program and the tests run in one process here. A word that is new each time reports that the tests passed, so a program
that only claims it gets no reward. The environment python_sandbox runs tests in a separate process.
"""

import asyncio
import secrets

from configuration import BATCH, TRAIN, arguments, learned, policy, replay_buffer, trainer

from taskapp_kit.services import SandboxedPythonCoder
from taskapp_kit.train.workflow import DataLoader, Episode

dataloader = DataLoader.as_service(TRAIN)
coder = SandboxedPythonCoder.options(num_replicas=2).as_service()
PROGRAM = "a, b, c, d, e, f, g, h = 'abcdefgh'\nkey = {}\n"
TESTS = "assert key == {!r}\nprint({!r})\n"


async def reward_of(code, target):
    """Return 1.0 where the completed program passes its tests."""
    passed = secrets.token_hex(8)
    program = PROGRAM.format(" ".join(code.split()) or "None") + TESTS.format(target, passed)
    stdout, _ = await coder.execute.route(program)
    return float(stdout == f"{passed}\n")


async def train():
    version = 0
    while True:
        for _ in range(BATCH):
            prompt, target = await dataloader.sample.route()
            response = await policy.generate.route(prompt)
            reward = await reward_of(response.text, target)
            await replay_buffer.add.route(Episode(response.prompt_ids, response.token_ids, reward))
        await trainer.train_step.route(await replay_buffer.sample.route(curr_policy_version=version))
        version += 1
        await trainer.push_weights.route(version)
        await policy.update_weights.fanout(version)


if __name__ == "__main__":
    asyncio.run(learned(train(), arguments(updates=60).updates))
