"""Write a Python function; hidden tests decide, outside the reach of what was written.

`verdict`, `checkers`, `words` and `judge_inside` are plain Python; `boxes` uses the kit's sandbox.
"""
