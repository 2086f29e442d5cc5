"""Write a Python function; hidden tests decide, out of reach of the submitted code.

`checkers`, `words` and `verdict` are plain Python; `boxes` uses the kit's sandbox.
"""
