"""Checks across the sections of an RL config: the model's name, the GPUs, the judge, the evaluations.

`method` and `variety` are not compared. Each trainer decides what a combination means and rejects contradictions, and
the guides combine `ppo` with `gspo`.
"""

from __future__ import annotations

from taskapp_kit.jobs.client.config.review import Document, Review, is_smoke_test, needs_gpus
from taskapp_kit.jobs.client.config.schema import (
    BlendWeights,
    Compute,
    JudgeSection,
    RlDocument,
    Topology,
    Vllm,
    keys_of,
)
from taskapp_kit.jobs.client.config.values import Place, place_shown, shown

FINETUNED = ("ft:", "rl:")
MODEL_KEYS = (
    ("model", "source", "source"),
    ("model", "base", "base"),
    ("policy", "source", "source"),
    ("policy", "model_name", "base"),
    ("job", "model", ""),
)
"""The section, the key, and the kind of model that the key names: `source`, `base`, or "" if the id decides."""
DEFAULT_BLEND = {"env": 1.0, "event": 0.0, "outcome": 0.0}


def check_consistency(review: Review, config: RlDocument, document: Document) -> None:
    """Add contradictions to the review. config: the values of `document` that match the schema."""
    _check_model(review, document)
    _check_topology(review, config, document)
    _check_judge(review, config.judge)
    evaluation = config.evaluation
    if evaluation.instances and evaluation.seeds is not None and len(evaluation.seeds) < evaluation.instances:
        review.warn(
            ("evaluation", "seeds"),
            f"[evaluation] has {len(evaluation.seeds)} seeds for {evaluation.instances} instances, "
            "so some seeds are played more than once.",
        )
    for name in ("batch_size", "group_size"):
        smoke, full, same = getattr(config.trainer, name), getattr(config.training, name), ("training", name)
        if smoke is not None and full is not None and smoke != full:
            expectation = f"{place_shown(same)} = {full}{review.in_line(same)}, which means the same"
            review.mismatch(("trainer", name), smoke, expectation, "Remove one of the two keys.")


def with_whole_topology(document: Document) -> Document:
    """Return a copy in which [topology] and [compute.topology] each have the keys of both, if both sections exist.

    Some clients set `compute.topology.reference_placement` and write all other keys below [topology].
    """
    compute, outer = document.get("compute"), document.get("topology")
    inner = compute.get("topology") if isinstance(compute, dict) else None
    if not (isinstance(compute, dict) and isinstance(inner, dict) and isinstance(outer, dict)):
        return document
    return {**document, "topology": {**inner, **outer}, "compute": {**compute, "topology": {**outer, **inner}}}


def models_named(document: Document) -> list[tuple[Place, str, str]]:
    """Return every key that names the model to train, each as (path, "source" or "base", id)."""
    named: list[tuple[Place, str, str]] = []
    for section, key, kind in MODEL_KEYS:
        table = document.get(section)
        value = table.get(key) if isinstance(table, dict) else None
        if isinstance(value, str) and value.strip():
            named.append(((section, key), kind or kind_of_model(value), value))
    return named


def kind_of_model(model: str) -> str:
    """Return `source` for the id of a fine-tuned model, and otherwise `base`."""
    return "source" if model.startswith(FINETUNED) else "base"


def names_both(review: Review, document: Document, section: str, finetuned: str, base: str) -> bool:
    """Return whether a section names two models. If it does, add a problem."""
    here = [place for place, _, _ in models_named(document) if place[0] == section]
    if len(here) == 2:
        text = f"[{section}] {finetuned} and {base}: found both; expected exactly one. Remove one of them."
        review.problem(here[1], text)
    return len(here) == 2


def _check_model(review: Review, document: Document) -> None:
    if names_both(review, document, "model", "source", "base"):
        return
    if names_both(review, document, "policy", "source", "model_name"):
        return
    named = models_named(document)
    if not named:
        _add_no_model(review, document)
    for place, _, model in named[1:]:
        first = named[0][0]
        if model != named[0][2]:
            same = f"the model that {place_shown(first)} names{review.in_line(first)}"
            review.mismatch(place, model, same, "Name the model once.")


def _add_no_model(review: Review, document: Document) -> None:
    for section, key, _ in MODEL_KEYS:
        if section in document and (not isinstance(document[section], dict) or key in document[section]):
            return  # another problem already reports this value
    if is_smoke_test(document) and "model" not in document and "policy" not in document:
        review.problem(
            ("job",), '[job]: found no model; expected one. Add, for example, model = "Qwen/Qwen3-4B" below [job].'
        )
        return
    review.problem(
        ("model",) if "model" in document or "policy" not in document else ("policy",),
        "[model]: found no model; expected either source (a fine-tuned model) or base, in addition to trainer_mode and "
        'label. Add, for example, base = "Qwen/Qwen3-4B" below [model].',
    )


def _check_topology(review: Review, config: RlDocument, document: Document) -> None:
    compute, outer = document.get("compute"), document.get("topology")
    inner = compute.get("topology") if isinstance(compute, dict) else None
    if inner is None and outer is None:
        if needs_gpus(document):
            review.problem(
                ("compute", "topology"),
                "[compute.topology]: missing; expected a section with type, gpus_for_vllm, gpus_for_training, "
                "gpus_for_ref, tensor_parallel. Add it.",
            )
        return
    if isinstance(inner, dict) and isinstance(outer, dict):
        for key in outer:
            if key in inner and inner[key] != outer[key]:
                twin = ("compute", "topology", key)
                same = f"{place_shown(twin)} = {shown(key, inner[key])}{review.in_line(twin)}, which means the same"
                review.mismatch(("topology", key), outer[key], same, "Remove one of the two keys.")
    whole = config.topology.model_copy(update=config.compute.topology.model_dump(exclude_none=True))
    path = ("compute", "topology") if inner is not None else ("topology",)
    _check_shares(review, config.compute, whole, path)
    _check_spread(review, config.vllm, whole, path)


def _check_shares(review: Review, compute: Compute, topology: Topology, path: tuple[str, ...]) -> None:
    """Add a problem if the topology at `path` uses more GPUs than [compute] has, and a warning if it uses fewer."""
    shares = {
        "gpus_for_vllm": topology.gpus_for_vllm,
        "gpus_for_training": topology.gpus_for_training,
        "gpus_for_ref": topology.gpus_for_ref,
    }
    if compute.gpu_count is None:
        return
    nodes = compute.nodes or 1
    used, available = sum(share or 0 for share in shares.values()), compute.gpu_count * nodes
    if used > available:
        there = f"{available}" if nodes == 1 else f"{available} ({nodes} nodes of {compute.gpu_count})"
        sums = " + ".join(f"{name} {share}" for name, share in shares.items() if share)
        review.problem(
            path,
            f"[{'.'.join(path)}]: found {used} GPUs in use ({sums}); expected at most {there}, which [compute] has. "
            "Lower one of these numbers, or raise gpu_count.",
        )
    elif None not in shares.values() and used < available:
        review.warn(path, f"[{'.'.join(path)}] leaves {available - used} of {available} GPUs unused.")


def _check_spread(review: Review, vllm: Vllm, topology: Topology, path: tuple[str, ...]) -> None:
    """Add a problem if a copy of the policy needs more than the policy's GPUs, and a warning if GPUs stay unused."""
    policy_gpus, parallel, size = topology.gpus_for_vllm, topology.tensor_parallel, vllm.tensor_parallel_size
    parallel_place, size_place = (*path, "tensor_parallel"), ("vllm", "tensor_parallel_size")
    for place, spread in ((parallel_place, parallel), (size_place, size)):
        if policy_gpus is None or spread is None:
            continue
        if spread > policy_gpus:
            at_most = f"at most gpus_for_vllm = {policy_gpus}"
            review.mismatch(place, spread, at_most, "Lower this number, or raise gpus_for_vllm.")
        elif policy_gpus % spread:
            divided = f"{place_shown(place)} = {spread} does not divide gpus_for_vllm = {policy_gpus}"
            review.warn(place, f"{divided}, so some of these GPUs stay unused.")
    if parallel is not None and size is not None and size != parallel:
        review.warn(
            size_place, f"[vllm] tensor_parallel_size = {size} and {place_shown(parallel_place)} = {parallel} differ."
        )


def _check_judge(review: Review, judge: JudgeSection) -> None:
    blend, options = judge.reward_blend, judge.options
    if "reward_blend" in judge.model_fields_set and review.fits("judge", "reward_blend"):
        weights = blend.model_dump(include=set(keys_of(BlendWeights)), exclude_none=True)
        if not any({**DEFAULT_BLEND, **weights}.values()):
            review.problem(
                ("judge", "reward_blend"),
                "[judge.reward_blend]: found only weights of 0; expected one above 0. Add, for example, outcome = 1.0.",
            )
    if options.event is False and options.outcome is False:
        review.problem(
            ("judge", "options"),
            "[judge.options]: found event = false and outcome = false; expected at least one true. Set one, or write "
            "enabled = false below [judge].",
        )
