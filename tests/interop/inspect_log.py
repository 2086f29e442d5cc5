"""Reads a log with Inspect's own functions, in its environment; prints what it found as JSON.

python inspect_log.py LOG
"""

import json
import sys

import inspect_ai
from inspect_ai.log import (
    list_eval_logs,
    read_eval_log,
    read_eval_log_sample,
    read_eval_log_sample_summaries,
    read_eval_log_samples,
)

path = sys.argv[1]
header = read_eval_log(path, header_only=True)
whole = read_eval_log(path)
one = read_eval_log_sample(path, id="train-0", epoch=1)
print(
    json.dumps(
        {
            "peer": f"inspect-ai {inspect_ai.__version__}",
            "listed": len(list_eval_logs(path.rpartition("/")[0])),
            "status": header.status,
            "task": header.eval.task,
            "model": header.eval.model,
            "means": {score.name: score.metrics["mean"].value for score in header.results.scores},
            "summaries": {
                f"{item.id} {item.epoch}": [None if not item.scores else item.scores["reward"].value, item.error]
                for item in read_eval_log_sample_summaries(path)
            },
            "streamed": len(list(read_eval_log_samples(path, all_samples_required=False))),
            "samples": len(whole.samples),
            "messages": [[message.role, message.text] for message in one.messages],
            "calls": [
                [call.function, call.arguments, call.parse_error]
                for message in one.messages
                for call in getattr(message, "tool_calls", None) or ()
            ],
            "reasoning": [
                part.reasoning
                for message in one.messages
                if isinstance(message.content, list)
                for part in message.content
                if part.type == "reasoning"
            ],
            "reasons": {name: score.explanation for name, score in one.scores.items()},
            "pictures": sum(
                part.type == "image"
                for sample in whole.samples
                for message in sample.messages
                if isinstance(message.content, list)
                for part in message.content
            ),
        }
    )
)
