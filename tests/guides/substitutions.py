"""What the runs of the RL guides' blocks change, each with its reason. docs/reference/guides.md prints this list; it may only shrink."""

from __future__ import annotations

from dataclasses import dataclass

from tests.guides.guide import AGNOSTIC, FFT, IN_PROCESS, OVERVIEW

SYNTH_KEY, TASK_APP_KEY = "sk_guides_0123456789abcdef", "ek_guides_0123456789abcdef"


@dataclass(frozen=True)
class Substitution:
    """One change of a block.

    guide, block: where; "" and 0 for every block. old: replaced by new, a format of the run's facts ({backend},
    {task_app}, {port}, {job}, {trained}). Without old, new is a line that is put before the block, or with `after` behind it.
    """

    guide: str
    block: int
    old: str
    new: str
    reason: str
    after: bool = False


OURS, HOSTED = "taskapp-kit has the same names", "replaces a hosted service"
PARTIAL = "the surrounding program has this line"
SHOWN = "prints the result for the test"
EXAMPLE = "placeholder"
RESULT = 'print("RESULT", result["status"], result["final_reward"])'
JOB = 'job = RLJob.from_config("rl_config.toml")'
CLIENT = "from taskapp_kit.client import RLJob"
FINISHED = 'job = RLJob.from_job_id("{job}")'

SUBSTITUTIONS = [
    Substitution("", 0, "from synth_ai.rl import", "from taskapp_kit.client import", OURS),
    Substitution("", 0, "from synth_ai.sdk.api.train.rl import", "from taskapp_kit.client import", OURS),
    Substitution("", 0, "from synth_ai.sdk.task.in_process import", "from taskapp_kit.deploy.local.in_process import", OURS),
    Substitution("", 0, "uvx synth-ai ", "taskapp ", "the command is `taskapp`"),
    Substitution(IN_PROCESS, 1, "", "import asyncio, os", "the guide omits the imports"),
    Substitution(IN_PROCESS, 1, "https://api.usesynth.ai", "{backend}", HOSTED),
    Substitution(IN_PROCESS, 2, "", "import os", PARTIAL),
    Substitution(IN_PROCESS, 2, "", CLIENT, PARTIAL),
    Substitution(IN_PROCESS, 2, "https://api.usesynth.ai", "{backend}", HOSTED),
    Substitution(IN_PROCESS, 2, "https://my-task-app.usesynth.ai", "{task_app}", HOSTED),
    Substitution(IN_PROCESS, 2, "", 'print("RESULT", job.payload["data"]["config"]["training"]["num_epochs"])', SHOWN, after=True),
    Substitution(IN_PROCESS, 3, "", "import os", PARTIAL),
    Substitution(IN_PROCESS, 3, "", CLIENT, PARTIAL),
    Substitution(IN_PROCESS, 3, "https://api.usesynth.ai", "{backend}", HOSTED),
    Substitution(IN_PROCESS, 3, "rl_abc123", "{job}", EXAMPLE),
    Substitution(IN_PROCESS, 3, "", 'print("RESULT", job.get_status()["status"])', SHOWN, after=True),
    Substitution(IN_PROCESS, 4, "", f"{CLIENT}; {JOB}", PARTIAL),
    Substitution(IN_PROCESS, 4, "", 'print("RESULT", job_id)', SHOWN, after=True),
    Substitution(IN_PROCESS, 5, "", f"{CLIENT}; {JOB}; job.submit()", PARTIAL),
    Substitution(IN_PROCESS, 5, "", RESULT, SHOWN, after=True),
    Substitution(IN_PROCESS, 6, "", f"{CLIENT}; {FINISHED}", PARTIAL),
    Substitution(IN_PROCESS, 7, "", f"{CLIENT}; {FINISHED}", PARTIAL),
    Substitution(IN_PROCESS, 8, "", RESULT, SHOWN, after=True),
    Substitution(IN_PROCESS, 9, "", RESULT, SHOWN, after=True),
    Substitution(IN_PROCESS, 10, "", CLIENT, PARTIAL),
    Substitution(IN_PROCESS, 10, "", RESULT, SHOWN, after=True),
    Substitution(IN_PROCESS, 11, "", "from pathlib import Path", "the guide omits the import"),
    Substitution(IN_PROCESS, 11, "", RESULT, SHOWN, after=True),
    Substitution(AGNOSTIC, 2, "https://your-backend", "{backend}", EXAMPLE),
    Substitution(AGNOSTIC, 2, "sk_your_org_key", SYNTH_KEY, EXAMPLE),
    Substitution(
        AGNOSTIC, 6, "rl:Qwen-Qwen3-0 6B:job_1993769d63c7506d485:checkpoint-epoch-1", "{trained}",
        "the model's name in the guide contains a space; the engine `local` returns the trained model's name",
    ),
    Substitution(OVERVIEW, 1, "--port 8001", "--port {port}", "concurrent runs need different ports"),
    Substitution(OVERVIEW, 5, "https://agent-learning.onrender.com", "{backend}", HOSTED),
    Substitution(OVERVIEW, 5, "<job_id>", "{job}", EXAMPLE),
    Substitution(FFT, 1, "https://<backend>/api", "{backend}/api", EXAMPLE),
    Substitution(FFT, 1, "<key>", SYNTH_KEY, EXAMPLE),
    Substitution(FFT, 1, "https://<task-app>.modal.run", "{task_app}", EXAMPLE),
]  # fmt: skip
MOST = 37
"""Lower it when the list gets shorter; never raise it."""


def of_block(guide: str, block: int) -> list[Substitution]:
    """Those of a block, in their order."""
    return [each for each in SUBSTITUTIONS if each.guide in ("", guide) and each.block in (0, block)]
