"""Many who follow one job."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from taskapp_kit.errors import StoreError
from taskapp_kit.jobs.server.notifier import MAX_SHARED_FRAMES, Notifier, Notifiers, Page
from tests.jobs.server.exchange import GatedApp, a_config, backend, client, serving
from tests.waiting import until


@pytest.mark.anyio
async def test_those_who_look_from_the_same_event_on_read_once() -> None:
    read_from: list[int] = []

    async def read(since: int) -> Page:
        read_from.append(since)
        await asyncio.sleep(0)
        return False, [b"x"]

    notifiers = Notifiers()
    notifier = notifiers.of("job")
    assert notifiers.of("job") is notifier
    looks = [asyncio.create_task(notifier.read_shared(since, read)) for since in (3, 3, 3, 4, 3)]
    await asyncio.sleep(0)
    looks[0].cancel()  # who leaves takes nothing from the others
    found = await asyncio.gather(*looks, return_exceptions=True)
    assert found[1:] == [(False, [b"x"])] * 4
    assert sorted(read_from) == [3, 4]
    waiting = asyncio.create_task(notifier.wait())
    notifiers.notify("job")
    await waiting
    assert notifiers.of("job") is not notifier
    await notifiers.of("job").read_shared(3, read)
    assert sorted(read_from) == [3, 3, 4]


@pytest.mark.anyio
async def test_a_look_that_failed_or_was_long_is_not_kept() -> None:
    answers: list[Page | Exception] = [StoreError("no"), (False, [b"x"] * (MAX_SHARED_FRAMES + 1)), (True, [])]

    async def read(_: int) -> Page:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    notifier = Notifier()
    with pytest.raises(StoreError):
        await notifier.read_shared(1, read)
    assert len((await notifier.read_shared(1, read))[1]) == MAX_SHARED_FRAMES + 1
    assert await notifier.read_shared(1, read) == (True, [])
    assert await notifier.read_shared(1, read) == (True, [])


@pytest.mark.server
def test_everybody_who_follows_a_job_gets_each_event_once() -> None:
    app = GatedApp()
    config = a_config(training={"iterations_per_epoch": 30, "batch_size": 1, "group_size": 1})
    with serving(app.app()) as url, backend() as back:
        job_id = back.submit(url, config)
        until(lambda: back.status(job_id)["progress"]["total"] == 30)

        def follow(since: int) -> list[int]:
            with (
                client(back.url) as http,
                http.stream("GET", f"/rl/jobs/{job_id}/events/stream?since_seq={since}") as told,
            ):
                lines = list(told.iter_lines())
            return [int(line[4:]) for line in lines if line.startswith("id: ")]

        with ThreadPoolExecutor(20) as threads:
            following = [threads.submit(follow, number % 4 - 1) for number in range(20)]
            until(lambda: len(back.state.jobs.notifiers) == 1)
            app.gate.open()
            for number, one in enumerate(following):
                assert one.result(60) == list(range(max(number % 4 - 1, 0) + 1, 34))
