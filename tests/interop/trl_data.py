"""Reads training data as TRL's trainers do, in an environment with TRL and without torch; prints what it found as JSON.

python trl_data.py SFT DPO
"""

import json
import sys

import datasets
import trl
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from trl.data_utils import apply_chat_template, is_conversational

TEMPLATE = """
{%- if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}
{%- for message in messages %}[{{ message.role }}]
{%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}{{ message.content }}
{%- for call in message.tool_calls or [] %}<call>{{ call.function.name }} {{ call.function.arguments | tojson }}</call>{% endfor %}
{%- endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"""
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"?": 0}, "?")), unk_token="?")
tokenizer.chat_template = TEMPLATE


def rows(path):
    data = datasets.load_dataset("json", data_files=path, split="train")
    return data.column_names, list(data)


def tools_of(row):
    return json.loads(row["tools"]) if isinstance(row["tools"], str) else row["tools"]  # as both trainers do


sft_columns, sft = rows(sys.argv[1])
dpo_columns, dpo = rows(sys.argv[2])
print(
    json.dumps(
        {
            "peer": f"trl {trl.__version__}",
            "sft_columns": sft_columns,
            "dpo_columns": dpo_columns,
            "conversational": all(is_conversational(row) for row in [*sft, *dpo]),
            "messages": [row["messages"] for row in sft],
            "tools": [tools_of(row) for row in sft],
            "texts": [apply_chat_template(row, tokenizer, tools_of(row))["text"] for row in sft],
            "pairs": [apply_chat_template(row, tokenizer, tools_of(row)) for row in dpo],
        }
    )
)
