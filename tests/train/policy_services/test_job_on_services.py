"""Jobs with `[sampler] engine = "services"`: on this machine, and on a Ray cluster of two nodes, with processes killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the train extra: make test-train")
pytest.importorskip("transformers", reason="needs the train extra: make test-train")

from taskapp_kit.config import disable_ray_usage_statistics
from tests.train.engine.killed_job import Ended, check, run
from tests.train.engine.local_job import (
    assert_learned_with_its_sampler,
    event_data,
    finished,
    job_config,
    local_backend,
    task_app,
)
from tests.train.engine.test_training_run import add_model

pytestmark = [pytest.mark.server, pytest.mark.process, pytest.mark.timeout(3000)]

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray: pip install 'taskapp-kit[ray]'")
KILLS = ("sampler", "update", "trainer")


@pytest.mark.train
def test_a_job_with_replicas_of_the_sampler(tmp_path: Path) -> None:
    add_model(tmp_path)
    with task_app() as url, local_backend(tmp_path) as back:
        job_id = back.submit(url, job_config(3, sampler={"engine": "services", "replicas": 2}))
        status = finished(back, job_id)
        assert status["results"]["model"] == f"rl:random:{job_id}:checkpoint-3"
        started = event_data(back, job_id, "rl.services.started")
        assert len({each["pid"] for each in (*started["replicas"], started["update"])}) == 3
        assert_learned_with_its_sampler(back, job_id)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    found = run(tmp_path_factory.mktemp("whole") / "job")
    assert found.status["status"] == "succeeded", found.status["error"]
    return found


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[str]:
    """The address of a Ray cluster of two nodes, on this machine."""
    disable_ray_usage_statistics()
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "600")  # read when it is imported; machines may be busy
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 2, "object_store_memory": 100_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
    try:
        cluster.add_node(**options)
        yield cluster.address
    finally:
        cluster.shutdown()


@pytest.mark.exhaustive
def test_a_job_whose_processes_are_killed_ends_as_one_without_services(tmp_path: Path, whole: Ended) -> None:
    found = run(tmp_path / "job", KILLS, seed=3, engine="services", replicas=2)
    check(found, whole)
    assert found.kills == dict.fromkeys(KILLS, 1)


@pytest.mark.interop
@needs_ray
def test_a_job_on_ray_whose_processes_are_killed_ends_as_one_without_services(
    tmp_path: Path, whole: Ended, two_nodes: str
) -> None:
    environ = {"RAY_ADDRESS": two_nodes}
    found = run(tmp_path / "job", KILLS, seed=3, environ=environ, engine="services", replicas=2, backend="ray")
    check(found, whole)
    started = next(event for event in found.events if event["type"] == "rl.services.started")
    assert len({place.partition(",")[0] for place in started["data"]["places"]}) == 2  # node …, actor …
    assert found.kills == dict.fromkeys(KILLS, 1)
