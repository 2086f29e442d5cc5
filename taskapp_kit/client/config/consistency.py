"""What several sections of an RL config say together: the model's name, the GPUs, the judge, the cadence."""

from __future__ import annotations

from taskapp_kit.client.config.problems import Document, Review, told
from taskapp_kit.client.config.sections import SHORT_FORM
from taskapp_kit.client.config.values import Place

FINETUNED = ("ft:", "rl:")
MODEL_KEYS = (
    ("model", "source", "source"),
    ("model", "base", "base"),
    ("policy", "source", "source"),
    ("policy", "model_name", "base"),
    ("job", "model", ""),
)
"""Section, key, and what it names: a finetuned `source`, a `base` model, or whichever the id says ("")."""
BLEND = {"env": 1.0, "event": 0.0, "outcome": 0.0}
"""The weights that are not given."""
SAID_TWICE = (
    (("trainer", "batch_size"), ("training", "batch_size")),
    (("trainer", "group_size"), ("training", "group_size")),
)


def agree(found: Review, *, short: bool) -> None:
    """Adds what does not hold together."""
    _model(found, short=short)
    _topology(found, short=short)
    _blend_and_judge(found)
    _cadence(found)
    for first, second in SAID_TWICE:
        one, other = found.at(*first), found.at(*second)
        if one is not None and other is not None and one != other:
            found.misfit(first, one, f"{told(second)} = {other}, which says the same", "Take one of the two out.")


def is_short(document: Document) -> bool:
    """Whether it is the smoke-test form: no [algorithm], and one of [trainer], [env], [job]."""
    return "algorithm" not in document and any(name in document for name in SHORT_FORM)


def models_named(document: Document) -> list[tuple[Place, str, str]]:
    """Every place that names the model to train: (place, "source" or "base", id)."""
    named: list[tuple[Place, str, str]] = []
    for section, key, kind in MODEL_KEYS:
        table = document.get(section)
        value = table.get(key) if isinstance(table, dict) else None
        if isinstance(value, str) and value.strip():
            named.append(((section, key), kind or kind_of_model(value), value))
    return named


def kind_of_model(model: str) -> str:
    """`source` for the id of a finetuned model, else `base`."""
    return "source" if model.startswith(FINETUNED) else "base"


def _model(found: Review, *, short: bool) -> None:
    document = found.document
    named = models_named(document)
    for section, keys in (("model", ("source", "base")), ("policy", ("source", "model_name"))):
        here = [place for place, _, _ in named if place[0] == section]
        if len(here) == 2:
            found.wrong(
                here[1], f"[{section}] {keys[0]} and {keys[1]}: found both; expected exactly one. Take one out."
            )
            return
    if not named:
        _no_model(found, short=short)
        return
    first = named[0]
    for place, _, model in named[1:]:
        if model != first[2]:
            found.misfit(place, model, f"the model that {told(first[0])} names", "Name the model once.")


def _no_model(found: Review, *, short: bool) -> None:
    document = found.document
    if any(isinstance(document.get(section), dict) and key in document[section] for section, key, _ in MODEL_KEYS):
        return  # it is told as a misfit of that key
    if any(section in document and not isinstance(document[section], dict) for section, _, _ in MODEL_KEYS):
        return
    if short and "model" not in document and "policy" not in document:
        found.wrong(
            ("job",), '[job]: names no model; expected one. Add for example model = "Qwen/Qwen3-4B" below [job].'
        )
        return
    found.wrong(
        ("model",) if "model" in document or "policy" not in document else ("policy",),
        "[model]: names no model; expected exactly one of source (a finetuned model) and base, besides trainer_mode and "
        'label. Add for example base = "Qwen/Qwen3-4B" below [model].',
    )


def _topology(found: Review, *, short: bool) -> None:
    compute = found.document.get("compute")
    inner = compute.get("topology") if isinstance(compute, dict) else None
    outer = found.document.get("topology")
    if inner is None and outer is None:
        if not short:
            found.wrong(
                ("compute", "topology"),
                "[compute.topology]: missing; expected a section with type, gpus_for_vllm, gpus_for_training, "
                "gpus_for_ref, tensor_parallel. Add it.",
            )
        return
    if inner is not None and outer is not None and inner != outer:
        found.wrong(
            ("topology",),
            "[topology]: found other values than in [compute.topology]; expected the same. Take one of the two sections out.",
        )
        return
    path = ("compute", "topology") if inner is not None else ("topology",)
    _gpus(found, path)


def _gpus(found: Review, path: tuple[str, ...]) -> None:
    shares = {name: found.at(*path, name) for name in ("gpus_for_vllm", "gpus_for_training", "gpus_for_ref")}
    per_node, nodes = found.at("compute", "gpu_count"), found.at("compute", "nodes") or 1
    used = sum(share or 0 for share in shares.values())
    if per_node is not None and used > per_node * nodes:
        there = f"{per_node}" if nodes == 1 else f"{per_node * nodes} ({nodes} nodes of {per_node})"
        sums = " + ".join(f"{name} {share}" for name, share in shares.items() if share)
        found.wrong(
            path,
            f"[{'.'.join(path)}]: found {used} GPUs in use ({sums}); expected at most the {there} of [compute]. "
            "Lower a share or raise gpu_count.",
        )
    elif per_node is not None and None not in shares.values() and used < per_node * nodes:
        found.slip(path, f"[{'.'.join(path)}] leaves {per_node * nodes - used} of {per_node * nodes} GPUs unused.")
    policy_gpus, parallel = shares["gpus_for_vllm"], found.at(*path, "tensor_parallel")
    for place in ((*path, "tensor_parallel"), ("vllm", "tensor_parallel_size")):
        spread = found.at(*place)
        if policy_gpus is None or spread is None:
            continue
        if spread > policy_gpus:
            found.misfit(place, spread, f"at most gpus_for_vllm = {policy_gpus}", "Lower it, or raise gpus_for_vllm.")
        elif policy_gpus % spread:
            found.slip(
                place, f"{told(place)} = {spread} does not divide gpus_for_vllm = {policy_gpus}: some stay unused."
            )
    size = found.at("vllm", "tensor_parallel_size")
    if parallel is not None and size is not None and size != parallel:
        found.slip(
            ("vllm", "tensor_parallel_size"),
            f"[vllm] tensor_parallel_size = {size} and {told((*path, 'tensor_parallel'))} = {parallel} differ.",
        )


def _blend_and_judge(found: Review) -> None:
    judge = found.document.get("judge")
    if not isinstance(judge, dict):
        return
    blend = judge.get("reward_blend")
    if isinstance(blend, dict):
        weights = [found.at("judge", "reward_blend", name) if name in blend else left for name, left in BLEND.items()]
        if None not in weights and not any(weights):
            found.wrong(
                ("judge", "reward_blend"),
                "[judge.reward_blend]: found only weights of 0; expected one above 0. Add for example outcome = 1.0.",
            )
    options = judge.get("options")
    if isinstance(options, dict) and options.get("event") is False and options.get("outcome") is False:
        found.wrong(
            ("judge", "options"),
            "[judge.options]: found event and outcome both false; expected one of them true. Set one, or write "
            "enabled = false below [judge].",
        )


def _cadence(found: Review) -> None:
    instances, seeds = found.at("evaluation", "instances"), found.at("evaluation", "seeds")
    if instances is not None and seeds is not None and len(seeds) < instances:
        found.slip(
            ("evaluation", "seeds"),
            f"[evaluation] seeds has {len(seeds)} for {instances} instances: seeds are played more than once.",
        )
