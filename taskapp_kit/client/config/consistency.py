"""What the sections of an RL config have to agree on: the model's name, the GPUs, the judge, the evaluations."""

from __future__ import annotations

from taskapp_kit.client.config.review import Document, Review, needs_gpus
from taskapp_kit.client.config.values import Place, place_shown, shown

FINETUNED = ("ft:", "rl:")
MODEL_KEYS = (
    ("model", "source", "source"),
    ("model", "base", "base"),
    ("policy", "source", "source"),
    ("policy", "model_name", "base"),
    ("job", "model", ""),
)
"""Section, key, and what it names: a finetuned `source`, a `base` model, or whichever the id says ("")."""
DEFAULT_BLEND = {"env": 1.0, "event": 0.0, "outcome": 0.0}
SAME_MEANING = (
    (("trainer", "batch_size"), ("training", "batch_size")),
    (("trainer", "group_size"), ("training", "group_size")),
)


def check_consistency(review: Review, *, short: bool) -> None:
    """Add what does not fit together. short: it is the smoke-test form."""
    _check_model(review, short=short)
    _check_topology(review)
    _check_judge(review)
    _check_evaluation(review)
    for first, second in SAME_MEANING:
        one, other = review.at(*first), review.at(*second)
        if one is not None and other is not None and one != other:
            same = f"{place_shown(second)} = {other}{review.in_line(second)}, which means the same"
            review.mismatch(first, one, same, "Take one of the two out.")


def with_whole_topology(document: Document) -> Document:
    """Return the document with the keys of [topology] and [compute.topology] in both, if it has both.

    Clients write `compute.topology.reference_placement` next to a [topology] that has the rest.
    """
    compute, outer = document.get("compute"), document.get("topology")
    inner = compute.get("topology") if isinstance(compute, dict) else None
    if not (isinstance(compute, dict) and isinstance(inner, dict) and isinstance(outer, dict)):
        return document
    return {**document, "topology": {**inner, **outer}, "compute": {**compute, "topology": {**outer, **inner}}}


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


def _check_model(review: Review, *, short: bool) -> None:
    named = models_named(review.document)
    for section, keys in (("model", ("source", "base")), ("policy", ("source", "model_name"))):
        here = [place for place, _, _ in named if place[0] == section]
        if len(here) == 2:
            review.problem(
                here[1], f"[{section}] {keys[0]} and {keys[1]}: found both; expected exactly one. Take one out."
            )
            return
    if not named:
        _add_no_model(review, short=short)
        return
    first = named[0]
    for place, _, model in named[1:]:
        if model != first[2]:
            same = f"the model that {place_shown(first[0])} names{review.in_line(first[0])}"
            review.mismatch(place, model, same, "Name the model once.")


def _add_no_model(review: Review, *, short: bool) -> None:
    document = review.document
    for section, key, _ in MODEL_KEYS:
        if section in document and (not isinstance(document[section], dict) or key in document[section]):
            return  # it is reported as a value that does not fit
    if short and "model" not in document and "policy" not in document:
        review.problem(
            ("job",), '[job]: names no model; expected one. Add for example model = "Qwen/Qwen3-4B" below [job].'
        )
        return
    review.problem(
        ("model",) if "model" in document or "policy" not in document else ("policy",),
        "[model]: names no model; expected exactly one of source (a finetuned model) and base, besides trainer_mode and "
        'label. Add for example base = "Qwen/Qwen3-4B" below [model].',
    )


def _check_topology(review: Review) -> None:
    compute = review.document.get("compute")
    inner = compute.get("topology") if isinstance(compute, dict) else None
    outer = review.document.get("topology")
    if inner is None and outer is None:
        if needs_gpus(review.document):
            review.problem(
                ("compute", "topology"),
                "[compute.topology]: missing; expected a section with type, gpus_for_vllm, gpus_for_training, "
                "gpus_for_ref, tensor_parallel. Add it.",
            )
        return
    if isinstance(inner, dict) and isinstance(outer, dict):
        for key in outer:
            if inner[key] != outer[key]:
                twin = ("compute", "topology", key)
                same = f"{place_shown(twin)} = {shown(key, inner[key])}{review.in_line(twin)}, which means the same"
                review.mismatch(("topology", key), outer[key], same, "Take one of the two out.")
    _check_gpus(review, ("compute", "topology") if inner is not None else ("topology",))


def _check_gpus(review: Review, path: tuple[str, ...]) -> None:
    shares = {name: review.at(*path, name) for name in ("gpus_for_vllm", "gpus_for_training", "gpus_for_ref")}
    per_node, nodes = review.at("compute", "gpu_count"), review.at("compute", "nodes") or 1
    used = sum(share or 0 for share in shares.values())
    if per_node is not None and used > per_node * nodes:
        there = f"{per_node}" if nodes == 1 else f"{per_node * nodes} ({nodes} nodes of {per_node})"
        sums = " + ".join(f"{name} {share}" for name, share in shares.items() if share)
        review.problem(
            path,
            f"[{'.'.join(path)}]: found {used} GPUs in use ({sums}); expected at most the {there} of [compute]. "
            "Lower a share or raise gpu_count.",
        )
    elif per_node is not None and None not in shares.values() and used < per_node * nodes:
        review.warn(path, f"[{'.'.join(path)}] leaves {per_node * nodes - used} of {per_node * nodes} GPUs unused.")
    policy_gpus = shares["gpus_for_vllm"]
    parallel, size = review.at(*path, "tensor_parallel"), review.at("vllm", "tensor_parallel_size")
    for place, spread in (((*path, "tensor_parallel"), parallel), (("vllm", "tensor_parallel_size"), size)):
        if policy_gpus is None or spread is None:
            continue
        if spread > policy_gpus:
            at_most = f"at most gpus_for_vllm = {policy_gpus}"
            review.mismatch(place, spread, at_most, "Lower it, or raise gpus_for_vllm.")
        elif policy_gpus % spread:
            divided = f"{place_shown(place)} = {spread} does not divide gpus_for_vllm = {policy_gpus}"
            review.warn(place, f"{divided}: some stay unused.")
    if parallel is not None and size is not None and size != parallel:
        review.warn(
            ("vllm", "tensor_parallel_size"),
            f"[vllm] tensor_parallel_size = {size} and {place_shown((*path, 'tensor_parallel'))} = {parallel} differ.",
        )


def _check_judge(review: Review) -> None:
    blend, options = review.at("judge", "reward_blend"), review.at("judge", "options")
    if isinstance(blend, dict):
        weights = [
            review.at("judge", "reward_blend", name) if name in blend else default
            for name, default in DEFAULT_BLEND.items()
        ]
        if None not in weights and not any(weights):
            review.problem(
                ("judge", "reward_blend"),
                "[judge.reward_blend]: found only weights of 0; expected one above 0. Add for example outcome = 1.0.",
            )
    if isinstance(options, dict) and options.get("event") is False and options.get("outcome") is False:
        review.problem(
            ("judge", "options"),
            "[judge.options]: found event and outcome both false; expected one of them true. Set one, or write "
            "enabled = false below [judge].",
        )


def _check_evaluation(review: Review) -> None:
    instances, seeds = review.at("evaluation", "instances"), review.at("evaluation", "seeds")
    if instances is not None and seeds is not None and len(seeds) < instances:
        review.warn(
            ("evaluation", "seeds"),
            f"[evaluation] seeds has {len(seeds)} for {instances} instances: seeds are played more than once.",
        )
