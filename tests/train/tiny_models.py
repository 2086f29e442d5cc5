"""Random-weight models of real architectures, small enough for a test: about 30 000 parameters."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

VOCABULARY = 48
CONTEXT = 64


def tiny_model(seed: int = 0, family: str = "qwen2", spread: float = 0.15, **sizes: Any) -> Any:
    """A model whose weights follow from the seed. spread: of the weights; the larger, the less uniform its choices."""
    config_class, model_class = {"qwen2": (Qwen2Config, Qwen2ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}[
        family
    ]
    config = config_class(
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": CONTEXT,
            "initializer_range": spread,
            "pad_token_id": None,
            "bos_token_id": None,
            "eos_token_id": None,
        }
        | sizes
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return model_class(config).eval()


def same_model(model: Any) -> Any:
    """A copy that shares no weights."""
    return copy.deepcopy(model)
