"""Inspect: tasks of `inspect_task`, evaluated with its own `eval` and model provider."""

from __future__ import annotations

import math
import threading

from client_program import Episode, Server, run
from inspect_ai import eval as evaluate
from inspect_ai.log import read_eval_log
from inspect_ai.model import get_model

from taskapp_kit.interop.inspect.task import inspect_task

EVALUATING = threading.Lock()
"""Inspect runs one evaluation at a time."""


def play(server: Server, episodes: list[Episode]) -> None:
    with EVALUATING:
        task = inspect_task(
            server.app,
            environment=episodes[0].environment,
            split="train",
            seeds=[episode.seed for episode in episodes],
        )
        model = get_model("openai-api/mock/m", base_url=server.model, api_key="none", memoize=False)
        options = {"fail_on_error": False, "max_samples": len(episodes), "display": "none", "log_level": "error"}
        (log,) = evaluate(task, model=model, log_dir="inspect-logs", **options)
    samples = {sample.metadata["seed"]: sample for sample in read_eval_log(log.location).samples}
    for episode in episodes:
        sample = samples[episode.seed]
        shown = [message for message in sample.messages if message.role in ("user", "tool")]
        if shown:
            episode.observed(shown[0].text)
        for message in shown[1:]:
            episode.stepped(message.text, None, False)
        if sample.error is not None:
            episode.failed("sample error", sample.error.message)
            episode.more(reward=next((score.value for score in (sample.scores or {}).values()), None))
            continue
        result = sample.metadata["taskapp"]
        reward = sample.scores["reward"].value
        episode.done = result["status"] in ("terminated", "truncated")
        episode.more(reward="nan" if math.isnan(reward) else reward, digest=result["digest"])


if __name__ == "__main__":
    run("inspect-ai", play, together=True)
