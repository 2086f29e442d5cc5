"""The child program of these tests: `job_program.py FRAMES_FILE MODE SOCKET`. A job says what to do in `do`.

The frames module is loaded from its file: without the package around it a child is there in 50 ms.
"""

import ctypes
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

frames_file, mode, fd = sys.argv[1], sys.argv[2], int(sys.argv[3])
spec = importlib.util.spec_from_file_location("frames", frames_file)
assert spec is not None
assert spec.loader is not None
frames: Any = importlib.util.module_from_spec(spec)
sys.modules["frames"] = frames
spec.loader.exec_module(frames)


def wait_for_stop(job: Any) -> Any:
    while job.stopped is None:
        time.sleep(0.005)
    return {"stopped": job.stopped}, b""


def handler(job: Any) -> Any:
    frame = job.frame
    match frame["do"]:
        case "echo":
            return {"echo": frame.get("what"), "pid": os.getpid(), "exclusive": job.exclusive}, job.blob
        case "environment":
            return dict(os.environ), b""
        case "count":
            for number in range(frame["to"]):
                job.report({"number": number})
            return {"counted": frame["to"]}, b""
        case "flood":
            sent = 0
            while job.stopped is None:
                job.report({"flood": "x" * 20_000})
                sent += 1
            return {"sent": sent}, b""
        case "ask":
            return {"heard": [job.ask({"question": number})["answer"] for number in range(frame["times"])]}, b""
        case "wait":
            job.report({"waiting": True})
            return wait_for_stop(job)
        case "steps":
            for _ in range(frame["times"]):
                job.step_begins()
                time.sleep(frame["each"])
                job.step_ends()
            return {"stepped": frame["times"]}, b""
        case "hang":
            job.report({"pid": os.getpid()})
            job.step_begins()
            time.sleep(60)
        case "hang in C":
            job.report({"pid": os.getpid()})
            job.step_begins()
            ctypes.PyDLL(None).sleep(60)  # a PyDLL call keeps the interpreter's lock
        case "segfault":
            job.report({"before": "the fall"})
            ctypes.string_at(0)
        case "exit":
            os._exit(frame["code"])
        case "raise":
            raise ValueError("the cat \udc00 sat")
        case "print":
            print("x" * 10_000, flush=True)
            subprocess.run(["echo", "from a grandchild"], check=True)
            return {"read": sys.stdin.read()}, b""
        case "too large":
            job.report({}, b"x" * (frames.FRAME_BYTES + 1))
        case "lie":
            os.write(fd, b"\x7f\xff\xff\xff\x00\x00\x00\x00not a frame")
            time.sleep(60)
        case "nan":
            return {"value": 2**70, "text": "\udc00"}, b""
        case "grandchild":
            job.report({"pid": subprocess.Popen(["sleep", "60"]).pid})
            return wait_for_stop(job)
    raise AssertionError(frame)


def load() -> frames.Handler:
    if mode == "refuse":
        raise RuntimeError("the app has two problems")
    if mode == "die":
        os._exit(7)
    if mode == "slow":
        time.sleep(60)
    if mode.startswith("once:"):  # starts once for each file that is missing
        try:
            Path(mode.removeprefix("once:")).touch(exist_ok=False)
        except FileExistsError:
            raise RuntimeError("started before") from None
    return handler


frames.serve_jobs(fd, load, threads=int(os.environ.get("THREADS", "16")))
