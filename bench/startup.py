"""The costs of starting: import, first healthy answer, memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import median

from bench.processes import ROOT, BenchFailed, bare_environment, our_command, served, synth_command
from bench.tables import Budget, Table, middle

IMPORT = "import time; begun = time.process_time(); import {module}; print(time.process_time() - begun)"


def import_cpu_ms(python: str, module: str, home: Path) -> float:
    """CPU ms of `import module` in a fresh interpreter, beyond the interpreter's own start."""
    home.mkdir(parents=True, exist_ok=True)
    command = [python, "-c", IMPORT.format(module=module)]
    environment = bare_environment(home)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchFailed(f"import {module} failed: {done.stderr[-500:]}")
    return float(done.stdout.strip().splitlines()[-1]) * 1000


def measure(repetitions: int, scratch: Path) -> Table:
    """Measures ours and the Synth server in turns, after one uncounted start of each (it compiles)."""
    home = scratch / "home"
    synth = synth_command()
    modules = {"taskapp-kit": (sys.executable, "taskapp_kit"), "synth-ai 0.3.9": (synth[0], "synth_ai.sdk.task.server")}
    commands = {"taskapp-kit": our_command(str(ROOT / "bench" / "counter_app.py")), "synth-ai 0.3.9": synth}
    imports: dict[str, list[float]] = {name: [] for name in modules}
    healthy: dict[str, list[float]] = {name: [] for name in modules}
    memory: dict[str, list[float]] = {name: [] for name in modules}
    for repetition in range(repetitions + 1):
        for name, (python, module) in modules.items():
            cpu_ms = import_cpu_ms(python, module, home)
            with served(name, commands[name], ROOT, home) as server:
                if repetition:
                    imports[name].append(cpu_ms)
                    healthy[name].append(server.healthy_seconds)
                    memory[name].append(server.resident_megabytes())
    ours = "taskapp-kit"
    budgets = [
        Budget(
            "the import takes less than 100 ms of CPU time",
            f"{median(imports[ours]):.0f} ms",
            median(imports[ours]) < 100,
        ),
        Budget(
            "the first healthy response comes within 1 s", f"{median(healthy[ours]):.2f} s", median(healthy[ours]) < 1
        ),
        Budget("a trivial server uses less than 90 MB", f"{median(memory[ours]):.0f} MB", median(memory[ours]) < 90),
    ]
    return Table(
        title="Startup",
        header=["", "import, CPU ms", "start to first healthy response, s", "resident memory, MB"],
        rows=[
            [f"{name} (`{module}`)", middle(imports[name], 0), middle(healthy[name]), middle(memory[name], 0)]
            for name, (_, module) in modules.items()
        ],
        notes=[
            (
                f"Median (range) of {repetitions} starts of each server, with compiled bytecode. "
                "Memory is read at the first healthy response, before any rollout (10^6 bytes)."
            ),
            *[budget.sentence() for budget in budgets],
        ],
    )
