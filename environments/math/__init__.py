"""Math as a task app: procedural problems from reasoning-gym, or rows of a file, and one answer that is right or not.

`literals`, `polynomials`, `expressions` and `equality` are plain Python; `generators` loads the `reasoning_gym` package;
`comparing` runs as a process of its own, the only place where `math_verify` is loaded.
"""
