"""A job on the model `tiny`: what it makes is a model like any trained one, and a job that goes on ends as one that ran through."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.errors import ConfigError
from taskapp_kit.jobs.client.config.sft_config import load_sft_config
from taskapp_kit.jobs.server.engine import JobDocument
from taskapp_kit.jobs.server.rollout_plan import JobPlan, read_plan
from taskapp_kit.train.checkpoints.facts import TrainedModelName
from taskapp_kit.train.checkpoints.library import (
    export_checkpoint,
    import_checkpoint,
    remove_trained_model,
    trained_model,
    trained_models,
)
from taskapp_kit.train.checkpoints.stored import OPTIMIZER, WEIGHTS
from taskapp_kit.train.job_start import seeds_learned_before
from taskapp_kit.train.models.loading import load_model
from taskapp_kit.train.models.sources import find_model
from taskapp_kit.train.sft.sft_job import SftResult, run_sft
from taskapp_kit.train.sft.sft_settings import sft_settings
from tests.train.sft.sft_files import line, write_config, write_lines

pytestmark = pytest.mark.train

EVERY_TWO = "[checkpoints]\nevery_n_iters = 2\n"


class Broken(Exception):
    """The process ended here, as far as a checkpoint can tell."""


class Watching:
    """Records what it receives. until: the update after which it breaks off."""

    def __init__(self, until: int | None = None) -> None:
        self.updates: list[int] = []
        self.sentences: Sequence[str] = ()
        self._until = until

    def began(self, job_id: str, sentences: Sequence[str]) -> None:
        self.sentences = sentences

    def updated(self, done: int, total: int, values: dict[str, float]) -> None:
        self.updates.append(done)
        if done == self._until:
            raise Broken


def run(folder: Path, models: Path, watching: Watching | None = None, fresh: bool = False, **options: Any) -> SftResult:
    if not (folder / "gold.jsonl").exists():
        write_lines(folder / "gold.jsonl", [line(seed) for seed in range(40)])
    config = load_sft_config(write_config(folder, **options))
    settings = sft_settings(config)
    return asyncio.run(run_sft(config.document, settings, models, {}, watching or Watching(), fresh=fresh))


def plan_of(environment: str | None, seeds: list[int]) -> JobPlan:
    plan, problems = read_plan(JobDocument("rl_1", "http://127.0.0.1:1", {"model": {"base": "tiny"}}))
    assert plan is not None, problems
    return replace(plan, env_name=environment, eval_seeds=seeds)


def weights(models: Path, name: str) -> bytes:
    return (TrainedModelName.parse(name).folder(models) / WEIGHTS).read_bytes()


def without_times(result: SftResult) -> list[tuple[str, int, float]]:
    return [(point["name"], point["step"], point["value"]) for point in result.points]


def test_a_job_that_broke_off_ends_as_one_that_ran_through(tmp_path: Path) -> None:
    whole = run(tmp_path, tmp_path / "whole", epochs=2, more=EVERY_TWO)
    assert (whole.updates, whole.learned, whole.held_out) == (10, 36, 4)
    assert whole.before is not None and whole.after is not None and whole.after < whole.before
    assert [step for name, step, _ in without_times(whole) if name == "eval_loss"] == [0, 5, 10]

    with pytest.raises(Broken):
        run(tmp_path, tmp_path / "parts", Watching(1), epochs=2, more=EVERY_TWO)
    with pytest.raises(Broken):
        run(tmp_path, tmp_path / "parts", Watching(7), epochs=2, more=EVERY_TWO)
    last = Watching()
    found = run(tmp_path, tmp_path / "parts", last, epochs=2, more=EVERY_TWO)
    assert last.updates == [7, 8, 9, 10], "it went on from the checkpoint after update 6"
    assert found.model == whole.model
    assert without_times(found) == without_times(whole)
    assert weights(tmp_path / "parts", found.model) == weights(tmp_path / "whole", whole.model)

    ended = Watching()
    again = run(tmp_path, tmp_path / "parts", ended, epochs=2, more=EVERY_TWO)
    assert (again.model, again.points, ended.updates) == (found.model, found.points, []), "it has ended already"
    with pytest.raises(Broken):
        run(tmp_path, tmp_path / "parts", Watching(3), fresh=True, epochs=2, more=EVERY_TWO)
    assert (tmp_path / "parts" / "ft" / "tiny" / f"{found.job_id}-2" / "checkpoint-2").is_dir()


def test_what_it_makes_is_a_model_like_any_trained_one(tmp_path: Path) -> None:
    models = tmp_path / "models"
    result = run(tmp_path, models)
    name = TrainedModelName.parse(result.model)
    assert str(name) == f"ft:tiny:{result.job_id}:checkpoint-5"
    assert [str(each.name) for each in trained_models(models)] == [result.model]
    facts = trained_model(models, name).facts
    assert (facts.kind, facts.origin.base, facts.weights_version) == ("ft", "tiny", 5)
    assert len(facts.seeds["train"]) == 36 and facts.seeds["environments"] == ["keys"]
    assert facts.score == pytest.approx(-(result.after or 0))
    assert (result.best, result.best_loss) == (result.model, pytest.approx(result.after))

    source = find_model(result.model, models)
    assert load_model(source).source.origin.base == result.model, "a job that starts from it names it"
    export_checkpoint(trained_model(models, name), tmp_path / "a.tar")
    imported = import_checkpoint(tmp_path / "a.tar", tmp_path / "other")
    assert imported.path == name.folder(tmp_path / "other") and OPTIMIZER not in imported.files
    assert load_model(find_model(result.model, tmp_path / "other")).model is not None

    further = run(tmp_path, models, base=result.model)
    assert further.model.startswith(f"ft:{result.model.replace(':', '-')}:")
    remove_trained_model(models, name)
    with pytest.raises(ConfigError, match="no trained model"):
        find_model(result.model, models)


def test_rl_is_warned_of_seeds_that_its_model_was_trained_on(tmp_path: Path) -> None:
    models = tmp_path / "models"
    result = run(tmp_path, models, data="held_out_share = 0")
    assert (result.before, result.best) == (None, None)
    source = find_model(result.model, models)

    def warned(environment: str | None, seeds: list[int]) -> Any:
        return seeds_learned_before(source, models, plan_of(environment, seeds))

    found = warned("keys", [39, 40, 41])
    assert found.data == {"shared_seeds": [39], "shared": 1} and result.model in found.message
    assert warned(None, [39]) is not None
    assert warned("other", [39]) is None
    assert warned("keys", [40, 41]) is None

    adapted = run(tmp_path, models, base=result.model, mode="lora", data="held_out_share = 0.5", more="[lora]\nr = 4\n")
    assert adapted.before is not None and adapted.after is not None and adapted.after < adapted.before
    before = find_model(adapted.model, models)
    assert before.base is not None and before.base.name == result.model, "an adapter on the fine-tuned model"
    load_model(before)
    again = seeds_learned_before(before, models, plan_of("keys", list(range(39))))
    assert again is not None and again.data["shared"] == 39, "those of the model before it count, too"


def test_conversations_that_are_all_too_long_are_refused(tmp_path: Path) -> None:
    write_lines(
        tmp_path / "gold.jsonl",
        [line(0, messages=[{"role": "user", "content": "a" * 9000}, line(0)["messages"][2]], answers=[1])],
    )
    with pytest.raises(ConfigError, match="longer than the model's context"):
        run(tmp_path, tmp_path / "models")
