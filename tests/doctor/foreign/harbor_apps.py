"""Five tasks in Harbor's format, an app each, as `from_harbor` plays them; HARBOR_TASKS is the folder that has them.

Each app is a global of this module, so that a second process finds it as `harbor_apps.py:NAME`.
"""

from __future__ import annotations

import os
from pathlib import Path

from taskapp_kit import TaskApp
from taskapp_kit.interop.harbor import HarborRow, from_harbor

for _folder in sorted(Path(os.environ["HARBOR_TASKS"]).iterdir()) if "HARBOR_TASKS" in os.environ else ():
    _app, _made = TaskApp(_folder.name), from_harbor(_folder)
    _app.environment("terminal", tasks={"train": _made.rows}, row=HarborRow, max_steps=6)(_made)
    _app.rubric(environment="terminal")(_made.reward)
    _app.policy("gold", environment="terminal")(_made.gold)
    globals()[f"harbor_{_folder.name.replace('-', '_')}"] = _app
