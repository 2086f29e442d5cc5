"""A taskset with its own environment, as games have it, which `from_verifiers` rejects."""

import verifiers.v1 as vf
from vf_sums import Sum, SumTask


class Games(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        yield SumTask(Sum(prompt="go", expected=1), self.config.task)


class GamesEnv(vf.Env[vf.EnvConfig]):
    async def run(self, task, agents):
        return None


__all__ = ["Games", "GamesEnv"]
