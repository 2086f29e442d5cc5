"""TRL's `GRPOTrainer` with `environment_factory`: its tool loop, rewards and advantages, with a sampler that reads a script."""

from __future__ import annotations

import json
import logging
import math
import os
import tempfile
import threading
import urllib.request
from typing import Any

import datasets
import transformers
import trl
from client_program import Episode, Server, run
from trl.chat_template_utils import qwen3_chat_template

from taskapp_kit.interop.trl.environment import OVER, environment_factory
from taskapp_kit.train.models.sources import BUNDLED

PROMPT = "Play.\n\n"
LONGEST = 200_000
PLAYING = threading.Lock()


class Reasons(logging.Handler):
    """What our log reports about rollouts without a reward, which the model and the trainer do not see."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class Scripted(trl.GRPOTrainer):
    """Sample the answers of the server's model."""

    address: str
    offered: list[Any]

    def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
        return [self._next(self._tokenizer.decode(ids)) for ids in prompt_ids], None

    def _next(self, text: str) -> list[int]:
        said = ""
        latest = text.rpartition("<tool_response>")[2]
        if OVER not in latest and "not available" not in latest:
            turns = text.count("<|im_start|>assistant") - 1
            messages = [{"role": "user", "content": text}, *[{"role": "assistant", "content": "…"}] * turns]
            body = json.dumps({"model": "m", "messages": messages, "tools": self.offered}).encode()
            request = urllib.request.Request(
                f"{self.address}/chat/completions", body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request) as answer:
                call = json.load(answer)["choices"][0]["message"]["tool_calls"][0]["function"]
            asked = {"name": call["name"], "arguments": json.loads(call["arguments"])}
            said = f"<tool_call>\n{json.dumps(asked)}\n</tool_call>"
        ids: list[int] = self._tokenizer.encode(said, add_special_tokens=False)
        return [*ids, self._tokenizer.eos_token_id]

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, ids: Any) -> Any:
        paid = super()._calculate_rewards(inputs, prompts, completions, ids)
        self.played = list(zip(prompts, completions, self.environments, paid[:, 0].tolist(), strict=True))
        return paid


def tokenizer() -> Any:
    folder = BUNDLED["tiny"]
    made = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    ids = transformers.AutoConfig.from_pretrained(str(folder))
    made.pad_token = made.convert_ids_to_tokens(ids.pad_token_id)
    made.eos_token = made.convert_ids_to_tokens(ids.eos_token_id)
    made.chat_template = qwen3_chat_template
    return made


def play(server: Server, episodes: list[Episode]) -> None:
    with PLAYING, tempfile.TemporaryDirectory() as folder:
        os.environ["MATRIX_KEY"] = server.key
        words = tokenizer()
        sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
        config = transformers.LlamaConfig(vocab_size=len(words), max_position_embeddings=LONGEST, **sizes)
        rows = [
            {"prompt": [{"role": "user", "content": PROMPT}], "seed": one.seed} for one in episodes for _ in range(2)
        ]
        trainer = Scripted(
            model=transformers.LlamaForCausalLM(config),
            processing_class=words,
            train_dataset=datasets.Dataset.from_list(rows),
            environment_factory=environment_factory(server.url, episodes[0].environment, key_variable="MATRIX_KEY"),
            args=trl.GRPOConfig(
                output_dir=folder, report_to=[], use_cpu=True, bf16=False, num_generations=2,
                per_device_train_batch_size=len(rows), max_completion_length=LONGEST,
            ),
        )  # fmt: skip
        trainer.address = server.model
        trainer.offered = [
            {"type": "function", "function": {"name": tool.__name__, "parameters": {"type": "object"}}}
            for tool in trainer.tools
        ]
        reasons = Reasons()
        logging.getLogger("taskapp_kit.trl").addHandler(reasons)
        scored = trainer._generate_and_score_completions(rows)
        logging.getLogger("taskapp_kit.trl").removeHandler(reasons)
    for episode, (prompt, completion, env, reward), advantage in zip(
        episodes, trainer.played[::2], scored["advantages"].tolist()[::2], strict=True
    ):
        episode.observed(prompt[-1]["content"].removeprefix(PROMPT))
        shown = [message["content"] for message in completion if message["role"] == "tool"]
        if math.isnan(reward):
            assert advantage == 0.0, "TRL masks it"
            episode.failed("None", " ".join(reasons.texts))
            continue
        for text in shown:
            episode.stepped(text.removesuffix(OVER).removesuffix("\n\n"), None, False)
        episode.done = OVER in shown[-1]
        episode.more(reward=reward, digest=env._episode["digest"])


if __name__ == "__main__":
    run("trl", play, together=True)
