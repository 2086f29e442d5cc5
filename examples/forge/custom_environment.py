# Has a block of TorchForge's guide. (c) Meta Platforms, Inc. and affiliates, BSD 3-Clause: see THIRD_PARTY.md.
"""A custom environment as a service, and a policy that acts in it.

python examples/forge/custom_environment.py
"""

import asyncio

from configuration import COMBINATIONS, KEYS, policy

from taskapp_kit.services import Actor, endpoint

initial_state = 0


class CustomEnv(Actor, stateful=True):
    def __init__(self):
        # Initialize your environment
        self.state = initial_state

    @endpoint
    async def reset(self):
        """Reset environment to initial state."""
        self.state = initial_state
        return self._shown()

    @endpoint
    async def step(self, action):
        """Execute action and return (observation, reward, done)."""
        # Your environment logic here
        thing, _ = COMBINATIONS[self.state]
        self.state += 1
        observation, reward, done = self._shown(), float(action.strip() == KEYS[thing]), self.state == 8
        return observation, reward, done

    def _shown(self):
        return "The {} is {}.".format(*COMBINATIONS[self.state])


# Deploy as a service
env = CustomEnv.options(
    procs=1,
    num_replicas=16
).as_service()


async def use_in_training(env) -> float:
    done, total = False, 0.0

    # Use in training
    obs = await env.reset.route()
    while not done:
        action = await policy.act.route(obs)
        obs, reward, done = await env.step.route(action)
        total += reward
    return total


async def main() -> None:
    async with env:

        async def episode() -> float:
            async with env.session() as session:  # a separate instance
                return await use_in_training(session)

        rewards = await asyncio.gather(*(episode() for _ in range(16)))
    print(f"16 episodes on 16 replicas, mean reward {sum(rewards) / 16:.2f} of 8")


if __name__ == "__main__":
    asyncio.run(main())
