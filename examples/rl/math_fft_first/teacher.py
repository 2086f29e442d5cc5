"""A teacher that replaces a stronger model: an endpoint that computes the answers to the math app's sums.

python examples/rl/math_fft_first/teacher.py [PORT]
"""

import re
import sys
import threading

from taskapp_kit.testing import ChatRequest, MockModel


def answer(request: ChatRequest) -> str:
    """Return the result of the sum."""
    first, sign, second = re.findall(r"(\d+) ([+-]) (\d+)", request.last_text)[0]
    return str(int(first) + int(second) if sign == "+" else int(first) - int(second))


if __name__ == "__main__":
    with MockModel(answer, port=int(sys.argv[1]) if len(sys.argv) > 1 else 8101) as model:
        print(f"The teacher answers at {model.url}", flush=True)
        threading.Event().wait()
