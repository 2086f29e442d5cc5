"""Models served by processes of their own: real children over small models with random weights."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import orjson
import pytest

from taskapp_kit.errors import ConfigError, Unavailable
from taskapp_kit.jobs.server.inference import AvailableModel
from taskapp_kit.net.http import HttpResponse
from taskapp_kit.train.serving.process import ServingProcess
from taskapp_kit.train.serving.served_models import ServedModels
from tests.train.models.test_loading import model_folder
from tests.waiting import alive, until

pytestmark = [pytest.mark.train, pytest.mark.server]

BODY = {"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 4, "seed": 1}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    model_folder(folder / "base" / "one", seed=1, max_position_embeddings=256)
    model_folder(folder / "base" / "two", seed=2, max_position_embeddings=256)
    return folder


def test_a_process_serves_its_model_to_who_has_its_key_and_ends_with_its_parent(models: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from taskapp_kit.train.serving.process import ServingProcess\n"
        "process = ServingProcess('m', Path(sys.argv[1]), {'m': 'one'}); process.wait()\n"
        "print(process.url, process.key, process.pid, process.own_name, 'torch' in sys.modules, flush=True)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(models)], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            url, key, pid, own_name, loads_torch = parent.stdout.readline().split()
            assert (own_name, loads_torch) == ("one", "False")
            with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60) as http:
                first, second = (http.post("/chat/completions", json={**BODY, "model": "m"}).json() for _ in range(2))
                assert first["usage"]["completion_tokens"] == 4
                assert first["choices"] == second["choices"]
                del http.headers["Authorization"]
                assert http.post("/chat/completions", json=BODY).status_code == 401
            command = Path(f"/proc/{pid}/cmdline")
            if command.exists():
                assert key not in command.read_text()
        finally:
            parent.kill()
    until(lambda: not alive(int(pid)), 20)


def test_a_model_that_cannot_be_served_is_said_in_a_sentence(models: Path) -> None:
    with pytest.raises(ConfigError, match="no model 'three'"), ServingProcess("three", models):
        pass
    with pytest.raises(ConfigError, match="is a path"), ServingProcess(str(models / "base" / "one"), models):
        pass


def test_one_process_at_a_time_serves_what_is_requested(models: Path) -> None:
    pids: list[int] = []

    def text(response: HttpResponse) -> str:
        assert response.status == 200, response.body
        return str(response.json()["choices"][0]["message"]["content"])

    async def scenario() -> None:
        served = ServedModels(models, idle_seconds=1.0)
        assert [model.name for model in served.available() if model.name != "tiny"] == ["one", "two"]
        one, two = served.find("one"), served.find("two")
        assert one is not None and two is not None and served.find("three") is None and served.find("../one") is None
        assert served.pid is None

        async def ask(model: AvailableModel) -> str:
            answer = text(await served.complete(model, "chat/completions", orjson.dumps(BODY)))
            if served.pid is not None and served.pid not in pids:
                pids.append(served.pid)
            return answer

        answers = await asyncio.gather(*(ask(model) for model in (one, one, two, two)))
        assert answers[0] == answers[1] != answers[2] == answers[3]
        assert len(pids) == 2 and not alive(pids[0])
        os.kill(pids[1], signal.SIGKILL)
        assert await ask(two) == answers[2], "a process that was killed is replaced"
        last = served.pid
        assert last is not None
        while served.pid is not None or alive(last):  # without requests the process ends
            await asyncio.sleep(0.05)
        await served.close()
        with pytest.raises(Unavailable, match="stopping"):
            await ask(one)

    asyncio.run(asyncio.wait_for(scenario(), 200))
