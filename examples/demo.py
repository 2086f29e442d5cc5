"""The demo: serve Crafter with a generated key, play it over HTTP with two policies, score it, and save images.

    python examples/demo.py [--out out/demo] [--episodes 6]

Everything is local, without an account, a model or a download.
"""

from __future__ import annotations

import argparse
import io
import secrets
import statistics
import sys
import time
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import httpx
from episode_page import Frame, page
from PIL import Image
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from taskapp_kit.asgi import build
from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.serve.uvicorn_server import BackgroundServer

FIRST_SEED = 1_000_000
"""The first seed of Crafter's test split."""
IN_FLIGHT = 4
PICTURE_PIXELS = 216
FRAME_MILLISECONDS = 160

console = Console(highlight=False)


def main() -> int:
    """Run the demo. Return 0 if all rollouts were played and scored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    parser.add_argument("--episodes", type=int, default=6, help="episodes for each policy")
    given = parser.parse_args()
    began = time.monotonic()
    key = secrets.token_urlsafe(24)
    console.rule("[bold]Crafter over HTTP")
    app = build(find_app("crafter"), Settings(environment_api_key=key), exposure="local")
    with BackgroundServer(app) as server:
        refused = httpx.get(f"{server.url}/health").status_code
        with httpx.Client(base_url=server.url, headers={"X-API-Key": key}, timeout=120) as client:
            health = client.get("/health")
            console.print(
                f"serving at {server.url} (without a key: {refused}, with the minted key: {health.status_code})"
            )
            answers = play_all(client, given.episodes)
            show_policies(answers)
            best = max(answers["scripted"], key=lambda answer: float(answer["reward"]))
            drawn = rollout(client, "scripted", best["metrics"]["details"]["seed"], image=True)
            same = "the same digest" if drawn["digest"] == best["digest"] else "ANOTHER DIGEST"
            console.print(f"the best episode again, with images: {same}, {drawn['digest'][:16]}…")
            show_scorecard(drawn)
            frames = frames_of(client, drawn)
    gif, html = write(given.out, drawn, frames)
    console.print(f"\nanimated GIF  {gif}\nepisode page  {html}   (one file, open it in a browser)")
    console.print(f"[dim]done in {time.monotonic() - began:.1f} s[/]")
    return 0 if drawn["digest"] == best["digest"] and refused == 401 else 1


def rollout(client: httpx.Client, policy: str, seed: int, *, image: bool = False) -> dict[str, Any]:
    """Send `POST /rollout`. Raises httpx.HTTPStatusError if the rollout was not played or not scored."""
    answer = client.post(
        "/rollout",
        json={
            "run_id": "demo",
            "env": {"env_name": "crafter", "seed": seed, "config": {"image": image, "image_size": PICTURE_PIXELS}},
            "policy": {"policy_name": policy},
            "ops": [],
            "mode": "eval",
        },
    )
    answer.raise_for_status()
    return dict(answer.json())


def play_all(client: httpx.Client, episodes: int) -> dict[str, list[dict[str, Any]]]:
    """Play all episodes of both policies, several at the same time. Return the responses by policy."""
    answers: dict[str, list[dict[str, Any]]] = {"scripted": [], "random": []}
    bar = Progress(
        TextColumn("{task.description:<9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    with bar, ThreadPoolExecutor(IN_FLIGHT) as pool:
        for policy, finished in answers.items():
            task = bar.add_task(policy, total=episodes)
            waiting = [pool.submit(rollout, client, policy, FIRST_SEED + index) for index in range(episodes)]
            for done in as_completed(waiting):
                finished.append(done.result())
                bar.advance(task)
    return answers


def show_policies(answers: dict[str, list[dict[str, Any]]]) -> None:
    """Print a line for each policy, with means over its episodes."""
    table = Table(title="means over episodes", title_justify="left", box=SIMPLE_HEAD)
    for name in ("policy", "episodes", "steps", "reward", "achievements", "outcome", "ended"):
        table.add_column(name, justify="left" if name in ("policy", "ended") else "right")
    for policy, rollouts in answers.items():
        details = [answer["metrics"]["details"] for answer in rollouts]
        table.add_row(
            policy,
            str(len(rollouts)),
            f"{statistics.fmean(d['game_steps'] for d in details):.0f}",
            f"{statistics.fmean(answer['reward'] for answer in rollouts):.2f}",
            f"{statistics.fmean(d['unique_achievements'] for d in details):.1f} of 22",
            f"{statistics.fmean(answer['metrics']['outcome_score'] for answer in rollouts):.3f}",
            ", ".join(sorted({answer["status"] for answer in rollouts})),
        )
    console.print(table)


def show_scorecard(answer: dict[str, Any]) -> None:
    """Print the scorecard and the achievements of one episode."""
    details = answer["metrics"]["details"]
    names = [name.split("/", 1)[1] for name, value in details.items() if name.startswith("achievement/") and value]
    console.print(
        f"seed {details['seed']}: {details['game_steps']:.0f} game steps in {answer['metrics']['num_steps']} calls, "
        f"{answer['status']}"
    )
    console.print(f"achievements ({len(names)}): {', '.join(names)}")
    table = Table(title="scorecard", title_justify="left", box=SIMPLE_HEAD)
    for name in ("criterion", "of", "score", "weight"):
        table.add_column(name, justify="right" if name in ("score", "weight") else "left")
    for item in answer["scorecard"]["criteria"]:
        score = "—" if item["score"] is None else f"{item['score']:.3f}"
        table.add_row(item["name"], item["of"], score, f"{item['weight']:g}")
    console.print(table)
    console.print(f"[bold]{answer['reward_formula']} = {answer['reward']:.2f}[/]")


def frames_of(client: httpx.Client, answer: dict[str, Any]) -> list[Frame]:
    """Return the frames of an episode: the first observation, and a frame for each call."""
    steps = answer["trajectories"][0]["steps"]
    first = steps[0]["info"]["initial_observation"]
    frames = [frame(client, first, "reset", [], 0.0, [])]
    for step in steps:
        info = step["info"]
        frames.append(
            frame(client, step["obs"], "interact", info["actions"], step["reward"], info["unlocked"]),
        )
    return frames


def frame(
    client: httpx.Client, observation: dict[str, Any], tool: str, actions: list[str], reward: float, unlocked: list[str]
) -> Frame:
    """Return a frame. If the response contains only the hash of an image, the image is fetched from `/blobs`."""
    text, png = "", b""
    for block in observation["content"]:
        if block["type"] == "text":
            text = block["text"]
        else:
            address = block["image_url"]["url"]
            png = b64decode(address.split(",", 1)[1]) if address.startswith("data:") else client.get(address).content
    return Frame(tool, actions, reward, unlocked, text, png)


def write(folder: Path, answer: dict[str, Any], frames: list[Frame]) -> tuple[Path, Path]:
    """Write the GIF and the HTML page, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    gif, html = folder / "crafter.gif", folder / "crafter.html"
    pictures = [Image.open(io.BytesIO(item.png)).convert("P", palette=Image.Palette.ADAPTIVE) for item in frames]
    pictures[0].save(gif, save_all=True, append_images=pictures[1:], duration=FRAME_MILLISECONDS, loop=0)
    html.write_text(page(answer, frames), encoding="utf-8")
    return gif, html


if __name__ == "__main__":
    sys.exit(main())
