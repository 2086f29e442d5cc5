"""Evaluates tasks of `inspect_task` with Inspect, in its environment, and prints what its logs say, as JSON.

python inspect_played.py LOGS SCENARIOS_JSON       # [{"app": APP, "url": MODEL_URL, "task": {…}, "eval": {…}}, …]
"""

import json
import math
import sys

import inspect_ai
from inspect_ai import eval as evaluate
from inspect_ai.log import read_eval_log
from inspect_ai.model import get_model

from taskapp_kit.errors import KitError
from taskapp_kit.interop.inspect.episodes import _services
from taskapp_kit.interop.inspect.task import inspect_task


def value(score):
    return "nan" if isinstance(score.value, float) and math.isnan(score.value) else score.value


def sample_seen(sample):
    return {
        "id": sample.id,
        "input": sample.input,
        "metadata": sample.metadata,
        "scores": {name: value(score) for name, score in (sample.scores or {}).items()},
        "error": sample.error and sample.error.message,
        "traceback": sample.error and sample.error.traceback,
        "limit": sample.limit and sample.limit.type,
        "roles": [message.role for message in sample.messages],
        "texts": [message.text for message in sample.messages],
        "calls": [
            [call.function, call.arguments]
            for message in sample.messages
            for call in getattr(message, "tool_calls", None) or ()
        ],
        "generated": sum(event.event == "model" for event in sample.events),
        "tokens": sum(usage.total_tokens for usage in sample.model_usage.values()),
    }


def played(scenario, logs):
    model = get_model(
        "openai-api/mock/m", base_url=scenario["url"], api_key="none", memoize=False, **scenario.get("model", {})
    )
    options = {"fail_on_error": False, "max_samples": 20, "max_retries": 0, **scenario.get("eval", {})}
    (log,) = evaluate(
        inspect_task(scenario["app"], **scenario.get("task", {})),
        model=model,
        display="none",
        log_level="error",
        log_dir=logs,
        **options,
    )
    whole = read_eval_log(log.location)
    return {
        "peer": f"inspect-ai {inspect_ai.__version__}",
        "status": whole.status,
        "error": whole.error and whole.error.message,
        "task": whole.eval.task,
        "dataset": whole.eval.dataset.name,
        "samples": [
            sample_seen(sample)
            for sample in sorted(whole.samples or (), key=lambda sample: (sample.epoch, sample.metadata["seed"]))
        ],
        "results": {
            score.name: {
                "scored": score.scored_samples,
                "unscored": score.unscored_samples,
                **{name: metric.value for name, metric in score.metrics.items()},
            }
            for score in (whole.results.scores if whole.results else ())
        },
        "open": len(_services),
    }


def refused(scenario):
    try:
        inspect_task(scenario["app"], **scenario["refused"])
    except KitError as error:
        return str(error)
    return None


logs, scenarios = sys.argv[1:]
print(json.dumps([refused(item) if "refused" in item else played(item, logs) for item in json.loads(scenarios)]))
