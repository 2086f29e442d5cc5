"""A job's points as a picture and as TensorBoard files."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tensorboardX.proto import event_pb2
from tensorboardX.record_writer import masked_crc32c

from taskapp_kit.records.job_curves import GROUPS, curve_groups
from taskapp_kit.train.curves import TensorBoardFiles, picture

pytestmark = pytest.mark.train

POINTS = [("reward", step, step / 10) for step in range(1, 9)] + [("eval_reward", 0, 0.1), ("eval_reward", 8, 0.9)]


def recorded(folder: Path) -> dict[tuple[str, int], tuple[float, float]]:
    """(value, time) by tag and step, of all event files, whose checksums are compared."""
    found = {}
    for file in folder.iterdir():
        data = file.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            body = data[12 : 12 + length]
            assert int.from_bytes(data[12 + length : 16 + length], "little") == masked_crc32c(body)
            data = data[16 + length :]
            event: Any = event_pb2.Event.FromString(body)
            for value in event.summary.value:
                assert (value.tag, event.step) not in found, "a point is written once"
                found[value.tag, event.step] = (value.simple_value, event.wall_time)
    return found


@pytest.mark.parametrize("count", [0, 1, len(GROUPS)])
def test_a_picture_of_any_number_of_groups_is_a_png(count: int) -> None:
    metrics = list(dict.fromkeys(metric for _, _, names in GROUPS for metric in names.values()))
    groups, _ = curve_groups([(name, step, step * 0.5) for name in metrics for step in (0, 1, 2)])
    image = Image.open(io.BytesIO(picture(groups[:count], r"rl_1 · tiny $\notmath{$")))
    assert image.format == "PNG" and image.width > 1000
    assert len(image.convert("RGB").getcolors(2**24)) > (50 if count else 2)


def test_every_point_is_in_the_files_once_whoever_wrote_before(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    timed = [(*point, 1_700_000_000.0 + index) for index, point in enumerate(POINTS)]
    with TensorBoardFiles(folder) as files:
        files.add(timed[:5])
    (folder / "of-another-program").write_bytes(b"")
    with TensorBoardFiles(folder) as files:  # the job goes on: earlier files are replaced
        files.add(timed[:7])
        files.add(timed[4:])
        found = recorded(folder)  # flushed before it is closed
    assert found == recorded(folder)
    assert {key: value for key, (value, _) in found.items()} == {
        (("eval/reward" if name.startswith("eval") else "train/reward"), step): pytest.approx(value)
        for name, step, value in POINTS
    }
    assert found["train/reward", 1][1] == timed[0][3]
    assert (folder / "of-another-program").exists()


def test_values_that_are_not_finite_are_in_no_curve() -> None:
    groups, others = curve_groups(
        [("reward", 1, math.nan), ("eval_own", 0, 1.0), ("loss", 1, math.inf), ("loss", 2, 1.0)]
    )
    assert [(group.title, dict(group.curves)) for group in groups] == [("Loss", {"training": [(2, 1.0)]})]
    assert [(group.title, dict(group.curves)) for group in others] == [("own", {"evaluation": [(0, 1.0)]})]
