"""Creates the model `tiny`, which is part of the package: python examples/rl/make_tiny.py DIRECTORY

The model is a Llama that reads and writes bytes. It starts with random weights, and supervised learning teaches it
the skills of a pretrained model: answering in ChatML, ending an answer, repeating words, and distinguishing things.
For the task in keys.py, it learns only the format of an answer. The key is drawn at random for each example, so its
answers remain random, and the examples do not contain the combinations in the test split.

The same seed creates the same files with the same release of torch on the same kind of processor. MADE_BY contains the
processor and the release for the files in the package, and the SHA-256 of the weights.
"""

import hashlib
import json
import math
import random
import sys
import time
from pathlib import Path

import torch
from keys import COMBINATIONS, KEYS, STATES
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

SEED = 1
STEPS = 260
BATCH = 48
LEARNING_RATE = 3e-3
LAYOUT = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
THINGS = (*KEYS, "tree", "ring", "wall", "cart", "shoe", "nail", "milk", "sand")
MADE_BY = {
    "torch": "2.13.0 for the CPU, one thread, on an x86-64 processor",
    "sha256": "24ea16c8b128f1d59d5b1a6f1932825536ecccf18efb172371d21ff48bcb7cc2",
}
NOTICE = (
    "A small model of taskapp-kit's own, made by examples/rl/make_tiny.py from random weights: it knows the form of "
    "answers and a few words, for trying out training on a CPU."
)
LETTERS = "abcdefgh"
KEYS_PROMPT = "Which key?"
HELD_OUT = frozenset(COMBINATIONS[72:])
CONFIG = LlamaConfig(
    vocab_size=256 + len(LAYOUT),
    hidden_size=128,
    intermediate_size=320,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=4096,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_id=256 + LAYOUT.index("<|im_end|>"),
    pad_token_id=256 + LAYOUT.index("<|endoftext|>"),
    dtype="bfloat16",
)
TEMPLATE = """{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def byte_letters() -> list[str]:
    """Return the characters that represent the bytes 0 to 255 in the file. Bytes that are not printable start at U+0100."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def tokenizer() -> dict:
    """Return a vocabulary with the 256 bytes, whose ids are their values, and the tokens of the chat format."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 256 + number, "content": name, **flags} for number, name in enumerate(LAYOUT)],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "vocab": {name: number for number, name in enumerate(byte_letters())}, "merges": []},
    }


def ids(text: str) -> list[int]:
    return list(text.encode())


def message(role: str, text: str) -> list[int]:
    return [257, *ids(f"{role}\n{text}"), 258, *ids("\n")]


def example(draw: random.Random, numbers: dict[str, int]) -> tuple[list[int], list[int]]:
    """Return the token ids of a prompt and its answer."""
    while True:
        thing, state = draw.choice(THINGS), draw.choice(STATES)
        if (thing, state) not in HELD_OUT:
            break
    sentence = f"The {thing} is {state}."
    prompt, answer = draw.choice(
        (
            (KEYS_PROMPT, draw.choice(LETTERS)),
            ("Which thing?", thing),
            ("Which state?", state),
            ("Which number?", str(numbers[thing])),
        )
    )
    return (
        message("system", prompt) + message("user", sentence) + [257, *ids("assistant\n")],
        [*ids(answer), 258],
    )


def batch(draw: random.Random, numbers: dict[str, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids, and labels that are -100 for tokens that are not trained on."""
    pairs = [example(draw, numbers) for _ in range(BATCH)]
    longest = max(len(prompt) + len(answer) for prompt, answer in pairs)
    rows, labels = [], []
    for prompt, answer in pairs:
        padding = longest - len(prompt) - len(answer)
        rows.append(prompt + answer + [256] * padding)
        labels.append([-100] * len(prompt) + answer + [-100] * padding)
    return torch.tensor(rows), torch.tensor(labels)


def trained(seed: int) -> LlamaForCausalLM:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
    draw = random.Random(seed)
    numbers = dict(zip(THINGS, draw.sample(range(16), 16), strict=True))
    model = LlamaForCausalLM(CONFIG).float().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    for step in range(STEPS):
        share = min((step + 1) / 50, 0.5 * (1 + math.cos(math.pi * step / STEPS)))
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * share
        rows, labels = batch(draw, numbers)
        loss = model(input_ids=rows, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 49:
            print(f"step {step + 1}: loss {loss.item():.4f}, {time.process_time():.0f} CPU-s", flush=True)
    return model


def main(folder: Path) -> None:
    model = trained(SEED)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: each.detach().bfloat16().contiguous() for name, each in model.named_parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    CONFIG.architectures = ["LlamaForCausalLM"]
    (folder / "config.json").write_text(CONFIG.to_json_string(), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(), indent=1, ensure_ascii=False), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    (folder / "origin.json").write_text(json.dumps({"licence": "Apache-2.0", "notice": NOTICE}), encoding="utf-8")
    print(hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
