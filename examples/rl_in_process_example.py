"""A complete RL job in one script, which also runs the task app.

Start a backend, which plays rollouts but does not update weights:  taskapp backend serve
Then run:  BACKEND_BASE_URL=http://127.0.0.1:8500 SYNTH_API_KEY=… python examples/rl_in_process_example.py
"""

from pathlib import Path

from taskapp_kit.client import weights_note
from taskapp_kit.deploy.local.in_process_job import run_in_process_job

HERE = Path(__file__).parent

if __name__ == "__main__":
    result = run_in_process_job(
        job_type="rl",
        config_path=HERE / "rl_in_process_config.toml",
        task_app_path=HERE / "rl" / "task_app.py",
        on_status=lambda status: print("status", status["status"]),
        interval=1.0,
    )
    print("final reward", result.final_reward, weights_note(result.job))
