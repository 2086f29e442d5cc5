"""Lets the tests of this room import `control_plane`, which lies beside them.

Not as `tests.deploy.control_plane`: a dependency (opensimplex) installs a package called `tests`, which would win.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
