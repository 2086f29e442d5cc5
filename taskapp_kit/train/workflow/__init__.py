"""The parts of a training workflow as services, for custom loops: data, policy, reward, replay buffer and trainer.

    DataLoader.as_service([("The lamp is wet.", "c"), …])           sample() -> (prompt, target)
    Policy.as_service("tiny", system="Which key?", max_tokens=4)    generate(prompt) -> Response
    RewardActor.as_service(correct)                                 evaluate_response(prompt, response, target) -> float
    ReplayBuffer.as_service(batch_size=64)                          add(Episode(…)); sample() -> episodes, or None
    Trainer.as_service("tiny", learning_rate=1e-3, beta=0.05)       train_step(episodes) -> loss; push_weights(version)

Each class documents its constructor. To set options of a service, call `options(num_replicas=…, with_gpus=…)` before
`as_service`. Policies may have several replicas, but the trainer and the replay buffer have one. Policies and the
trainer share weights through files in a temporary directory, or in a directory that is passed to them as `folder`. The
following program trains a model in a minute on a CPU:

    import asyncio

    from taskapp_kit.train.workflow import DataLoader, Episode, Policy, ReplayBuffer, RewardActor, Trainer, evaluate

    KEYS = {"lamp": "c", "door": "b", "bell": "d", "coin": "c"}
    STATES = ("wet", "old", "red", "big", "new", "hot", "odd", "far", "shy", "raw", "dim", "low")
    ROWS = [(f"The {thing} is {state}.", key) for thing, key in KEYS.items() for state in STATES]
    HELD_OUT = [row for number, row in enumerate(ROWS) if number % 5 == 0]
    TRAIN = [row for row in ROWS if row not in HELD_OUT]

    def correct(prompt, response, target):
        return float(response.strip() == target)

    async def generate_episode(dataloader, policy, reward, replay_buffer):
        prompt, target = await dataloader.sample.route()
        response = await policy.generate.route(prompt)
        value = await reward.evaluate_response.route(prompt=prompt, response=response.text, target=target)
        await replay_buffer.add.route(
            Episode(response.prompt_ids, response.token_ids, value, log_probs=response.log_probs, version=response.version)
        )

    async def main(batch_size=64, updates=40):
        dataloader, reward = DataLoader.as_service(TRAIN), RewardActor.as_service(correct)
        policy = Policy.as_service("tiny", system="Which key?", max_tokens=4, seed=0)
        trainer, replay_buffer = Trainer.as_service("tiny", learning_rate=1e-3, beta=0.05), ReplayBuffer.as_service()
        print(await evaluate(policy, rows=HELD_OUT))
        for version in range(updates):
            for _ in range(batch_size):
                await generate_episode(dataloader, policy, reward, replay_buffer)
            batch = await replay_buffer.sample.route(curr_policy_version=version, batch_size=batch_size)
            await trainer.train_step.route(batch)
            await trainer.push_weights.route(version + 1)
            await policy.update_weights.fanout(version + 1)
        print(await evaluate(policy, rows=HELD_OUT))

    if __name__ == "__main__":
        asyncio.run(main())
"""

from taskapp_kit.services.rewards import RewardActor
from taskapp_kit.train.workflow.data_loader import DataLoader, evaluate
from taskapp_kit.train.workflow.episode import Episode, Response
from taskapp_kit.train.workflow.policy import Policy, PolicyActor
from taskapp_kit.train.workflow.replay_buffer import ReplayBuffer
from taskapp_kit.train.workflow.trainer import Trainer

__all__ = [
    "DataLoader",
    "Episode",
    "Policy",
    "PolicyActor",
    "ReplayBuffer",
    "Response",
    "RewardActor",
    "Trainer",
    "evaluate",
]
