"""An attempt's token opens that attempt while it is open, and is nowhere afterwards: neither stored, logged nor answered.

A task app that repeats it wherever it can plays a job of the engine `local`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from taskapp_kit.train.curves import TensorBoardFiles
from tests.sentinels import Key, Search
from tests.train.driver.scripted_app import Answer, CallingApp, RolloutAsked, failed
from tests.train.engine.local_job import finished, job_config, local_backend

pytestmark = [pytest.mark.train, pytest.mark.server, pytest.mark.process]


class RepeatingApp:
    """Repeats its address in messages, answers and errors, and tries tokens of other attempts."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.tries: dict[str, set[int]] = {"ended": set(), "guessed": set()}

    async def play(self, asked: RolloutAsked) -> Answer:
        url = asked.body["policy"]["config"]["inference_url"]
        self.urls.append(url)
        await asked.call({"role": "user", "content": f"My address is {url}, {url[-30:]}."})
        if asked.sample == 1:
            status, answer = failed("policy", "model_unreachable", 502)
            answer["detail"]["error"] |= {"message": f"Client error for url '{url}'", "hint": url, "rollout_id": url}
            return status, answer
        if asked.sample == 2:
            return 500, {"detail": f"Traceback: {url}"}
        status, answer = asked.scored(float(asked.sample % 2))
        if asked.sample == 3:
            answer |= {"rollout_id": f"ro-{url.split('/')[4]}", "aborted": url}
        guessed = url.replace("/r/", "/r/f")
        for name, other in (("guessed", guessed), *(("ended", each) for each in self.urls[:1] if each != url)):
            response = await asked.http.post(f"{other}/chat/completions", json={"messages": []})
            self.tries[name].add(response.status_code)
        return status, answer

    @property
    def tokens(self) -> list[str]:
        return [url.split("/")[4].partition("-")[2] for url in self.urls]


def test_no_token_is_stored_logged_or_answered(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    app = RepeatingApp()
    with (
        CallingApp(app.play).serving() as url,
        local_backend(tmp_path / "models", store=f"sqlite:///{tmp_path}/backend.db") as back,
    ):
        config = job_config(
            1,
            model="tiny",
            training={"batch_size": 2, "group_size": 8},
            evaluation={"instances": 2, "seeds": [100, 101]},
        )
        job_id = back.submit(url, config)
        status = finished(back, job_id)
        points = back.http.get(f"/rl/jobs/{job_id}/metrics").json()["points"]
        answers = [status, back.events(job_id), points]
        with TensorBoardFiles(tmp_path / "tensorboard") as board:
            board.add((point["name"], point["step"], point["value"], 0.0) for point in points)
    assert len(app.urls) >= 16 + 2 * 2 + 1
    assert app.tries == {"ended": {410}, "guessed": {404}}

    keys = [
        Key(f"token {number}, {part}", token[start : start + 16], first=False, last=False)
        for number, token in enumerate(app.tokens)
        for part, start in (("first part", 0), ("second part", 16), ("third part", 32))
    ]
    search = Search(keys)
    search.folder(tmp_path)
    search.look(json.dumps(answers).encode(), "answers of the backend")
    search.look("".join(capfd.readouterr()).encode(), "logs")
    assert [str(hit) for hit in search.hits] == []
    assert search.databases >= 1
    assert any(path.suffix == ".safetensors" for path in tmp_path.rglob("*"))
