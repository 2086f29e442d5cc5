"""Serves the environment that openreward's `orwd init` writes, of its package's own template; prints the port.

python ors_template_served.py        # runs until stdin closes
"""

from pathlib import Path

import openreward
from openreward.environments import Server
from stdin_server import serve

source = (Path(openreward.__file__).parent / "templates/basic/server.py.tmpl").read_text()
module = {"__name__": "basic_environment"}
exec(compile(source, "server.py", "exec"), module)
serve(Server([module["BasicEnvironment"]]).app, "openreward")
