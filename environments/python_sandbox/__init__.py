"""Write a Python function; hidden tests decide, out of reach of the submitted code.

`verdict`, `checkers`, `words` and `judge_inside` are plain Python. `boxes` uses the kit's sandbox.
"""
