"""Renders an episode as a self-contained HTML page with a slider over the steps.

Observations are embedded as JSON and shown with `textContent`, so that they are never interpreted as markup.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from html import escape
from typing import Any


@dataclass(frozen=True, slots=True)
class Frame:
    """A step: the action, its result, and the observation after the action. `png` may be empty."""

    tool: str
    actions: list[str]
    reward: float
    unlocked: list[str]
    text: str
    png: bytes


def page(answer: dict[str, Any], frames: list[Frame]) -> str:
    """Return the HTML page for the response of a rollout and its frames."""
    details = answer["metrics"]["details"]
    trajectory = answer["trajectories"][0]
    rows = "".join(
        f"<tr><td>{escape(item['name'])}</td><td>{escape(item['of'])}</td>"
        f"<td class=n>{'—' if item['score'] is None else format(item['score'], '.3f')}</td>"
        f"<td class=n>{item['weight']:g}</td></tr>"
        for item in answer["scorecard"]["criteria"]
    )
    facts = {
        "environment": trajectory["trace"]["metadata"]["env"],
        "split, seed": f"{details['split']}, {details['seed']}",
        "policy": answer["pipeline_metadata"]["policy"],
        "ended": f"{answer['status']} ({answer['stop_reason']})",
        "steps": f"{trajectory['length']} calls",
        "reward": f"{answer['reward']:.2f}   ({answer['reward_formula']})",
        "digest": answer["digest"][:16] + "…",
    }
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in facts.items())
    steps = [
        {
            "tool": frame.tool,
            "actions": frame.actions,
            "reward": frame.reward,
            "unlocked": frame.unlocked,
            "text": frame.text,
            "png": base64.b64encode(frame.png).decode(),
        }
        for frame in frames
    ]
    data = json.dumps(steps).replace("<", "\\u003c")
    return (
        TEMPLATE.replace("@@TITLE@@", escape(f"{facts['environment']}, seed {details['seed']}"))
        .replace("@@FACTS@@", listed)
        .replace("@@ROWS@@", rows)
        .replace("@@DATA@@", data)
    )


TEMPLATE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>@@TITLE@@</title>
<style>
:root { color-scheme: light dark; --line: #8884; --soft: #777; --accent: #2a7; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1rem; font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.3rem; margin: 0 0 1rem; }
h2 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
main { display: grid; grid-template-columns: minmax(14rem, 22rem) 1fr; gap: 1.5rem; }
img { width: 100%; image-rendering: pixelated; border-radius: 6px; background: #8882; aspect-ratio: 1; }
pre { margin: 0; font: 13px/1.35 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
.bar { display: flex; gap: .5rem; align-items: center; margin: .75rem 0; }
.bar input { flex: 1; accent-color: var(--accent); }
button { font: inherit; padding: .1rem .7rem; border: 1px solid var(--line); border-radius: 6px; background: none; color: inherit; }
.did { min-height: 3.2em; }
.chip { display: inline-block; border: 1px solid var(--line); border-radius: 999px; padding: 0 .6em; margin: 0 .3em .3em 0; }
.new { border-color: var(--accent); color: var(--accent); font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; } td, th { padding: .15rem .9rem .15rem 0; text-align: left; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
tr + tr td { border-top: 1px solid var(--line); }
svg { width: 100%; height: 60px; overflow: visible; }
@media (max-width: 44rem) { main { grid-template-columns: 1fr; } }
</style>
<h1>@@TITLE@@</h1>
<main>
<section>
<img id="picture" alt="what is seen at this step">
<div class="bar"><button id="play">play</button><input id="at" type="range" min="0" value="0" aria-label="step"></div>
<div id="where"></div>
<div class="did" id="did"></div>
<svg id="curve" preserveAspectRatio="none" aria-label="return so far, by step"></svg>
<div>return so far: <b id="sum"></b></div>
</section>
<section>
<pre id="text"></pre>
<h2>Unlocked so far</h2><div id="unlocked"></div>
<h2>Scorecard</h2>
<table><tr><th>criterion</th><th>of</th><th class="n">score</th><th class="n">weight</th></tr>@@ROWS@@</table>
<h2>Rollout</h2><dl>@@FACTS@@</dl>
</section>
</main>
<script type="application/json" id="data">@@DATA@@</script>
<script>
const frames = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const at = $("at");
at.max = frames.length - 1;
const sums = []; let total = 0;
for (const f of frames) { total += f.reward || 0; sums.push(total); }
const low = Math.min(0, ...sums), high = Math.max(1, ...sums);
const x = i => 100 * i / Math.max(1, frames.length - 1), y = v => 60 - 60 * (v - low) / (high - low);
function node(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  $("curve").append(made); return made;
}
$("curve").setAttribute("viewBox", "0 0 100 60");
node("polyline", { points: sums.map((v, i) => x(i) + "," + y(v)).join(" "), fill: "none", stroke: "currentColor",
                   "stroke-width": 1.5, "vector-effect": "non-scaling-stroke" });
const mark = node("line", { y1: 0, y2: 60, stroke: "#2a7", "stroke-width": 1.5, "vector-effect": "non-scaling-stroke" });
function chips(target, names, fresh) {
  target.replaceChildren(...names.map(name => {
    const chip = document.createElement("span");
    chip.className = fresh.includes(name) ? "chip new" : "chip"; chip.textContent = name; return chip;
  }));
}
function show() {
  const i = Number(at.value), f = frames[i];
  $("picture").hidden = !f.png;
  if (f.png) $("picture").src = "data:image/png;base64," + f.png;
  $("text").textContent = f.text;
  $("where").textContent = "step " + i + " of " + (frames.length - 1) + (i ? "   reward " + f.reward.toFixed(2) : "");
  chips($("did"), i ? f.actions : ["the first observation"], []);
  $("sum").textContent = sums[i].toFixed(2);
  const known = frames.slice(0, i + 1).flatMap(g => g.unlocked);
  chips($("unlocked"), known, f.unlocked);
  mark.setAttribute("x1", x(i)); mark.setAttribute("x2", x(i));
}
let timer = null;
function toggle() {
  if (timer) { clearInterval(timer); timer = null; $("play").textContent = "play"; return; }
  if (Number(at.value) >= frames.length - 1) at.value = 0;
  $("play").textContent = "pause";
  timer = setInterval(() => { at.value = Number(at.value) + 1; show(); if (Number(at.value) >= frames.length - 1) toggle(); }, 160);
}
$("play").onclick = toggle;
at.oninput = show;
addEventListener("keydown", event => {
  if (event.target === at && event.key.startsWith("Arrow")) return;
  if (event.key === "ArrowRight") at.value = Number(at.value) + 1;
  else if (event.key === "ArrowLeft") at.value = Number(at.value) - 1;
  else if (event.key === " " && event.target.tagName !== "BUTTON") { event.preventDefault(); toggle(); }
  show();
});
show();
</script>
</html>
"""
