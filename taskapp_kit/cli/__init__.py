"""The `taskapp` command. Importing this package ends the process on systems that taskapp-kit does not support."""

import sys

try:  # checked before other modules of the kit are imported, because their import would fail with a traceback
    import fcntl  # noqa: F401
    import resource  # noqa: F401
except ImportError:
    print(
        "Error: taskapp-kit needs Linux or macOS (Python's modules `fcntl` and `resource`). On Windows, run it in WSL.",
        file=sys.stderr,
    )
    sys.exit(3)
