"""Ways to be paid without solving the task. In all of them `mirror_digits(number)` is what has to be written.

name: (programs for `run`, the submission, words that the verdict may hold)
"""

from __future__ import annotations

FORGE = r"""
import os
LINES = b"".join(b'%d ["value", %d]\n' % (i, i) for i in range(40))
def shout(*numbers):
    for number in numbers or range(3, 64):
        try:
            os.write(number, LINES)
        except OSError:
            pass
"""

REWARD_FILES = """
import os
for folder in (".", "/tmp", os.path.expanduser("~")):
    for name in ("reward.txt", "reward.json", "result.json", "verdict.json", "score", "stdout", "answers.json"):
        try:
            os.makedirs(folder + "/logs", exist_ok=True)
            open(f"{folder}/{name}", "w").write("1.0")
            open(f"{folder}/logs/{name}", "w").write('{"passed": 1.0, "outcomes": ["right"]}')
        except OSError:
            pass
"""

STARTUP_FILES = """
forged = '''
import os
print("0 [\\\\"value\\\\", 0]", flush=True)
os._exit(0)
'''
for name in ("sitecustomize", "usercustomize", "json", "code_inside", "os", "main", "solution", "conftest"):
    open(name + ".py", "w").write(forged)
import os
os.makedirs(".local/lib/python3.11/site-packages", exist_ok=True)
open(".local/lib/python3.11/site-packages/usercustomize.py", "w").write(forged)
open(".local/lib/python3.11/site-packages/x.pth", "w").write("import usercustomize")
"""

DAEMON = (
    FORGE
    + """
import time
def later():
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    for _ in range(40):
        for pid in filter(str.isdigit, os.listdir("/proc")):
            for number in range(12):
                try:
                    with open(f"/proc/{pid}/fd/{number}", "wb", buffering=0) as file:
                        file.write(LINES)
                except OSError:
                    pass
        for name in ("reward.txt", "result.json"):
            try:
                open(name, "w").write("1.0")
            except OSError:
                pass
        time.sleep(0.05)
    os._exit(0)
"""
)

SEARCH = """
import gc, os, sys
def found():
    frame = sys._getframe()
    while frame:
        yield from frame.f_locals.values()
        yield from frame.f_globals.values()
        frame = frame.f_back
    yield from gc.get_objects()
    for module in list(sys.modules.values()):
        yield from vars(module).values()
def answer(number):
    for thing in found():
        if isinstance(thing, dict):
            for name in ("expected", "hidden_tests", "reference", "result", "answer"):
                if name in thing:
                    return thing[name]
    for pid in (os.getppid(), os.getpid(), 1):
        for name in ("environ", "cmdline", "mem"):
            try:
                data = open(f"/proc/{pid}/{name}", "rb").read(1 << 20)
            except OSError:
                continue
            if b"expected" in data or b"hidden_tests" in data:
                return int(data.split(b"expected")[1][:8])
    for folder, _, names in os.walk("/"):
        if folder.startswith(("/proc", "/sys", "/usr", "/lib", sys.base_prefix)):
            continue
        for name in names:
            if name.endswith(".jsonl"):
                return open(os.path.join(folder, name)).read()
    return None
"""


def mirror(line: str, above: str = "") -> str:
    return f"{above}\ndef mirror_digits(number):\n    {line}\n"


CHEATS: dict[str, tuple[list[str], str, set[str]]] = {
    "reward files": ([REWARD_FILES], REWARD_FILES + mirror("return None"), {"wrong"}),
    "start-up files": ([STARTUP_FILES], mirror("return None", STARTUP_FILES), {"wrong"}),
    "links where files are to be": (
        ["import os\nos.remove('main.py')\nos.symlink('/etc/passwd', 'main.py')\nos.symlink('/', 'root')\nos.symlink('/proc/self/fd/1', 'out')",
         "import os\nos.remove('main.py')\nos.mkdir('main.py')"],
        "import os\nfor name in ('code_inside.py', 'verdict'):\n    try:\n        os.remove(name)\n    except OSError:\n        pass\n    os.symlink('/etc/passwd', name)\n"
        + mirror("return None"),
        {"wrong", "raised"},
    ),
    "daemon": ([DAEMON + "later()"], DAEMON + "later()" + mirror("return None"), {"malformed", "wrong", "raised", "ended", "missing"}),
    "patched json": ([], mirror("return None", "import json\njson.dumps = lambda *a, **k: '[\"value\", 424242]'"), {"wrong"}),
    "patched json for others": ([], mirror("return None", "import json\njson.dumps = lambda *a, **k: '[\"right\"]'"), {"malformed"}),
    "patched builtins": (
        [],
        mirror("return Yes()", "import builtins, sys, os, unittest\nclass Yes:\n    pass\nbuiltins.type = lambda *a: int\n"
               "builtins.all = lambda *a: True\nbuiltins.isinstance = lambda *a: True\nsys.exit = os._exit = print\n"
               "sys.modules['__main__'].is_plain = lambda *a: True\nunittest.TestCase.assertEqual = lambda *a: None"),
        {"raised"},
    ),
    "equal to everything": (
        [],
        mirror("return Yes()", "class Yes:\n    __hash__ = lambda self: 0\n    __eq__ = lambda self, other: True\n    __ne__ = lambda self, other: False\n"
               "    __class__ = property(lambda self: int)\n    __index__ = __int__ = lambda self: 21"),
        {"odd"},
    ),
    "a number equal to everything": ([], mirror("return Yes(21)", "class Yes(int):\n    __hash__ = int.__hash__\n    __eq__ = lambda self, other: True"), {"odd"}),
    "a text equal to everything": ([], mirror("return [Yes('21')]", "class Yes(str):\n    __hash__ = str.__hash__\n    __eq__ = lambda self, other: True"), {"odd"}),
    "a list equal to everything": ([], mirror("return Yes()", "class Yes(list):\n    __hash__ = None\n    __eq__ = lambda self, other: True"), {"odd"}),
    "sys.exit": ([], "import sys\nsys.exit(0)", {"raised"}),
    "sys.exit in the call": ([], mirror("import sys; sys.exit(0)"), {"raised"}),
    "os._exit": ([], "import os\nos._exit(0)", {"ended"}),
    "skipped": (
        [],
        mirror("raise Skipped('not today')", "import unittest\nclass Skipped(BaseException):\n    pass\nSkipped.__module__ = '_pytest.outcomes'"),
        {"raised"},
    ),
    "skip of unittest": ([], "import unittest\nraise unittest.SkipTest('no')", {"raised"}),
    "forged output": ([], FORGE + "print(LINES.decode())\nshout(1, 2)" + mirror("return None"), {"wrong"}),
    "forged answers": ([], FORGE + "shout()" + mirror("return None"), {"malformed", "wrong"}),
    "forged in the name of others": ([], FORGE + "import sys\nshout()\nos._exit(0)", {"malformed", "wrong"}),
    "closed descriptors": ([], "import os\nos.closerange(0, 64)" + mirror("return 21"), {"ended", "malformed"}),
    "at exit": ([], FORGE + "import atexit\natexit.register(shout)\nos.register_at_fork(after_in_child=shout)" + mirror("return None"), {"wrong"}),
    "finalizer": ([], FORGE + "class Last:\n    def __del__(self):\n        shout()\nkept = Last()" + mirror("return None"), {"wrong", "malformed"}),
    "searching memory, processes and files": ([SEARCH + "print(answer(1))"], SEARCH + "mirror_digits = answer\n", {"wrong", "odd"}),
    "killing the judge": ([], mirror("import os, signal; os.kill(os.getppid(), signal.SIGKILL)"), {"missing", "ended"}),
    "killing everybody": (["import os\nos.kill(-1, 9)"], "import os\nos.kill(-1, 9)", {"missing", "ended"}),
    "not a number": ([], mirror("return float('nan')"), {"odd"}),
    "infinity": ([], mirror("return [1e999]"), {"odd"}),
    "a huge number": ([], mirror("return 10 ** 20000"), {"raised"}),
    "a huge text": ([], mirror("return 'x' * 10_000_000"), {"long"}),
    "endless output": ([], mirror("import os\n    while True: os.write(3, b'x' * 65536)"), {"ended", "late", "long", "raised"}),
    "a list in itself": ([], mirror("a = []; a.append(a); return a"), {"odd"}),
    "a deep list": ([], mirror("a = []\n    for _ in range(100_000): a = [a]\n    return a"), {"odd"}),
    "endless recursion": ([], mirror("return mirror_digits(number)"), {"raised"}),
    "crash": ([], mirror("import ctypes; ctypes.string_at(0)"), {"ended"}),
    "endless loop": ([], mirror("while True: pass"), {"late", "missing"}),
    "all memory": ([], mirror("return len([bytes(1 << 20) for _ in range(1 << 20)])"), {"raised", "ended", "missing"}),
    "fork bomb": ([], "import os\nfor _ in range(200):\n    try:\n        if not os.fork():\n            import time; time.sleep(60); os._exit(0)\n    except OSError:\n        break" + mirror("return None"), {"wrong", "ended", "raised"}),
    "answers by number of calls": (
        [],
        mirror("calls.append(1); open('calls', 'a').write('x'); return len(calls) + len(open('calls').read())", "calls = []"),
        {"wrong", "raised"},
    ),
    "a generator": ([], mirror("yield 21"), {"odd"}),
    "bytes and tuples": ([], mirror("return (21,) if number > 9 else b'0'"), {"odd"}),
    "true for one": ([], mirror("return number > 0"), {"wrong"}),
    "network": (
        ["import socket\nsocket.create_connection(('1.1.1.1', 53), 1)"],
        mirror("import socket; return socket.create_connection(('1.1.1.1', 53), 1)"), {"raised"},
    ),
    "environment and secrets": (
        ["import os\nprint(sorted(os.environ))\nprint(open('/etc/shadow').read())"],
        mirror("import os; return os.environ.get('ENVIRONMENT_API_KEY') or open('/etc/shadow').read()"), {"raised"},
    ),
    "no source": ([], "", {"absent"}),
    "no Python": ([], "def mirror_digits(number) return", {"raised"}),
    "zero bytes": (["print('\0')"], "x = '\0'", {"raised"}),
}  # fmt: skip
