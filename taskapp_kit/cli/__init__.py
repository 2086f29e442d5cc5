"""The `taskapp` command. Importing this package ends the process on systems that taskapp-kit does not support."""

import sys

try:  # before any other module of the kit, whose import would end in a traceback
    import fcntl  # noqa: F401
    import resource  # noqa: F401
except ImportError:
    print(
        "Error: taskapp-kit needs Linux or macOS (Python's modules `fcntl` and `resource`); on Windows, run it in WSL.",
        file=sys.stderr,
    )
    sys.exit(3)
