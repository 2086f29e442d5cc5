"""A child process that converts a GGUF file into a model's directory: `dequantise.py FILE DIRECTORY`.

The weights are stored as bfloat16, whose error is smaller than the error of the quantization. Training reads them as
fp32.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def dequantise(file: Path, folder: Path) -> None:
    """Write config.json, model.safetensors, tokenizer.json and chat_template.jinja to an existing directory."""
    read = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name, "local_files_only": True}
    AutoTokenizer.from_pretrained(**read).save_pretrained(folder)
    # without this config, transformers treats the model as quantized and can neither save nor train it
    model = AutoModelForCausalLM.from_pretrained(
        **read, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(folder)


if __name__ == "__main__":
    transformers.logging.disable_progress_bar()
    dequantise(Path(sys.argv[1]), Path(sys.argv[2]))
